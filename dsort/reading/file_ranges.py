"""Reads of ranges of one local file, by any number of threads at once."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NoReturn

from dsort.closing import ClosesOnExit
from dsort.errors import StorageError
from dsort.storage.directory.os_errors import storage_error_of

__all__ = ["FileRanges"]


class FileRanges(ClosesOnExit):
    """A file that is read through the page cache, in any order."""

    def __init__(self, fd: int, name: str, where: str) -> None:
        """``fd``: is closed by this object. ``where``: its bucket, for error messages."""
        self._fd, self._name, self._where = fd, name, where

    def read(self, start: int, size_bytes: int) -> bytes:
        """``size_bytes`` bytes from byte ``start`` on, copied once."""
        try:
            data = os.pread(self._fd, size_bytes, start)
        except OSError as error:
            raise storage_error_of(error, f"read {self._name}", self._where) from error
        if len(data) == size_bytes:
            return data
        whole = bytearray(size_bytes)  # pread returned less: it has a limit of 2 GiB, or a file end
        self.read_into(memoryview(whole), start)
        return bytes(whole)

    def contents(self, starts: list[int], sizes: list[int]) -> Iterable[bytes]:
        """The contents of the members that begin at ``starts``; each is read by its ``next()``."""
        return map(self.read, starts, sizes)

    def read_into(self, view: memoryview, start: int) -> None:
        """Fill ``view`` from byte ``start``."""
        done = 0
        while done < len(view):
            try:
                got = os.preadv(self._fd, [view[done:]], start + done)
            except OSError as error:
                raise storage_error_of(error, f"read {self._name}", self._where) from error
            if not got:
                self._ended(start + done, start + len(view))
            done += got

    def will_need(self, start: int, size_bytes: int) -> None:
        """A hint to the kernel that these bytes are read soon, so that a disk reads them at
        once."""
        os.posix_fadvise(self._fd, start, size_bytes, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        """Release the file. Closing again has no effect."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _ended(self, at: int, wanted: int) -> NoReturn:
        raise StorageError(
            f"{self._name} in bucket {self._where} ended at byte {at:,}, {wanted:,} expected"
        )
