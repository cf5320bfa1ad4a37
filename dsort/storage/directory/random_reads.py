"""Reads of ranges of one file in any order, by several threads at once.

For ``O_DIRECT``, the file is opened once more through ``/proc/self/fd``, so that it is the same
file even if another file has its name now. File systems without direct reads (some of FUSE, older
tmpfs) are read through the page cache, with the hint to keep nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os

from dsort.closing import ClosesOnExit
from dsort.errors import StorageError
from dsort.storage.directory.os_errors import StorageErrors

ALIGNMENT_BYTES = 4096
"""Direct reads, and the memory that they fill, begin and end at multiples of this size: no disk has
larger blocks."""


class LocalRandomReads(ClosesOnExit):
    """A second descriptor of an open file (see :class:`~dsort.storage.bucket.RandomReads`)."""

    def __init__(self, fd: int, name: str, bucket: str) -> None:
        """``fd``: the file, open for reading. It is not closed here."""
        self._name = name
        self._bucket = bucket
        self._cached = self._direct = -1
        place, flags = f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC
        with StorageErrors(f"read {name}", bucket):
            self._cached = os.open(place, flags)
        os.posix_fadvise(self._cached, 0, 0, os.POSIX_FADV_RANDOM)
        with contextlib.suppress(OSError):
            self._direct = os.open(place, flags | os.O_DIRECT)

    @property
    def direct_fd(self) -> int:
        """The descriptor for direct reads; -1 if they are not supported."""
        return self._direct

    def read(self, buffer: memoryview, offset: int, least_bytes: int) -> None:
        """Fill ``buffer`` from byte ``offset``, up to the end of the file. ``StorageError`` unless
        there are ``least_bytes`` bytes."""
        if self._direct >= 0:  # the fast path of nearly all reads, without the error context
            with contextlib.suppress(OSError):
                if os.preadv(self._direct, [buffer], offset) >= least_bytes:
                    return
        done = 0
        with StorageErrors(f"read {self._name}", self._bucket):
            while done < least_bytes:
                got = self._read_some(buffer[done:], offset + done)
                if not got:
                    raise StorageError(
                        f"{self._name} in bucket {self._bucket} ended at byte {offset + done:,}, "
                        f"{offset + least_bytes:,} expected"
                    )
                done += got

    def _read_some(self, buffer: memoryview, offset: int) -> int:
        # After a read that ended within a block, the next one is not aligned, so not direct.
        if self._direct >= 0 and not offset % ALIGNMENT_BYTES:
            try:
                return os.preadv(self._direct, [buffer], offset)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
        got = os.preadv(self._cached, [buffer], offset)
        os.posix_fadvise(self._cached, offset, got, os.POSIX_FADV_DONTNEED)
        return got

    def peek(self, buffer: memoryview, offset: int) -> int:
        """Read a few bytes, which the page cache keeps. Returns the number of bytes read."""
        with StorageErrors(f"read {self._name}", self._bucket):
            return os.preadv(self._cached, [buffer], offset)

    def announce(self, offset: int, size_bytes: int) -> None:
        """Let the kernel read a few bytes into the page cache, without waiting for them."""
        with contextlib.suppress(OSError):
            os.posix_fadvise(self._cached, offset, size_bytes, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        """Release it. Closing again has no effect."""
        fds, self._cached, self._direct = (self._cached, self._direct), -1, -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)
