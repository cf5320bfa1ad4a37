"""A shard's file, whose bytes are read into the ``bytes`` that are given out, with no copy
between."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from dsort.closing import ClosesOnExit
from dsort.errors import StorageError
from dsort.storage.bucket import ObjectInfo
from dsort.storage.directory.files import info_of
from dsort.storage.directory.os_errors import storage_error_of

__all__ = ["DirectFile"]


class DirectFile(ClosesOnExit):
    """A file, open for reads of ranges by any number of threads."""

    def __init__(self, fd: int, info: ObjectInfo, where: str) -> None:
        """``fd``: becomes its own. ``where``: its bucket, for errors."""
        self._fd, self._info, self._where = fd, info, where

    @classmethod
    def of(cls, path: Path | None, info: ObjectInfo, where: str) -> DirectFile | None:
        """The file at ``path``; None if there is none, or not the one that ``info`` tells of."""
        if path is None:
            return None
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None  # whoever opens it as its bucket does says what is wrong
        found = info_of(info.name, os.fstat(fd))
        if not found.is_still(info.size_bytes, info.etag):
            os.close(fd)
            return None
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        return cls(fd, info, where)

    def read(self, start: int, size_bytes: int) -> bytes:
        """So many bytes from byte ``start`` on. ``StorageError`` if the file ends too soon."""
        try:
            data = os.pread(self._fd, size_bytes, start)
        except OSError as error:
            raise storage_error_of(error, f"read {self._info.name}", self._where) from error
        if len(data) == size_bytes:
            return data
        whole = bytearray(size_bytes)  # from 2 GiB on, and where the file is shorter by now
        self.read_into(memoryview(whole), start)
        return bytes(whole)

    def contents(self, starts: list[int], sizes: list[int]) -> Iterable[bytes]:
        """The members that begin at ``starts``, each read as it is asked for."""
        return map(self.read, starts, sizes)

    def read_into(self, view: memoryview, start: int) -> None:
        """Fill ``view`` from byte ``start``."""
        done = 0
        while done < len(view):
            try:
                got = os.preadv(self._fd, [view[done:]], start + done)
            except OSError as error:
                raise storage_error_of(error, f"read {self._info.name}", self._where) from error
            if not got:
                self._ended(start + done, start + len(view))
            done += got

    def will_need(self, start: int, size_bytes: int) -> None:
        """A hint that these bytes are read soon: a disk is asked for them in one go. If the last of
        them is in the page cache, all of them are taken to be there: to ask costs 5 µs a MiB."""
        with contextlib.suppress(OSError):
            if os.preadv(self._fd, [bytearray(1)], start + size_bytes - 1, os.RWF_NOWAIT):
                return
        os.posix_fadvise(self._fd, start, size_bytes, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        """Release it. Closing again is harmless."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _ended(self, at: int, wanted: int) -> NoReturn:
        raise StorageError(
            f"{self._info.name} in bucket {self._where} ended at byte {at:,}, {wanted:,} expected"
        )
