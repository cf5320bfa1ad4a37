"""Gathers short records in one piece of memory.

A slice, and an entry of a ``pwritev``, cost half a microsecond per record, whatever its size. So
memory is viewed as a table of overlapping rows (one begins at each byte), and NumPy copies whole
rows. All rows are as long as the longest record. They are written in order, so that each row
overwrites the excess bytes of the row before it: NumPy assigns in the order of indices. Longer
records are gathered by the kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from itertools import pairwise
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dsort.data.columns import Int32s, Int64s, UInt8s
from dsort.data.segments import Segments

SHORT_BYTES_MAX = 512
"""Up to this average length, two copies by NumPy are cheaper than a slice."""
ROWS_AT_ONCE = 16384
GATHERED_BYTES: Final = 1 << 20
"""The bytes gathered at a time: they stay in the processor's cache until they are written."""
_VIEWS_MAX: Final = 16
_PUT_AT_ONCE: Final = 4096
_SPARE_SHARE: Final = 3
"""Rows as long as the longest record are used if they have at most so many times the bytes."""
_PIECE_BYTES: Final = 64
"""Otherwise rows are so many bytes longer than the average record, and longer records are divided
into several rows."""
_SMALL, _SMALLEST = 1 << 16, 1 << 8
_TABLES_MAX = 4096


def are_short(segments: Segments) -> bool:
    """Whether the records are short, and have no literals."""
    count = len(segments.start)
    return (
        count > 1
        and int(segments.length.sum()) <= SHORT_BYTES_MAX * count
        and (len(segments.literals) == 0 or bool((segments.start >= 0).all()))
    )


def rows_at_once(segments: Segments, views: int = 1) -> int:
    """The number of records of ``segments``, which are short, to gather at a time. Several
    ``views`` multiply it: that takes a tenth less time than the same number from all views."""
    rows = GATHERED_BYTES * len(segments.start) // max(int(segments.length.sum()), 1)
    return max(min(rows, ROWS_AT_ONCE), 1) * min(views, _VIEWS_MAX)


