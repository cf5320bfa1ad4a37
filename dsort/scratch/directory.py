"""A scratch directory, which processes hold by a descriptor and not by its name."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import weakref
from pathlib import Path

from dsort.closing import ClosesOnExit
from dsort.errors import StorageAccessError, StorageError
from dsort.naming.names import INTERNAL_PART
from dsort.storage.bucket import Buffer
from dsort.storage.directory.bucket import remove_entries, remove_if_empty
from dsort.storage.directory.os_errors import StorageErrors

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS = 0o077
_SMALL_BYTES_MAX = 1 << 30
_NOT_THERE = frozenset({errno.ENOTDIR, errno.ELOOP})


# Scratch is beside the outputs by default, where others may be allowed to write. So the directory
# belongs to its owner alone (0700), the owner is checked, and every file is opened relative to the
# open directory. If this directory or one above it is renamed or replaced, processes that hold it
# are not affected. No link is followed in the part of the path that dsort made.
class Scratch(ClosesOnExit):
    """The directory ``path``. ``StorageAccessError`` unless it belongs to this user, and no other
    user may enter it; ``ObjectNotFoundError`` if it does not exist.

    ``name`` in all methods: the name of a file directly in it. Opened files have to be regular
    files of this user without further hard links.
    """

    def __init__(self, path: Path, *, make: bool = False) -> None:
        """``make``: make the directory, and missing directories above it."""
        self.path = path
        self._where = str(path)
        with StorageErrors(f"{'make' if make else 'open'} the scratch directory", self._where):
            parent_fd = self._open_parent(make=make)
            try:
                self._fd = self._open_own(parent_fd, make=make)
            except BaseException:
                os.close(parent_fd)
                raise
        self._parent_fd = parent_fd
        self._closed = weakref.finalize(self, _close, self._fd, parent_fd)

    def __str__(self) -> str:
        return self._where

    def close(self) -> None:
        """Close the directory. Open files stay open."""
        self._closed()

    # -- files -------------------------------------------------------------------------------

    def open_to_read(self, name: str) -> int:
        """Open a file for reading; return its descriptor."""
        with StorageErrors(f"read {name}", self._where):
            # Non-blocking, because opening a pipe would block.
            fd = self._open(name, os.O_RDONLY | os.O_NONBLOCK)
            status = os.fstat(fd)
        # A hard link can be any other file of this user, which another user has linked here.
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink > 1:
            os.close(fd)
            raise StorageAccessError(
                f"{name} in scratch directory {self._where} is no file that dsort has made",
                hint="another program has put it there: check who may write to that directory",
            )
        return fd

    def open_to_write(self, name: str, flags: int) -> int:
        """Open a file for writing, and make it if it does not exist; return its descriptor.
        ``flags``: more flags for ``os.open``."""
        with StorageErrors(f"write {name}", self._where):
            return self._open(name, flags | os.O_CREAT)

    def open_nameless(self) -> int:
        """Open a file without a name for reading and writing; return its descriptor."""
        return self._open(".", os.O_RDWR | os.O_TMPFILE)

    def read(self, name: str, *, bytes_max: int = _SMALL_BYTES_MAX) -> bytes:
        """The whole content of a small file."""
        fd = self.open_to_read(name)
        with StorageErrors(f"read {name}", self._where), open(fd, "rb") as file:
            data = file.read(bytes_max + 1)
        if len(data) > bytes_max:
            raise StorageError(f"{name} in {self._where} is larger than {bytes_max:,} bytes")
        return data

    def write(self, name: str, *pieces: Buffer) -> None:
        """Store a file: it appears whole or not at all."""
        # The name has the process id, because several processes may write one file at once.
        part = f"{name}.{os.getpid()}.part"
        with StorageErrors(f"write {name}", self._where):
            with open(self._open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
                for piece in pieces:
                    file.write(piece)
            self.rename(part, name)

    def append(self, name: str, data: bytes) -> None:
        """Add ``data`` to the end of a file, in one piece."""
        with (
            StorageErrors(f"write {name}", self._where),
            # Unbuffered: one call of the kernel, so that lines of several processes do not mix.
            open(self._open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab", 0) as file,
        ):
            file.write(data)

    def rename(self, name: str, new: str) -> None:
        """Rename a file, and replace a file that has the new name. ``OSError`` is not converted."""
        os.rename(name, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def unlink(self, name: str) -> None:
        """Remove a file, if it exists."""
        with StorageErrors(f"remove {name}", self._where), contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)

    def has(self, name: str) -> bool:
        """Whether there is a regular file ``name``."""
        try:
            status = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return stat.S_ISREG(status.st_mode)

    def written_ns(self, name: str) -> int:
        """The time of the last write to a file, in ns since 1970."""
        with StorageErrors(f"find {name}", self._where):
            return os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_mtime_ns

    def size_bytes(self, name: str) -> int:
        """The length of a file in bytes."""
        with StorageErrors(f"find {name}", self._where):
            return os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_size

    def names(self) -> list[str]:
        """The names of all entries, sorted."""
        with (
            StorageErrors("list the scratch directory", self._where),
            os.scandir(self._fd) as entries,
        ):
            return sorted(entry.name for entry in entries)

    # -- the directory -----------------------------------------------------------------------

    def free_bytes(self) -> int:
        """The free bytes on its file system that this user may use."""
        with StorageErrors("find the room left", self._where):
            status = os.fstatvfs(self._fd)
        return status.f_bavail * status.f_frsize

    def device(self) -> int:
        """The number of the device of its file system."""
        return os.fstat(self._fd).st_dev

    def clear(self) -> None:
        """Remove all entries; links are removed, not followed."""
        with StorageErrors("clear the scratch directory", self._where):
            remove_entries(self._fd, "")

    def remove(self) -> None:
        """Remove the directory with all entries, and close it. A directory that has replaced it is
        not removed."""
        with contextlib.suppress(StorageError):
            self.clear()
        with contextlib.suppress(OSError):  # it was moved, or has new entries
            there = os.stat(self.path.name, dir_fd=self._parent_fd, follow_symlinks=False)
            if os.path.samestat(there, os.fstat(self._fd)):
                remove_if_empty(self.path.name, self._parent_fd)
        self.close()

    # -- opening -----------------------------------------------------------------------------

    def _open(self, name: str, flags: int) -> int:
        if "/" in name or name == "..":
            raise StorageAccessError(f"{name} is no name of a file in scratch")
        return os.open(name, flags | _FILE, 0o600, dir_fd=self._fd)

    def _open_parent(self, *, make: bool) -> int:
        """Open the directory above. Links are followed only in the part that the user named."""
        base, own = _own_parts(self.path.absolute())
        if make:
            base.mkdir(parents=True, exist_ok=True)
        fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for part in own[:-1]:
            try:
                if make:
                    with contextlib.suppress(FileExistsError):
                        # Other users read the manifest, which is in the job's directory.
                        mode = 0o777 if INTERNAL_PART in own else 0o700
                        os.mkdir(part, mode, dir_fd=fd)
                below = self._enter(part, fd)
            finally:
                os.close(fd)
            fd = below
        return fd

    def _open_own(self, parent_fd: int, *, make: bool) -> int:
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.path.name, 0o700, dir_fd=parent_fd)
        fd = self._enter(self.path.name, parent_fd)
        status = os.fstat(fd)
        wrong = ""
        if status.st_uid != os.geteuid():
            wrong = f"belongs to user {status.st_uid}, not to {os.geteuid()}, who runs the job"
        elif status.st_mode & _OTHERS:
            wrong = f"can be entered by others (mode {stat.S_IMODE(status.st_mode):04o}, not 0700)"
        if wrong:
            os.close(fd)
            raise StorageAccessError(
                f"scratch directory {self._where} {wrong}",
                hint="remove it, or have scratch somewhere else: --scratch",
            )
        return fd

    def _enter(self, part: str, parent_fd: int) -> int:
        try:
            return os.open(part, _DIRECTORY, dir_fd=parent_fd)
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise
            raise StorageAccessError(
                f"{part} on the way to scratch directory {self._where} is a link or a file",
                hint="remove it, or have scratch somewhere else: --scratch",
            ) from None


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)


def _own_parts(path: Path) -> tuple[Path, tuple[str, ...]]:
    """Split ``path`` into the part that a user named, and the part below it that dsort makes.

    The latter is ``.dsort/<job>/scratch``, ``dsort-<job>/<node>``, or the last component alone.
    """
    parents = path.parents
    count = 1
    if len(parents) > 2 and parents[1].name == INTERNAL_PART:
        count = 3
    elif parents[0].name.startswith("dsort-") and not path.name.startswith("dsort-"):
        count = 2
    return parents[count - 1], path.parts[-count:]
