"""What dsort needs of Linux that Python does not offer, or not in one call."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable
from pathlib import Path

__all__ = [
    "link_or_move",
    "rename_to_free_name",
    "reserve_room",
    "start_writeback",
    "sync_directories",
]

_FALLOC_FL_KEEP_SIZE = 1
_RENAME_NOREPLACE = 1
_AT_FDCWD = -100
_SYNC_FILE_RANGE_WRITE = 2

# What file systems answer that do not know the call; then we do without.
_NOT_OFFERED = frozenset(
    {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV, errno.EPERM, errno.ESPIPE}
)
_NO_HARD_LINKS = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.EMLINK})

_libc = ctypes.CDLL(None, use_errno=True)


def reserve_room(fd: int, size_bytes: int) -> None:
    """Have the file system set ``size_bytes`` aside for ``fd``; its length does not change.

    ``OSError`` (``ENOSPC``, ``EDQUOT``) if there is no such room; nothing happens where a file
    system has no such thing. Measured on ext4 with 64 MB files: writing gets 3 to 15 % faster,
    never slower. ``os.posix_fallocate`` is no substitute: where the file system cannot do it, libc
    writes into every block, and would race with the writes of other processes.
    """
    if size_bytes <= 0:
        return
    # Asked first, because a call that fails half-way keeps what it got, and the disk stays full.
    room = os.fstatvfs(fd)
    held_bytes = os.fstat(fd).st_blocks * 512
    if size_bytes - held_bytes > room.f_bavail * room.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    while _libc.fallocate(fd, _FALLOC_FL_KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(size_bytes)):
        code = ctypes.get_errno()
        if code in _NOT_OFFERED:
            return
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


def start_writeback(fd: int, offset: int, size_bytes: int) -> None:
    """Have the kernel begin to write a range of dirty pages to the disk, without waiting for it.

    A hint: where it is not offered, nothing happens.
    """
    _libc.sync_file_range(
        fd, ctypes.c_int64(offset), ctypes.c_int64(size_bytes), _SYNC_FILE_RANGE_WRITE
    )


def rename_to_free_name(source: Path, target: Path) -> None:
    """Rename ``source`` to ``target`` in one step; ``FileExistsError`` if that name is taken.

    By hard link and unlink, which nearly every file system can do (a process killed between the
    two leaves both names, and doing it again ends it); else by ``renameat2`` (FAT, exFAT).
    """
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        if not os.path.samestat(source.lstat(), target.lstat()):
            raise
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        _renameat2(source, target)
        return
    source.unlink()


def link_or_move(source: Path, target: Path) -> None:
    """Have ``target`` be what ``source`` is, in place of whatever ``target`` was: by a hard link,
    which leaves ``source`` its name; where a file system has none, by a rename."""
    try:
        if os.path.samestat(source.lstat(), target.lstat()):
            return
        target.unlink()
    except FileNotFoundError:
        pass  # one of them is not there: of which, the next call tells
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        source.rename(target)


def _renameat2(source: Path, target: Path) -> None:
    call = getattr(_libc, "renameat2", None)  # glibc has it since 2.28
    if call is None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    if call(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE):
        code = ctypes.get_errno()
        code = errno.EOPNOTSUPP if code == errno.EINVAL else code  # file system without the flag
        raise OSError(code, os.strerror(code))


def sync_directories(directories: Iterable[Path]) -> None:
    """Return once the names in ``directories`` survive a power cut."""
    for directory in sorted(directories):
        try:
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # emptied and removed since
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file system that has no such thing
                raise
        finally:
            os.close(fd)