class Gatherer:
    """Gathers short records, some at a time, into memory that is used again: a result is valid
    until the next call. If there is one view, the gatherer keeps a reference to it."""

    def __init__(self) -> None:
        self._out = self._only = _Rows(np.empty(0, np.uint8))
        self._view: memoryview | None = None

    def gathered(
        self, views: Mapping[int, memoryview], source: Int32s, segments: Segments, *, base: int = 0
    ) -> memoryview:
        """The bytes of all ``segments``, in order. The segments of record ``i`` are in
        ``views[source[i]]``, and each view begins at byte ``base``."""
        lengths, starts = segments.length, segments.start - base
        ends = np.cumsum(lengths)
        total, longest = int(ends[-1]), int(lengths.max())
        if not total:
            return memoryview(b"")
        width = longest
        if width * len(lengths) > _SPARE_SHARE * total:
            width = min(width, total // len(lengths) + _PIECE_BYTES)
        if total + width > len(self._out.data):
            self._out = _Rows(np.empty(total + width + total // 8, np.uint8))
        of_segment = None
        if len(views) > 1:
            of_segment = source
            if len(source) != len(lengths):
                of_segment = np.repeat(source, np.diff(segments.offsets))
        wanted = _Wanted(starts, lengths, ends - lengths, of_segment)
        if width < longest:
            wanted = wanted.in_pieces(width)
        late = self._put_overlapping(views, wanted, width)
        if len(late.starts):
            self._put_by_length(views, late)
        return self._out.data.data[:total]

    def _put_overlapping(
        self, views: Mapping[int, memoryview], wanted: _Wanted, width: int
    ) -> _Wanted:
        """Copy ``width`` bytes for each segment, in order: each row overwrites the excess of the
        row before it. Return the segments that are too close to the end of their view for that."""
        out, late = self._out.of(width), np.zeros(0, np.int64)
        if wanted.view is not None:
            rows, late = _rows_of_views(views, wanted, width)
            for at in range(0, len(rows), _PUT_AT_ONCE):
                out[wanted.to[at : at + _PUT_AT_ONCE]] = rows[at : at + _PUT_AT_ONCE]
            return wanted.take(late)
        (view,) = views.values()
        starts, last = wanted.starts, len(view) - width
        if int(starts.max()) > last:
            late, starts = np.flatnonzero(starts > last), np.minimum(starts, last)
        table = self._rows_of(view).of(width)
        for at in range(0, len(starts), _PUT_AT_ONCE):
            out[wanted.to[at : at + _PUT_AT_ONCE]] = table[starts[at : at + _PUT_AT_ONCE]]
        return wanted.take(late)

    def _put_by_length(self, views: Mapping[int, memoryview], wanted: _Wanted) -> None:
        """Copy segments in groups of equal length."""
        order = small_argsort(wanted.lengths)
        of_segment = None
        if wanted.view is not None:
            order = order[small_argsort(wanted.view[order])]
            of_segment = wanted.view[order]
        lengths = wanted.lengths[order]
        starts, to = wanted.starts[order], wanted.to[order]
        begins = lengths[1:] != lengths[:-1]
        if of_segment is not None:
            begins |= of_segment[1:] != of_segment[:-1]
        firsts = np.append(0, np.flatnonzero(begins) + 1)
        bounds = pairwise([*firsts.tolist(), len(lengths)])
        runs = zip(bounds, lengths[firsts].tolist(), strict=True)
        if of_segment is None:
            (view,) = views.values()
            only = self._rows_of(view)
            for (first, last), length in runs:
                if length:
                    self._out.of(length)[to[first:last]] = only.of(length)[starts[first:last]]
            return
        # Tables for each view and length would take more memory than the records.
        arrays = {each: np.frombuffer(view, np.uint8) for each, view in views.items()}
        for (first, last), length in runs:
            if length:
                rows = table_of(arrays[int(of_segment[first])], length)[starts[first:last]]
                self._out.of(length)[to[first:last]] = rows

    def _rows_of(self, view: memoryview) -> _Rows:
        if self._view is not view:
            self._view, self._only = view, _Rows(np.frombuffer(view, np.uint8))
        return self._only


class _Wanted(Struct, frozen=True, eq=False):
    """Segments: their places in their views, their lengths, and their places in the result.
    ``view``: the number of each segment's view; None: there is only one view."""

    starts: Int64s
    lengths: Int64s
    to: Int64s
    view: Int32s | None

    def in_pieces(self, size_bytes: int) -> _Wanted:
        """The same segments; those longer than ``size_bytes`` are divided into such pieces."""
        counts = -(-self.lengths // size_bytes)
        ends = np.cumsum(counts)
        of = np.repeat(np.arange(len(counts)), counts)
        skipped = (np.arange(len(of)) - (ends - counts)[of]) * size_bytes
        long = self.take(of)
        lengths = np.minimum(long.lengths - skipped, size_bytes)
        return _Wanted(long.starts + skipped, lengths, long.to + skipped, long.view)

    def take(self, rows: Int64s) -> _Wanted:
        """The segments ``rows``."""
        view = None if self.view is None else self.view[rows]
        return _Wanted(self.starts[rows], self.lengths[rows], self.to[rows], view)


def _rows_of_views(
    views: Mapping[int, memoryview], wanted: _Wanted, width: int
) -> tuple[NDArray[np.void], Int64s]:
    """Return (``width`` bytes from the start of each segment, for several views; the segments that
    are closer to the end of their view, whose rows are left empty)."""
    assert wanted.view is not None
    rows = np.empty(len(wanted.starts), _row_of(width))
    late = [np.zeros(0, np.int64)]
    order = small_argsort(wanted.view)
    of_view = wanted.view[order]
    firsts = np.flatnonzero(np.diff(of_view, prepend=-1))
    bounds = pairwise([*firsts.tolist(), len(order)])
    for (first, stop), number in zip(bounds, of_view[firsts].tolist(), strict=True):
        at, view = order[first:stop], views[number]
        starts, last = wanted.starts[at], len(view) - width
        if int(starts.max()) > last:
            late.append(at[starts > last])
            at, starts = at[starts <= last], starts[starts <= last]
        rows[at] = table_of(np.frombuffer(view, np.uint8), width)[starts]
    return rows, np.concatenate(late)


def gathered(
    views: Mapping[int, memoryview], source: Int32s, segments: Segments, *, base: int = 0
) -> memoryview:
    """:meth:`Gatherer.gathered`, for a single call."""
    return Gatherer().gathered(views, source, segments, base=base)


class _Rows:
    """An array as tables, by the length of rows. Each table is made once, which takes 1 µs."""

    def __init__(self, data: UInt8s) -> None:
        self.data = data
        self._tables: dict[int, NDArray[np.void]] = {}

    def of(self, length: int) -> NDArray[np.void]:
        """The table with rows of ``length`` bytes, see :func:`table_of`."""
        table = self._tables.get(length)
        if table is None:
            if len(self._tables) >= _TABLES_MAX:
                self._tables.clear()
            table = self._tables[length] = table_of(self.data, length)
        return table


def table_of(data: UInt8s, length: int) -> NDArray[np.void]:
    """``data`` as a table: row ``i`` is the ``length`` bytes from byte ``i`` on. All rows are
    inside ``data``."""
    return np.ndarray((max(len(data) - length + 1, 0),), _row_of(length), data, 0, (1,))


@functools.lru_cache(1024)
def _row_of(length: int) -> np.dtype[np.void]:
    return np.dtype((np.void, length))


def small_argsort(values: NDArray[np.integer]) -> Int64s:
    """A stable argsort of numbers >= 0. If all are below 65,536, it takes a tenth of the time; if
    all are below 256, half of that."""
    largest = int(values.max()) if len(values) else 0
    if largest < _SMALL:
        values = values.astype(np.uint8 if largest < _SMALLEST else np.uint16)
    return np.argsort(values, kind="stable")
