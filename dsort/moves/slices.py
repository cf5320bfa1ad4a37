"""Slices of records that are assembled in memory: records with new names, or with literals.

Separate slices for each header or literal, and for the bytes between them, would cost more than a
copy of a small record. So new names are written over the old ones in a copy. Literals of one length
are rows of a table, which become bytes objects all at once (20 ns each, where a slice takes 250).
Of large records, only headers with new names and seals are copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, repeat
from typing import Any, Final

import numpy as np
import xxhash

from dsort.containers.facets import Overwriting, Seals
from dsort.data.columns import BytesColumn, Int32s, Int64s, UInt8s, UInt64s, runs_that_fit
from dsort.data.segments import Segments
from dsort.moves.short_records import table_of

JOINED_BYTES_MAX = 16 << 10
"""Records that are larger on average are not copied."""
AT_ONCE_BYTES = 1 << 20
"""The bytes of records that are copied at a time: they stay in the processor's cache until they are
hashed and written. With 2 MiB, new names for 3 KB records took 1.28 times the plain shuffle, with
1 MiB 1.11."""
LENGTHS_MAX = 64
"""If literals have more lengths than this, a table for each length costs more than slices."""
_BLOCKS_AT_ONCE = 2048
"""So many blocks stay in the processor's cache."""


def renamed_slices(
    overwriting: Overwriting,
    views: Mapping[int, memoryview],
    source: Int32s,
    segments: Segments,
    stored_bytes: Int64s,
) -> Iterator[Sequence[memoryview]]:
    """Yield the bytes of records with new names as slices, some records at a time. The segments of
    record ``i`` are in ``views[source[i]]``; it has ``stored_bytes[i]``."""
    assert segments.names is not None
    if int(stored_bytes.sum()) > JOINED_BYTES_MAX * len(stored_bytes):
        parts = _with_headers_apart(overwriting, views, source, segments, stored_bytes)
        yield slices_of_sources(views, source, parts)
        return
    slices = slices_of_sources(views, source, segments)
    starts = np.cumsum(stored_bytes) - stored_bytes
    for row, stop in pairwise(runs_that_fit(stored_bytes, AT_ONCE_BYTES).tolist()):
        first, last = segments.offsets[[row, stop]].tolist()
        data = bytearray().join(slices[first:last])
        names = segments.names.run(row, stop)
        begins = np.repeat(starts[row:stop] - starts[row], np.diff(names.offsets))
        overwrite_names(overwriting, np.frombuffer(data, np.uint8), begins + names.at, names.names)
        yield [memoryview(data)]


def _with_headers_apart(
    overwriting: Overwriting,
    views: Mapping[int, memoryview],
    source: Int32s,
    segments: Segments,
    stored_bytes: Int64s,
) -> Segments:
    """The same records, with literals for the blocks that have new names."""
    names, size = segments.names, overwriting.block_bytes
    assert names is not None
    # All segments, one after the other, are divided where such blocks begin and end.
    ends = np.cumsum(segments.length)
    starts = ends - segments.length
    of_record = np.cumsum(stored_bytes) - stored_bytes
    block_at = np.repeat(of_record, np.diff(names.offsets)) + names.at
    cuts = np.unique(np.concatenate([starts, block_at, block_at + size, of_record]))
    cuts = cuts[cuts < (ends[-1] if len(ends) else 0)]
    within = np.searchsorted(starts, cuts, side="right") - 1
    shift = cuts - starts[within]
    start = segments.start[within]
    start = np.where(start < 0, start - shift, start + shift)
    length = np.diff(cuts, append=ends[-1])
    places = np.searchsorted(cuts, block_at)
    counts = np.diff(segments.offsets)
    of_segment = np.repeat(source, counts)[within][places].tolist()
    blocks = bytearray().join(
        [
            views[shard][first : first + size]
            for shard, first in zip(of_segment, start[places].tolist(), strict=True)
        ]
    )
    flat = np.frombuffer(blocks, np.uint8)
    overwriting.write(flat, names.names)
    order = np.arange(len(places), dtype=np.int64)
    start[places] = -1 - (len(segments.literals) + order * size)
    offsets = np.append(np.searchsorted(cuts, of_record), len(cuts)).astype(np.int64)
    return Segments(offsets, start, length, np.concatenate([segments.literals, flat]))


def overwrite_names(overwriting: Overwriting, data: UInt8s, at: Int64s, names: BytesColumn) -> None:
    """Write ``names`` over the names in the blocks of ``data`` that begin ``at`` these bytes."""
    size = overwriting.block_bytes
    everywhere = table_of(data, size)
    for first in range(0, len(at), _BLOCKS_AT_ONCE):
        some = at[first : first + _BLOCKS_AT_ONCE]
        blocks = everywhere[some]
        overwriting.write(blocks.view(np.uint8), names.run(first, first + len(some)))
        everywhere[some] = blocks


