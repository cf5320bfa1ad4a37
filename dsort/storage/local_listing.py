"""The files under a directory as objects, in byte order of their names."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

from dsort.errors import ObjectNotFoundError
from dsort.storage.base import INTERNAL_PREFIX, ObjectInfo

__all__ = ["info_of", "list_files"]

_INTERNAL = INTERNAL_PREFIX.encode()

_Inode = tuple[int, int]  # device and inode number: which directory it really is
_Entry = tuple[bytes, "os.DirEntry[bytes]"]  # how it sorts, and what it is


def info_of(name: str, status: os.stat_result) -> ObjectInfo:
    """What ``status`` says of the file ``name``."""
    return ObjectInfo(
        name,
        status.st_size,
        status.st_mtime_ns,
        f"{status.st_mtime_ns:x}-{status.st_size:x}-{status.st_ino:x}",
    )


def list_files(root: bytes, prefix: bytes) -> Iterator[ObjectInfo]:
    """The regular files under ``root`` whose names (relative to it) begin with ``prefix``.

    Links to files and to directories count as what they lead to, but a link to a directory that
    the path has already come through is left out: there is no end behind it. So is what is no
    file (sockets, pipes, devices, links to nothing), and what is dsort's own unless ``prefix``
    asks for it. One directory at a time is held in memory. ``ObjectNotFoundError`` without
    ``root``; ``OSError`` as they come, but for files that vanish meanwhile.
    """
    base = prefix[: prefix.rfind(b"/") + 1]
    chain = _chain_of(root, base)
    if chain is None:
        return
    with_internal = prefix.startswith(_INTERNAL)
    levels = [(base, _entries(root, base, prefix))]
    while levels:
        base, entries = levels[-1]
        for key, entry in entries:
            name = base + key
            try:
                status = entry.stat()
            except FileNotFoundError:
                continue  # removed since the directory was read
            if not key.endswith(b"/"):
                yield info_of(os.fsdecode(name), status)
            elif name != _INTERNAL or with_internal:
                inode = _inode_of(status)
                if not (entry.is_symlink() and inode in chain):
                    chain.append(inode)
                    levels.append((name, _entries(root, name, prefix)))
                    break
        else:
            levels.pop()
            chain.pop()


def _chain_of(root: bytes, base: bytes) -> list[_Inode] | None:
    """The directories from ``root`` to ``base``; None if there is none, or links go in a circle."""
    path = Path(os.fsdecode(root))
    if not path.is_dir():
        raise ObjectNotFoundError(f"there is no bucket (directory) {path}")
    chain = [_inode_of(path.stat())]
    for part in base.split(b"/")[:-1]:
        path /= os.fsdecode(part)
        if not path.is_dir() or _inode_of(path.stat()) in chain:
            return None
        chain.append(_inode_of(path.stat()))
    return chain


def _inode_of(status: os.stat_result) -> _Inode:
    return (status.st_dev, status.st_ino)


def _entries(root: bytes, base: bytes, prefix: bytes) -> Iterator[_Entry]:
    """The files and directories of ``base`` that may hold what is asked for, in order.

    A directory's key ends with a slash: that is how it sorts among whole names.
    """
    wanted = prefix[len(base) :]
    found: list[_Entry] = []
    try:
        with os.scandir(root + b"/" + base) as entries:
            for entry in entries:
                if entry.name.startswith(wanted):
                    suffix = _suffix_of(entry)
                    if suffix is not None:
                        found.append((entry.name + suffix, entry))
    except (FileNotFoundError, NotADirectoryError):
        return iter(())  # removed or replaced since its parent was read
    found.sort(key=itemgetter(0))
    return iter(found)


def _suffix_of(entry: os.DirEntry[bytes]) -> bytes | None:
    """Nothing for a file, a slash for a directory; None for what is neither."""
    try:
        if entry.is_file():
            return b""
        return b"/" if entry.is_dir() else None
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link to itself
            return None
        raise
