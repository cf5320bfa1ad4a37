"""The files under a directory as objects, in byte order of their names."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

from dsort.errors import ObjectNotFoundError
from dsort.storage.bucket import INTERNAL_PREFIX, ObjectInfo

__all__ = ["info_of", "list_broken_links", "list_files", "receipt_of"]

_INTERNAL = INTERNAL_PREFIX.encode()

_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

_Inode = tuple[int, int]  # device and inode number: which directory it really is
_Entry = tuple[bytes, "os.DirEntry[bytes]"]  # how it sorts, and what it is


def info_of(name: str, status: os.stat_result) -> ObjectInfo:
    """What ``status`` says of the file ``name``."""
    return ObjectInfo(
        name,
        status.st_size,
        status.st_mtime_ns,
        f"{receipt_of(status)}-c{status.st_ctime_ns:x}",
    )


def receipt_of(status: os.stat_result) -> str:
    """What is the same of a file under all of its names: renaming it changes its ctime."""
    return f"{status.st_mtime_ns:x}-{status.st_size:x}-{status.st_ino:x}"


def list_files(root: bytes, prefix: bytes) -> Iterator[ObjectInfo]:
    """The regular files under ``root`` whose names (relative to it) begin with ``prefix``.

    Links to files and to directories count as what they lead to, but a link to a directory that
    the path has already come through is left out: there is no end behind it. So is what is no
    file (sockets, pipes, devices, links to nothing: see ``list_broken_links``), and what is
    dsort's own unless ``prefix`` asks for it. One directory at a time is held in memory.
    ``ObjectNotFoundError`` without ``root``; ``OSError`` as they come, but for files that vanish
    meanwhile.
    """
    for name, status in _walk(root, prefix):
        if status is not None:
            yield info_of(os.fsdecode(name), status)


def list_broken_links(root: Path, prefix: str) -> Iterator[str]:
    """The links to nothing (or to themselves) among the names that begin with ``prefix``, where
    ``list_files`` would show a file if there were one. Errors as there."""
    for name, status in _walk(os.fsencode(root), os.fsencode(prefix), links_only=True):
        if status is None:
            yield os.fsdecode(name)


def _walk(
    root: bytes, prefix: bytes, *, links_only: bool = False
) -> Iterator[tuple[bytes, os.stat_result | None]]:
    """Files and what they are; None for links to nothing. ``links_only``: what is no link is not
    looked at."""
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
            if links_only and not key.endswith(b"/") and not entry.is_symlink():
                continue
            try:
                status = entry.stat()
            except OSError as error:
                if error.errno not in _NOTHING_THERE:
                    raise
                if entry.is_symlink():
                    yield name, None
                continue  # else removed since the directory was read
            if not key.endswith(b"/"):
                yield name, status
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
    """Nothing for a file or a link to nothing, a slash for a directory; None for the rest."""
    try:
        if entry.is_file():
            return b""
        if entry.is_dir():
            return b"/"
        if entry.is_symlink():
            entry.stat()
    except OSError as error:
        if error.errno in _NOTHING_THERE:
            return b"" if entry.is_symlink() else None
        raise
    return None
