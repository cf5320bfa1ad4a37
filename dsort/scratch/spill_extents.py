"""Where one partition's blocks lie in the spill files of this node: runs that are read whole.

Blocks of a partition are in shard order, but those of one worker lie side by side in its file. So
files are read as they are, in aligned runs, and records are found by the places of their blocks.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dsort.closing import ClosesOnExit
from dsort.data.columns import Int64s
from dsort.errors import StorageError
from dsort.storage.directory.os_errors import StorageErrors
from dsort.storage.directory.random_reads import ALIGNMENT_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class SpillExtents:
    """Runs of the spill files, shape ``(n,)``: bytes ``begin:end`` of the file of ``worker`` are
    wanted at ``place`` of a buffer of ``size_bytes``. ``begin`` and ``place`` are multiples of
    4,096; there is room up to the next multiple behind ``end``.

    ``shift``, shape ``(blocks,)``: how much further on each block is in the buffer than it would be
    if they followed one another.
    """

    worker: Int64s
    begin: Int64s
    end: Int64s
    place: Int64s
    size_bytes: int
    shift: Int64s

    def reads(self, step_bytes: int) -> Iterator[tuple[int, int, int, int, int]]:
        """(worker, offset in its file, place in the buffer, size, how many of these bytes there
        are at least), ``step_bytes`` at most each."""
        columns = (each.tolist() for each in (self.worker, self.begin, self.end, self.place))
        for worker, begin, end, place in zip(*columns, strict=True):
            for at in range(begin, end, step_bytes):
                size = min(step_bytes, end + -end % ALIGNMENT_BYTES - at)
                yield worker, at, place + at - begin, size, min(size, end - at)


def spill_extents(worker: Int64s, start: Int64s, size_bytes: Int64s) -> SpillExtents:
    """The runs that hold blocks of ``size_bytes`` from ``start`` of the files of ``worker``."""
    order = np.lexsort((start, worker))
    order = order[size_bytes[order] > 0]
    of, begin = worker[order], start[order] // ALIGNMENT_BYTES * ALIGNMENT_BYTES
    end = start[order] + size_bytes[order]
    first = np.ones(len(order), np.bool_)
    first[1:] = (of[1:] != of[:-1]) | (begin[1:] > _aligned(end[:-1]))
    heads = np.flatnonzero(first)
    lasts = np.append(heads[1:], len(order)) - 1 if len(order) else heads
    lengths = _aligned(end[lasts]) - begin[heads]
    place = np.cumsum(lengths) - lengths
    run = np.cumsum(first) - 1
    shift = np.zeros(len(start), np.int64)
    in_order = np.cumsum(size_bytes) - size_bytes
    shift[order] = place[run] + start[order] - begin[heads][run] - in_order[order]
    total = int(lengths.sum())
    return SpillExtents(of[heads], begin[heads], end[lasts], place, total, shift)


def _aligned(size: Int64s) -> Int64s:
    return size + -size % ALIGNMENT_BYTES


class SpillFile(ClosesOnExit):
    """A spill file that is read once (see :class:`~dsort.storage.bucket.RandomReads`)."""

    def __init__(self, fd: int, name: str, where: str, *, direct: bool) -> None:
        """``fd``: the file, open for reading; closed with this one. ``direct``: past the page
        cache, where the file system can do that."""
        self._fd = fd
        self._name = name
        self._where = where
        self._direct = -1
        if not direct:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            return
        with contextlib.suppress(OSError):
            self._direct = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)

    @property
    def direct_fd(self) -> int:
        """The file for direct reads; -1 if there are none of it."""
        return self._direct

    def read(self, buffer: memoryview, offset: int, least_bytes: int) -> None:
        """Fill ``buffer`` from byte ``offset``, as far as the file goes."""
        done = 0
        with StorageErrors(f"read {self._name}", self._where):
            while done < least_bytes:
                got = self._read_some(buffer[done:], offset + done)
                if not got:
                    raise StorageError(f"{self._name} in scratch ends at byte {offset + done:,}")
                done += got

    def _read_some(self, buffer: memoryview, offset: int) -> int:
        if self._direct >= 0 and not offset % ALIGNMENT_BYTES:
            with contextlib.suppress(OSError):
                return os.preadv(self._direct, [buffer], offset)
        return os.preadv(self._fd, [buffer], offset)

    def forget(self) -> None:
        """What was read is in a buffer: give its pages back."""
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Release it. Closing again is harmless."""
        fds, self._fd, self._direct = (self._fd, self._direct), -1, -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)
