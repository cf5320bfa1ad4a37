"""The bytes of one input shard, read once and in order, whatever its size.

A shard that can be mapped or that fits in the worker's buffer is there as one view. A larger one is
scanned window by window and read a second time, in order, when its payload is moved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dsort.containers.tar.scan import TarScanner, scan
from dsort.data.columns import Int64s
from dsort.data.index import Segments
from dsort.data.members import MemberTable
from dsort.scratch.directory import Scratch
from dsort.storage.bucket import ReadObject
from dsort.workers.spool import Spool

__all__ = ["PayloadBuffer", "ShardBytes", "Window"]

WINDOW_ROWS_MAX = 65536
WINDOW_BYTES_MAX = 8 << 20
"""A shard larger than the buffer is read twice. Small windows leave memory to the page cache, so
that the second time it is still there: under a limit both come out of one purse."""


class PayloadBuffer:
    """The one large buffer of a worker, allocated once: fresh memory costs more than the copy."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._array: np.ndarray[tuple[int], np.dtype[np.uint8]] | None = None

    def view(self, size_bytes: int) -> memoryview:
        """The first ``size_bytes`` of the buffer, writable."""
        if self._array is None:
            self._array = np.empty(self.size_bytes, np.uint8)
        return self._array.data[:size_bytes]


@dataclass(frozen=True, slots=True)
class Window:
    """Rows ``row:stop`` lie in ``view``, whose first byte is byte ``base`` of the shard."""

    row: int
    stop: int
    view: memoryview
    base: int


class ShardBytes:
    """One opened input shard."""

    def __init__(
        self,
        name: str,
        source: ReadObject,
        buffer: PayloadBuffer,
        *,
        mapped: bool,
        spool: Scratch | None = None,
    ) -> None:
        """``spool``: the directory for shards that do not fit and are not to be fetched twice."""
        self.name = name
        self.size_bytes = source.info.size_bytes
        self._info = source.info
        self._source: ReadObject | Spool = source
        self._buffer = buffer
        self._window_bytes = min(buffer.size_bytes, WINDOW_BYTES_MAX)
        self.whole: memoryview | None = source.mapping() if mapped else None
        if self.whole is None and self.size_bytes <= buffer.size_bytes:
            self.whole = buffer.view(self.size_bytes)
            source.read_into(self.whole, 0)
            source.forget()  # it is in the buffer
        elif self.whole is None and spool is not None and not source.rereads_cheaply:
            self._source = Spool(source, spool)

    def close(self) -> None:
        """Let go of the view, and of a spool; the source is its opener's."""
        self.whole = None
        if isinstance(self._source, Spool):
            self._source.close()

    def members(self) -> MemberTable:
        """The members of the shard; ``CorruptShardError`` if it cannot be read whole."""
        if self.whole is not None:
            return scan(self.name, self.whole)
        scanner = TarScanner(self.name, self.size_bytes)
        while not scanner.done:
            offset, needed = scanner.next_offset, scanner.window_bytes_min
            size = min(max(self._window_bytes, needed), self.size_bytes - offset)
            if size <= 0:
                break
            # Headers larger than the buffer (the format bounds them) get a window of their own.
            fits = size <= self._buffer.size_bytes
            window = self._buffer.view(size) if fits else memoryview(bytearray(size))
            self._source.read_into(window, offset)
            scanner.feed(window, offset)
        return scanner.finish()

    def at(self, start: int, length: int) -> bytes:
        """A few bytes of the shard."""
        if self.whole is not None:
            return bytes(self.whole[start : start + length])
        data = bytearray(length)
        self._source.read_into(memoryview(data), start)
        return bytes(data)

    def pieces(self) -> Iterator[memoryview]:
        """All bytes of the shard, in order, a buffer at a time."""
        if self.whole is not None:
            yield self.whole
            return
        for at in range(0, self.size_bytes, self._window_bytes):
            window = self._buffer.view(min(self._window_bytes, self.size_bytes - at))
            self._source.read_into(window, at)
            yield window

    def windows(self, segments: Segments) -> Iterator[Window]:
        """Views that between them hold every record of ``segments``, in row order. Each is valid
        until the next. A record too large for the buffer comes as a window without rows and is to
        be read by :meth:`stream`."""
        count = len(segments.offsets) - 1
        if self.whole is not None:
            if count:
                yield Window(0, count, self.whole, 0)
            return
        low, high = _extents(segments)
        row = 0
        while row < count:
            span = slice(row, row + WINDOW_ROWS_MAX)
            lowest = np.minimum.accumulate(low[span])
            highest = np.maximum.accumulate(high[span])
            fits = highest - lowest <= self._window_bytes
            run = len(fits) if fits.all() else int(np.argmin(fits))
            base = int(lowest[run - 1]) if run else 0
            view = self._buffer.view(int(highest[run - 1]) - base if run else 0)
            self._source.read_into(view, base)
            yield Window(row, row + run, view, base)
            row += max(run, 1)

    def stream(self, segments: Segments, row: int) -> Iterator[memoryview]:
        """The bytes of one record, a buffer at a time."""
        literals = np.ascontiguousarray(segments.literals).data
        for i in range(int(segments.offsets[row]), int(segments.offsets[row + 1])):
            start, length = int(segments.start[i]), int(segments.length[i])
            if start < 0:
                yield literals[-1 - start : -1 - start + length]
                continue
            for at in range(start, start + length, self._window_bytes):
                size = min(self._window_bytes, start + length - at)
                window = self._buffer.view(size)
                self._source.read_into(window, at)
                yield window


def _extents(segments: Segments) -> tuple[Int64s, Int64s]:
    """For each record, the first byte in the shard and the byte after its last; literals apart."""
    if len(segments.offsets) < 2:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    real = segments.start >= 0
    first = np.where(real, segments.start, np.iinfo(np.int64).max)
    end = np.where(real, segments.start + segments.length, 0)
    low = np.minimum.reduceat(first, segments.offsets[:-1])
    high = np.maximum.reduceat(end, segments.offsets[:-1])
    return np.minimum(low, high), high
