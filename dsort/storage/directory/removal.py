"""Removing files under a directory, or moving one out of it, without following any link on the way.

Every step is relative to an open directory, and no link is followed on the way, so that nothing
outside can be hit even if somebody swaps a directory for a link meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from pathlib import Path

from dsort.errors import StorageAccessError

__all__ = ["move_out", "remove_below", "remove_entries", "remove_if_empty"]

_NOT_EMPTY = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.EBUSY})


def remove_below(root: Path, parts: Sequence[str], name_prefix: str) -> None:
    """Remove what begins with ``name_prefix`` in the directory ``parts`` under ``root``.

    Then each directory of ``parts`` that is empty goes, from the last to the first. ``root``
    stays. ``FileNotFoundError`` without ``root``; ``OSError`` as they come.
    """
    fds = [os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
    try:
        with contextlib.suppress(FileNotFoundError):
            for part in parts:
                fds.append(_open_directory(part, fds[-1]))
            remove_entries(fds[-1], name_prefix)
        while len(fds) > 1:
            os.close(fds.pop())
            remove_if_empty(parts[len(fds) - 1], fds[-1])
    finally:
        for fd in fds:
            os.close(fd)


def move_out(root: Path, parts: Sequence[str], name: str, target: Path) -> None:
    """Rename ``name`` in the directory ``parts`` under ``root`` to ``target``, whatever has that
    name. ``OSError`` as they come."""
    fds = [os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
    try:
        for part in parts:
            fds.append(_open_directory(part, fds[-1]))
        os.replace(name, target, src_dir_fd=fds[-1])
    finally:
        for fd in fds:
            os.close(fd)


def remove_if_empty(directory: Path | str, parent_fd: int | None = None) -> None:
    """Remove a directory if nothing is in it (any more)."""
    try:
        os.rmdir(directory, dir_fd=parent_fd)
    except OSError as error:
        if error.errno not in _NOT_EMPTY:
            raise


def _open_directory(name: str, parent_fd: int) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=parent_fd)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        raise StorageAccessError(
            f"{name} is a link or a file where dsort keeps a directory of its own",
            hint="dsort removes nothing behind links: look at it and remove it by hand",
        ) from error


def remove_entries(directory_fd: int, name_prefix: str) -> None:
    """Remove what begins with ``name_prefix`` in an open directory, directories with all that is
    in them. ``OSError`` as they come."""
    with os.scandir(directory_fd) as entries:
        found = [entry for entry in entries if entry.name.startswith(name_prefix)]
    for entry in found:
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=directory_fd)
                continue
            fd = _open_directory(entry.name, directory_fd)
            try:
                remove_entries(fd, "")
            finally:
                os.close(fd)
            remove_if_empty(entry.name, directory_fd)
