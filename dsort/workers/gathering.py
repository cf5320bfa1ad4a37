"""Short records, gathered in one piece of memory.

A slice and an entry of a ``pwritev`` cost 1 µs a record whatever its size; to copy a byte by an
index costs 4 ns. Longer records are left to the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dsort.data.columns import Int32s, Int64s
from dsort.data.index import Segments

__all__ = ["SHORT_BYTES_MAX", "are_short", "gathered"]

SHORT_BYTES_MAX = 160
"""Up to this length on average, a copy is cheaper than a slice."""


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
    lengths = segments.length
    ends = np.cumsum(lengths)
    of_segment = np.repeat(source, np.diff(segments.offsets))
    out = np.empty(int(ends[-1]), np.uint8)
    for each, view in views.items():
        rows = np.flatnonzero(of_segment == each)
        if len(rows):
            data = np.frombuffer(view, np.uint8)
            to = _places(ends[rows] - lengths[rows], lengths[rows])
            out[to] = data[_places(segments.start[rows] - base, lengths[rows])]
    return out.data


def _places(starts: Int64s, lengths: Int64s) -> Int64s:
    """The places ``starts[i]`` to ``starts[i] + lengths[i] - 1``, one after the other."""
    ends = np.cumsum(lengths)
    places: Int64s = np.repeat(starts - (ends - lengths), lengths)
    places += np.arange(len(places))
    return places
