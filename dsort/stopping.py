"""Asking a running job to stop, from a signal handler or another thread."""

from __future__ import annotations

import contextlib
import os
import signal

from dsort.core.closing import Closing
from dsort.errors import JobStoppedError

__all__ = ["StopFlag"]


class StopFlag(Closing):
    """A flag that is raised once and stays up.

    ``request`` may be called from a signal handler or any thread: it takes no lock and never
    blocks. ``fileno`` becomes readable with it, so that a selector can wait for workers and for
    the user in one call. Holds two file descriptors until ``close``.
    """

    def __init__(self) -> None:
        self._signal_number: int | None = None
        self._why = ""
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._write_fd, False)

    @property
    def requested(self) -> bool:
        """Whether somebody asked the job to stop."""
        return self._signal_number is not None

    @property
    def signal_number(self) -> int | None:
        """The signal of the first request."""
        return self._signal_number

    def request(self, signal_number: int = signal.SIGINT, why: str = "") -> bool:
        """Ask to stop; ``why`` if it was no signal. False if that had been asked before; then
        nothing changes."""
        if self._signal_number is not None:
            return False
        self._why = why
        self._signal_number = signal_number
        # Two threads may both get here: a second byte in the pipe does no harm.
        with contextlib.suppress(OSError):
            os.write(self._write_fd, b"\0")
        return True

    def raise_if_requested(self) -> None:
        """``JobStoppedError`` with the signal's number if a stop was requested."""
        number = self._signal_number
        if number is not None:
            name = self._why or signal.Signals(number).name
            raise JobStoppedError(f"the job was stopped by {name}", signal_number=number)

    def fileno(self) -> int:
        """A descriptor that is readable from the moment a stop was requested. Do not read it."""
        return self._read_fd

    def close(self) -> None:
        """Release the descriptors; a later ``request`` still sets the flag."""
        for name in ("_read_fd", "_write_fd"):
            descriptor = getattr(self, name)
            if descriptor >= 0:
                setattr(self, name, -1)
                os.close(descriptor)
