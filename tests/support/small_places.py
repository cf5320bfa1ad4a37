"""Disks and control groups with little room. A test is skipped where they cannot be made."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

DISK_BYTES = 24 << 20
CGROUPS = Path("/sys/fs/cgroup")
OF_THE_FIRST_GENERATION = {
    "memory.max": "memory.limit_in_bytes",
    "memory.swap.max": "memory.swappiness",  # 0 means the same
}


@contextlib.contextmanager
def small_disk(directory: Path) -> Iterator[Path]:
    """``directory`` is a file system of its own, of ``DISK_BYTES``."""
    directory.mkdir()
    given = ["-t", "tmpfs", "-o", f"size={DISK_BYTES}", "dsort-test", str(directory)]
    try:
        subprocess.run(["mount", *given], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def fill(directory: Path, leave_bytes: int = 0) -> None:
    """Fill the disk with the file ``filler``, except for ``leave_bytes``."""
    status = os.statvfs(directory)
    with (directory / "filler").open("wb", buffering=0) as file:
        room = status.f_bavail * status.f_frsize - leave_bytes
        block = bytes(1 << 16)
        with contextlib.suppress(OSError):
            while room > 0:
                room -= file.write(block[:room])


@contextlib.contextmanager
def control_group(controller: str, limits: Mapping[str, int]) -> Iterator[Path]:
    """A control group, of version 1 or 2. ``limits``: by their names in version 2."""
    first = (CGROUPS / controller).is_dir()
    group = (CGROUPS / controller if first else CGROUPS) / f"dsort-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        try:
            for name, limit in limits.items():
                file = OF_THE_FIRST_GENERATION.get(name, name) if first else name
                (group / file).write_text(str(limit))
        except OSError as error:
            pytest.skip(f"no {controller} limit can be set here: {error}")
        yield group
    finally:
        group.rmdir()  # fails if a process were left in it
