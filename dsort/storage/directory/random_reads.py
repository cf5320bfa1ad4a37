"""Reads of ranges of one file in any order: by several threads at once, or by the kernel.

For ``O_DIRECT``, the file is opened once more through ``/proc/self/fd``, so that it is the same
file even if another file has its name now. File systems without direct reads (some of FUSE, older
tmpfs) are read through the page cache, which gets the hint to keep nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence

from dsort.closing import ClosesOnExit
from dsort.errors import StorageError
from dsort.storage.directory.os_errors import StorageErrors

ALIGNMENT_BYTES = 4096
"""Direct reads, and the memory that they fill, begin and end at multiples of this size, because no
disk has larger blocks."""


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
                        f"{self._name} in bucket {self._bucket} ended at byte {offset + done:,}; "
                        f"{offset + least_bytes:,} bytes were expected"
                    )
                done += got

    def _read_some(self, buffer: memoryview, offset: int) -> int:
        # After a read that ended within a block, the next read is not aligned, so it is not direct.
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


# --------------------------------------------------------------------------------------------------
# Many direct reads at a time without threads: the kernel's own asynchronous I/O.
#
# ``io_submit`` hands a run of reads to the kernel, and ``io_getevents`` waits for some of them. A
# read costs half as much as in a thread, because no thread has to be woken for it. The files have
# to be open with ``O_DIRECT``, because reads of other files would block ``io_submit``.


_NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2), "riscv64": (0, 1, 4, 2)}
"""The numbers of ``io_setup``, ``io_destroy``, ``io_getevents`` and ``io_submit``, for which libc
has no functions."""
# Numbers and structures are those of ``linux/aio_abi.h``.
_PREAD = 0
_READ = struct.Struct("=QIIHhIQQqQII")
"""``struct iocb``: data, key, flags of the read, operation, priority, file, memory, size, offset,
reserved, flags, file to notify."""
_EVENT = struct.Struct("=QQqq")
"""``struct io_event``: data, its iocb, the result, 0."""
_NOT_NOW = (errno.EAGAIN, errno.EINTR)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class KernelReads(ClosesOnExit):
    """Reads that the kernel does, for one thread."""

    def __init__(self, depth: int) -> None:
        """``depth``: the most reads at a time. ``OSError`` if the kernel, or a limit of this
        process, does not allow so many reads, or any reads of this kind."""
        self.depth = depth
        self.in_flight = 0
        self._open = False
        numbers = _NUMBERS.get(platform.machine())
        if numbers is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._setup, self._destroy, self._get, self._submit = map(ctypes.c_long, numbers)
        self._context = ctypes.c_ulong(0)
        self._call(self._setup, ctypes.c_long(depth), ctypes.byref(self._context))
        self._open = True
        self._reads = bytearray(depth * _READ.size)
        self._pointers = (ctypes.c_void_p * depth)()
        first = _address(memoryview(self._reads))
        for number in range(depth):
            self._pointers[number] = first + number * _READ.size
        self._events = bytearray(depth * _EVENT.size)
        self._events_at = ctypes.c_void_p(_address(memoryview(self._events)))

    def begin(self, reads: Sequence[tuple[int, int, memoryview, int]]) -> int:
        """Begin as many of ``reads`` as may be in flight, from the first on; each is (ticket, file
        descriptor, memory to fill, offset). Returns how many were begun. ``OSError`` if the first
        read cannot be begun at all.

        The memory has to stay valid until ``ended`` has returned the ticket."""
        count = min(len(reads), self.depth - self.in_flight)
        for number in range(count):
            ticket, fd, buffer, offset = reads[number]
            place = number * _READ.size
            fields = (ticket, 0, 0, _PREAD, 0, fd, _address(buffer), len(buffer), offset, 0, 0, 0)
            _READ.pack_into(self._reads, place, *fields)
        if not count:
            return 0
        try:
            begun = self._call(
                self._submit, self._context, ctypes.c_long(count), ctypes.byref(self._pointers)
            )
        except OSError as error:
            # With no read in flight, a later call would find no more room: then this is an error.
            if error.errno in _NOT_NOW and self.in_flight:
                return 0
            raise
        self.in_flight += begun
        return begun

    def ended(self, least: int) -> list[tuple[int, int]]:
        """(ticket, bytes read or a negative error number) of reads that have ended. Waits for at
        least ``least`` reads, unless fewer are in flight or a signal arrives."""
        least = min(least, self.in_flight)
        if not least:
            return []
        try:
            count = self._call(
                self._get,
                self._context,
                ctypes.c_long(least),
                ctypes.c_long(self.depth),
                self._events_at,
                None,
            )
        except InterruptedError:
            return []
        self.in_flight -= count
        events = _EVENT.iter_unpack(memoryview(self._events)[: count * _EVENT.size])
        return [(ticket, result) for ticket, _, result, _ in events]

    def close(self) -> None:
        """Wait for the reads in flight, and release the context. Closing again has no effect."""
        if self._open:
            self._open = False
            self._call(self._destroy, self._context)

    def _call(self, number: ctypes.c_long, *arguments: object) -> int:
        result: int = _libc.syscall(number, *arguments)
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result


def _address(buffer: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
