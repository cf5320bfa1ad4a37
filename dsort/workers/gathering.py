"""Short records, gathered in one piece of memory.

A slice and an entry of a ``pwritev`` cost 1 µs a record whatever its size. Records of one length
are rows of a table whose rows overlap, which NumPy takes and puts by copies of whole rows: a third
of what copying byte by byte costs. Longer records are left to the kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dsort.data.columns import Int32s, Int64s, UInt8s
from dsort.data.index import Segments

__all__ = [
    "ROWS_AT_ONCE",
    "SHORT_BYTES_MAX",
    "Gatherer",
    "are_short",
    "gathered",
    "small_argsort",
    "table_of",
]

SHORT_BYTES_MAX = 160
"""Up to this length on average, a copy is cheaper than a slice."""
ROWS_AT_ONCE = 16384
"""So many records at a time: with fewer, there are too few of each length; more would not stay in
the processor's cache."""
_SMALL = 1 << 16
_TABLES_MAX = 4096


def are_short(segments: Segments) -> bool:
    """Whether the records are short, and all in the source."""
    count = len(segments.start)
    return (
        count > 1
        and int(segments.length.sum()) <= SHORT_BYTES_MAX * count
        and (len(segments.literals) == 0 or bool((segments.start >= 0).all()))
    )


class Gatherer:
    """Gathers short records, some at a time, into memory that it uses again: what it gives is valid
    until it is asked for more. Where there is one view, it holds on to it."""

    def __init__(self) -> None:
        self._out = self._only = _Rows(np.empty(0, np.uint8))
        self._view: memoryview | None = None

    def gathered(
        self, views: Mapping[int, memoryview], source: Int32s, segments: Segments, *, base: int = 0
    ) -> memoryview:
        """The bytes of all ``segments``, in order; record ``i``'s are in ``views[source[i]]``, and
        each view begins at byte ``base``."""
        lengths, starts = segments.length, segments.start - base
        ends = np.cumsum(lengths)
        total = int(ends[-1])
        if total > len(self._out.data):
            self._out = _Rows(np.empty(total + total // 8, np.uint8))
        order = small_argsort(lengths)
        of_segment = None
        if len(views) > 1:
            of_segment = source
            if len(source) != len(lengths):
                of_segment = np.repeat(source, np.diff(segments.offsets))
            order = order[small_argsort(of_segment[order])]
            of_segment = of_segment[order]
        lengths = lengths[order]
        starts, to = starts[order], (ends - segments.length)[order]
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
        else:
            # Tables of many views by many lengths would be more than the records.
            arrays = {each: np.frombuffer(view, np.uint8) for each, view in views.items()}
            for (first, last), length in runs:
                if length:
                    rows = table_of(arrays[int(of_segment[first])], length)[starts[first:last]]
                    self._out.of(length)[to[first:last]] = rows
        return self._out.data.data[:total]

    def _rows_of(self, view: memoryview) -> _Rows:
        if self._view is not view:
            self._view, self._only = view, _Rows(np.frombuffer(view, np.uint8))
        return self._only


def gathered(
    views: Mapping[int, memoryview], source: Int32s, segments: Segments, *, base: int = 0
) -> memoryview:
    """:meth:`Gatherer.gathered`, once."""
    return Gatherer().gathered(views, source, segments, base=base)


class _Rows:
    """One array as tables, by the length of their rows; each is made once, which takes 1 µs."""

    def __init__(self, data: UInt8s) -> None:
        self.data = data
        self._tables: dict[int, NDArray[np.void]] = {}

    def of(self, length: int) -> NDArray[np.void]:
        """Its table of rows of ``length`` bytes, see :func:`table_of`."""
        table = self._tables.get(length)
        if table is None:
            if len(self._tables) >= _TABLES_MAX:
                self._tables.clear()
            table = self._tables[length] = table_of(self.data, length)
        return table


def table_of(data: UInt8s, length: int) -> NDArray[np.void]:
    """``data`` as a table: row ``i`` is the ``length`` bytes from ``i`` on. All of it is inside."""
    return np.ndarray((max(len(data) - length + 1, 0),), _row_of(length), data, 0, (1,))


@functools.lru_cache(1024)
def _row_of(length: int) -> np.dtype[np.void]:
    return np.dtype((np.void, length))


def small_argsort(values: NDArray[np.integer]) -> Int64s:
    """A stable argsort of numbers from 0 on; those below 65,536 take a tenth of the time."""
    if len(values) and int(values.max()) < _SMALL:
        values = values.astype(np.uint16)
    return np.argsort(values, kind="stable")
