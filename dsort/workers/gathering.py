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

__all__ = ["ROWS_AT_ONCE", "SHORT_BYTES_MAX", "are_short", "gathered", "small_argsort", "table_of"]

SHORT_BYTES_MAX = 160
"""Up to this length on average, a copy is cheaper than a slice."""
ROWS_AT_ONCE = 32768
"""So many records at a time: with fewer, there are too few of each length."""
_SMALL = 1 << 16


def are_short(segments: Segments) -> bool:
    """Whether the records are short, and all in the source."""
    count = len(segments.start)
    return (
        count > 1
        and int(segments.length.sum()) <= SHORT_BYTES_MAX * count
        and (len(segments.literals) == 0 or bool((segments.start >= 0).all()))
    )


def gathered(
    views: Mapping[int, memoryview], source: Int32s, segments: Segments, *, base: int = 0
) -> memoryview:
    """The bytes of all ``segments``, in order; record ``i``'s are in ``views[source[i]]``, and
    each view begins at byte ``base``."""
    lengths, starts = segments.length, segments.start - base
    ends = np.cumsum(lengths)
    out = np.empty(int(ends[-1]), np.uint8)
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
    bounds = [0, *(np.flatnonzero(begins) + 1).tolist(), len(lengths)]
    arrays = {each: np.frombuffer(view, np.uint8) for each, view in views.items()}
    (only,) = arrays.values() if of_segment is None else (out,)
    for first, last in pairwise(bounds):
        length = int(lengths[first])
        if length:
            data = only if of_segment is None else arrays[int(of_segment[first])]
            rows = table_of(data, length)[starts[first:last]]
            table_of(out, length)[to[first:last]] = rows
    return out.data


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
