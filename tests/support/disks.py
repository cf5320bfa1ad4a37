"""Disks of tests: `fsync` does nothing, because a tiny job calls it thirty times and only tests of
power loss need it. A power-loss test has a file system of its own (`FileSystem`)."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

REAL_DISK = "REAL_DISK"
"""The variable with which a coordinator (`tests.support.coordinators`) calls the real `fsync`."""

SIZE_BYTES = 48 << 20
# No timer of the kernel commits names or writes data within a test: only `fsync` does. And the
# kernel does not flush the data of a file that is renamed over another, as it does by default.
OPTIONS = "commit=600,noauto_da_alloc,nodiscard"

MEMORY_DISK = Path("/dev/shm")
PLENTY_BYTES = 8 << 30
"""With this much free memory, tests keep their files in memory: a run of all tests takes a quarter
of it."""

_fsync, _fdatasync = os.fsync, os.fdatasync
really_written = _fdatasync
"""The real ``fdatasync``, for a test whose pages have to leave memory."""


def temporary_root() -> str:
    """The directory of the tests' files: in memory if much is free, which saves a tenth of a
    run."""
    try:
        found = os.statvfs(MEMORY_DISK)
    except OSError:
        return tempfile.gettempdir()
    free = min(found.f_bavail * found.f_frsize, psutil.virtual_memory().available)
    may_run = os.access(MEMORY_DISK, os.W_OK) and not found.f_flag & os.ST_NOEXEC
    return str(MEMORY_DISK) if may_run and free >= PLENTY_BYTES else tempfile.gettempdir()


def wait_for_no_disk() -> None:
    """From now on, no `fsync` of this process waits for a disk."""
    from dsort.storage.directory import files  # after its fault points are wrapped

    if not hasattr(files, "really_sync_file_system"):  # called twice, it would keep the stand-in
        files.really_sync_file_system = files.sync_file_system  # type: ignore[attr-defined]
    os.fsync = os.fdatasync = files.sync_file_system = lambda fd: None


def wait_for_disk() -> None:
    """From now on, each `fsync` of this process and of its forks is the real one."""
    from dsort.storage.directory import files

    os.fsync, os.fdatasync = _fsync, _fdatasync
    files.sync_file_system = files.really_sync_file_system  # type: ignore[attr-defined]


class CannotMount(Exception):  # noqa: N818
    """This process cannot mount an ext4 file system from a file."""


class FileSystem:
    """A mounted ext4 file system, in a file that stands for the disk. ``root``: where it is."""

    def __init__(self, image: Path, root: Path) -> None:
        self.root = root
        self._image = image

    def cut(self, copy: Path, *, names_written: bool = False) -> None:
        """Make ``copy`` the disk after a power cut at this moment: it has the bytes that `fsync`
        forced to the disk, and no other bytes that processes wrote.

        ``names_written``: the file system's journal was committed just before (another program
        called `fsync`), so all names are on the disk, and the data of files that were not synced
        are not: ext4 allocates their blocks later.
        """
        if names_written:
            fd = os.open(self.root / "of another program", os.O_CREAT | os.O_WRONLY)
            try:
                os.write(fd, b"x")
                _fsync(fd)
            finally:
                os.close(fd)
        while True:  # a copy during a write of the kernel would mix two moments
            before = self._written()
            shutil.copyfile(self._image, copy)
            if self._written() == before:
                return

    def sync(self) -> None:
        """Return once everything is on the disk."""
        _run("sync", "--file-system", str(self.root))

    def _written(self) -> str:
        (device,) = _run("losetup", "--noheadings", "--output", "NAME", "-j", str(self._image))
        return Path("/sys/block", Path(device.strip()).name, "stat").read_text()


@contextmanager
def file_system(directory: Path) -> Iterator[FileSystem]:
    """A new, empty file system in ``directory``. Raises `CannotMount`."""
    if os.geteuid() != 0:
        raise CannotMount("only root can mount a file system")
    image = directory / "disk"
    with image.open("wb") as file:
        file.truncate(SIZE_BYTES)
    _run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(image))
    with mounted(image, directory / "mounted") as made:
        yield made


@contextmanager
def mounted(image: Path, root: Path) -> Iterator[FileSystem]:
    """The file system of ``image``, mounted at ``root``. Raises `CannotMount`."""
    root.mkdir()
    _run("mount", "-t", "ext4", "-o", f"loop,{OPTIONS}", str(image), str(root))
    try:
        yield FileSystem(image, root)
    finally:
        _run("umount", str(root))


def _run(*command: str) -> list[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise CannotMount(f"{command[0]} is not installed") from error
    except subprocess.CalledProcessError as error:
        raise CannotMount(f"{' '.join(command)}: {error.stderr.strip()}") from error
    return done.stdout.splitlines()
