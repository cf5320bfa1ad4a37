"""Nothing here waits until a disk has what was written: no test pulls the plug. A tiny job asks for
that thirty times, and a busy disk takes milliseconds for each."""

from __future__ import annotations

import os

__all__ = ["really_written", "wait_for_no_disk"]

really_written = os.fdatasync
"""For a test that wants its pages out of memory."""


def wait_for_no_disk() -> None:
    """From now on, in this process."""
    from dsort.storage.directory import files  # behind what wraps the points of faults

    os.fsync = os.fdatasync = files.sync_file_system = lambda fd: None
