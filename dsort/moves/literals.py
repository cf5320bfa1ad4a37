"""Small records with literals, as most are that were converted, put together in memory.

Literals of one length are rows of a table, which become bytes all at once: 20 ns each, where a
slice takes 250.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat

import numpy as np

from dsort.containers.base import Container
from dsort.data.columns import Int32s, Int64s, UInt8s
from dsort.data.segments import Segments
from dsort.moves.gathering import table_of
from dsort.moves.source import slices_of_sources

JOINED_BYTES_MAX = 16 << 10
"""Larger records, on average, are not put together."""
AT_ONCE_BYTES = 1 << 20
"""So much of them at a time: it stays in the processor's cache until it is hashed and written."""
LENGTHS_MAX = 64
"""With literals of more lengths, a table for each costs more than slices."""


def slices_with_literals(
    container: Container,
    views: Mapping[int, memoryview],
    source: Int32s,
    segments: Segments,
    stored_bytes: Int64s,
    *,
    seals: bool,
) -> Iterator[Sequence[memoryview]]:
    """The bytes of records as slices, some of them at a time; record ``i``'s segments are in
    ``views[source[i]]``, and it takes ``stored_bytes[i]``. ``seals``: records that begin with a
    literal were converted, and have room for their seal, which is made here; others are whole."""
    ends, offsets = np.cumsum(stored_bytes), segments.offsets
    is_open = (segments.start[offsets[:-1]] < 0) & seals
    is_large = int(ends[-1]) > JOINED_BYTES_MAX * len(ends)
    if is_large and not is_open.any():
        yield slices_of_sources(views, source, segments)
        return
    large = slices_of_sources(views, source, segments) if is_large else []
    pieces = [] if is_large else _pieces(views, source, segments)
    row = done = 0
    while row < len(ends):
        stop = max(int(np.searchsorted(ends, done + AT_ONCE_BYTES, side="right")), row + 1)
        first, last = offsets[[row, stop]].tolist()
        rows = row + np.flatnonzero(is_open[row:stop])
        if is_large:
            bounds = offsets[rows] - first, offsets[rows + 1] - first
            yield seal_apart(container, large[first:last], *bounds)
        else:
            data = bytearray().join(pieces[first:last])
            if len(rows):
                begins = ends[rows] - stored_bytes[rows] - done
                seal_within(container, np.frombuffer(data, np.uint8), begins, ends[rows] - done)
            yield [memoryview(data)]
        row, done = stop, int(ends[stop - 1])


def _pieces(
    views: Mapping[int, memoryview], source: Int32s, segments: Segments
) -> list[memoryview | bytes]:
    """One piece a segment, in order."""
    is_literal = segments.start < 0
    literals, ranges = np.flatnonzero(is_literal), np.flatnonzero(~is_literal)
    lengths = segments.length[literals]
    kinds = np.unique(lengths).tolist()
    if len(kinds) > LENGTHS_MAX:
        return [*slices_of_sources(views, source, segments)]
    own = np.ascontiguousarray(segments.literals)
    of_segment = np.repeat(source, np.diff(segments.offsets))[ranges]
    alone = Segments(
        np.arange(len(ranges) + 1), segments.start[ranges], segments.length[ranges], own[:0]
    )
    found: list[memoryview | bytes] = [*slices_of_sources(views, of_segment, alone)]
    places = [ranges]
    for length in kinds:
        rows = literals[lengths == length]
        found += table_of(own, length)[-1 - segments.start[rows]].tolist()
        places.append(rows)
    count = len(ranges)
    if len(kinds) == 1 and len(literals) == count and bool(is_literal[::2].all()):
        pieces = found.copy()
        pieces[::2], pieces[1::2] = found[count:], found[:count]
        return pieces
    order = np.argsort(np.concatenate(places))
    return list(map(found.__getitem__, order.tolist()))


def seal_within(container: Container, data: UInt8s, starts: Int64s, stops: Int64s) -> None:
    """Write the seals of records ``data[starts[i] : stops[i]]``."""
    size, view = container.seal_bytes, data.data
    places = map(slice, (starts + container.seal_skips_bytes).tolist(), (stops - size).tolist())
    sums = map(container.seal_checksum, map(view.__getitem__, places), repeat(0))
    seals = container.seals(np.fromiter(sums, np.uint32, len(starts)))
    table_of(data, size)[stops - size] = table_of(seals.reshape(-1), size)[::size]


def seal_apart(
    container: Container, slices: list[memoryview], starts: Int64s, stops: Int64s
) -> list[memoryview]:
    """``slices`` with the seals of records ``slices[starts[i] : stops[i]]`` in their ends."""
    bounds = list(zip(starts.tolist(), (stops - 1).tolist(), strict=True))
    size, skips = container.seal_bytes, container.seal_skips_bytes
    sums = []
    for start, last in bounds:
        slices[last] = slices[last][:-size]
        checksum = container.seal_checksum(slices[start][skips:], 0)
        for piece in slices[start + 1 : last + 1]:
            checksum = container.seal_checksum(piece, checksum)
        sums.append(checksum)
    seals = container.seals(np.array(sums, np.uint32)).reshape(-1).data
    for number in range(len(bounds) - 1, -1, -1):
        slices.insert(bounds[number][1] + 1, seals[number * size : (number + 1) * size])
    return slices
