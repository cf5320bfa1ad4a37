"""Slices of records, with new names in the place of those in the headers of their members.

Small records are put together in fresh memory first, and names are written over those in it: slices
for each header and for all between them would cost more than the copy. Of large records nothing but
these headers is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dsort.containers.base import Container
from dsort.data.columns import BytesColumn, Int32s, Int64s, UInt8s
from dsort.data.segments import Segments
from dsort.moves.gathering import table_of
from dsort.moves.source import slices_of_sources

JOINED_BYTES_MAX = 16 << 10
"""Larger records, on average, are not put together."""
AT_ONCE_BYTES = 1 << 20
"""So much of them at a time: it stays in the processor's cache until it is hashed and written. With
2 MiB, new names for 3 KB records took 1.28 times the plain shuffle, with 1 MiB 1.11."""
_BLOCKS_AT_ONCE = 2048
"""So many stay in the processor's cache."""


def renamed_slices(
    container: Container,
    views: Mapping[int, memoryview],
    source: Int32s,
    segments: Segments,
    stored_bytes: Int64s,
) -> Iterator[Sequence[memoryview]]:
    """The bytes of records as slices, some of them at a time; record ``i``'s segments are in
    ``views[source[i]]``, and it takes ``stored_bytes[i]``."""
    assert segments.names is not None
    if int(stored_bytes.sum()) > JOINED_BYTES_MAX * len(stored_bytes):
        parts = _with_headers_apart(container, views, source, segments, stored_bytes)
        yield slices_of_sources(views, source, parts)
        return
    slices = slices_of_sources(views, source, segments)
    ends = np.cumsum(stored_bytes)
    row = done = 0
    while row < len(ends):
        stop = max(int(np.searchsorted(ends, done + AT_ONCE_BYTES, side="right")), row + 1)
        first, last = segments.offsets[[row, stop]].tolist()
        data = bytearray().join(slices[first:last])
        names = segments.names.run(row, stop)
        starts = np.repeat(ends[row:stop] - stored_bytes[row:stop] - done, np.diff(names.offsets))
        overwrite_names(container, np.frombuffer(data, np.uint8), starts + names.at, names.names)
        yield [memoryview(data)]
        row, done = stop, int(ends[stop - 1])


def _with_headers_apart(
    container: Container,
    views: Mapping[int, memoryview],
    source: Int32s,
    segments: Segments,
    stored_bytes: Int64s,
) -> Segments:
    """The same records, the blocks with new names being literals."""
    names, size = segments.names, container.name_block_bytes
    assert names is not None
    # All segments, one after the other, are cut where blocks begin and end.
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
    container.overwrite(flat, names.names)
    order = np.arange(len(places), dtype=np.int64)
    start[places] = -1 - (len(segments.literals) + order * size)
    offsets = np.append(np.searchsorted(cuts, of_record), len(cuts)).astype(np.int64)
    return Segments(offsets, start, length, np.concatenate([segments.literals, flat]))


def overwrite_names(container: Container, data: UInt8s, at: Int64s, names: BytesColumn) -> None:
    """Write ``names`` over those in the blocks that begin ``at`` these bytes of ``data``."""
    size = container.name_block_bytes
    everywhere = table_of(data, size)
    for first in range(0, len(at), _BLOCKS_AT_ONCE):
        some = at[first : first + _BLOCKS_AT_ONCE]
        blocks = everywhere[some]
        container.overwrite(blocks.view(np.uint8), names.run(first, first + len(some)))
        everywhere[some] = blocks