def slices_with_literals(
    views: Mapping[int, memoryview],
    source: Int32s,
    segments: Segments,
    stored_bytes: Int64s,
    seals: Seals | None,
) -> Iterator[Sequence[memoryview]]:
    """Yield the bytes of records with literals as slices, some records at a time. The segments of
    record ``i`` are in ``views[source[i]]``; it has ``stored_bytes[i]``. ``seals``: records that
    begin with a literal were converted, and have room for their seal, which is computed here; other
    records are complete."""
    starts, offsets = np.cumsum(stored_bytes) - stored_bytes, segments.offsets
    is_open = (segments.start[offsets[:-1]] < 0) & (seals is not None)
    is_large = int(stored_bytes.sum()) > JOINED_BYTES_MAX * len(stored_bytes)
    if is_large and not is_open.any():
        yield slices_of_sources(views, source, segments)
        return
    large = slices_of_sources(views, source, segments) if is_large else []
    pieces = [] if is_large else _pieces(views, source, segments)
    for row, stop in pairwise(runs_that_fit(stored_bytes, AT_ONCE_BYTES).tolist()):
        first, last = offsets[[row, stop]].tolist()
        rows = row + np.flatnonzero(is_open[row:stop])
        if is_large:
            assert seals is not None
            bounds = offsets[rows] - first, offsets[rows + 1] - first
            yield seal_apart(seals, large[first:last], *bounds)
            continue
        data = bytearray().join(pieces[first:last])
        if seals is not None and len(rows):
            begins = starts[rows] - starts[row]
            stops = begins + stored_bytes[rows]
            seal_within(seals, np.frombuffer(data, np.uint8), begins, stops)
        yield [memoryview(data)]


def _pieces(
    views: Mapping[int, memoryview], source: Int32s, segments: Segments
) -> list[memoryview | bytes]:
    """One piece per segment, in order."""
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


def seal_within(seals: Seals, data: UInt8s, starts: Int64s, stops: Int64s) -> None:
    """Compute and write the seals of records ``data[starts[i] : stops[i]]``."""
    size, view = seals.size_bytes, data.data
    places = map(slice, (starts + seals.skips_bytes).tolist(), (stops - size).tolist())
    sums = map(seals.checksum, map(view.__getitem__, places), repeat(0))
    made = seals.of(np.fromiter(sums, np.uint32, len(starts)))
    table_of(data, size)[stops - size] = table_of(made.reshape(-1), size)[::size]


def seal_apart(
    seals: Seals, slices: list[memoryview], starts: Int64s, stops: Int64s
) -> list[memoryview]:
    """``slices`` with the seals of records ``slices[starts[i] : stops[i]]`` at their ends."""
    bounds = list(zip(starts.tolist(), (stops - 1).tolist(), strict=True))
    size, skips = seals.size_bytes, seals.skips_bytes
    sums = []
    for start, last in bounds:
        slices[last] = slices[last][:-size]
        checksum = seals.checksum(slices[start][skips:], 0)
        for piece in slices[start + 1 : last + 1]:
            checksum = seals.checksum(piece, checksum)
        sums.append(checksum)
    made = seals.of(np.array(sums, np.uint32)).reshape(-1).data
    for number in range(len(bounds) - 1, -1, -1):
        slices.insert(bounds[number][1] + 1, made[number * size : (number + 1) * size])
    return slices


def slices_of(view: memoryview, segments: Segments, base: int = 0) -> list[memoryview]:
    """One slice per segment, in order. ``view`` begins at byte ``base`` of the source."""
    starts = segments.start - base
    if len(segments.literals) == 0:
        ends = starts + segments.length
        return [view[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    return _with_literals({0: view}, np.zeros(len(starts), np.int32), segments, starts)


def slices_of_sources(
    views: Mapping[int, memoryview], source: Int32s, segments: Segments
) -> list[memoryview]:
    """One slice per segment; the segments of record ``i`` are in ``views[source[i]]``."""
    of_segment = np.repeat(source, np.diff(segments.offsets))
    if len(segments.literals) == 0:
        return slices_in(views, of_segment, segments.start, segments.length)
    return _with_literals(views, of_segment, segments, segments.start)


_LITERALS: Final = -1
"""Stands for the literals where a view has a number."""


def _with_literals(
    views: Mapping[int, memoryview], of_segment: Int32s, segments: Segments, starts: Int64s
) -> list[memoryview]:
    """``starts``: the places of segments in their views; ignored for literals."""
    are_literals = segments.start < 0
    return slices_in(
        {**views, _LITERALS: np.ascontiguousarray(segments.literals).data},
        np.where(are_literals, _LITERALS, of_segment),
        np.where(are_literals, -1 - segments.start, starts),
        segments.length,
    )


def slices_in(
    views: Mapping[int, memoryview],
    of_segment: np.ndarray[tuple[int], np.dtype[np.signedinteger[Any]]],
    starts: Int64s,
    lengths: Int64s,
) -> list[memoryview]:
    """One slice per segment, from the view that has it: 0.25 µs each."""
    places = zip(of_segment.tolist(), starts.tolist(), (starts + lengths).tolist(), strict=True)
    return [views[view][start:end] for view, start, end in places]


def hash_records(slices: Sequence[memoryview], segment_offsets: Sequence[int]) -> UInt64s:
    """XXH3 of each record's bytes; record ``i`` is ``slices[offsets[i]:offsets[i + 1]]``."""
    if len(slices) == len(segment_offsets) - 1:
        return np.fromiter(map(xxhash.xxh3_64_intdigest, slices), np.uint64, len(slices))
    hashes = np.empty(len(segment_offsets) - 1, np.uint64)
    for record in range(len(hashes)):
        state = xxhash.xxh3_64()
        for piece in slices[segment_offsets[record] : segment_offsets[record + 1]]:
            state.update(piece)
        hashes[record] = state.intdigest()
    return hashes
