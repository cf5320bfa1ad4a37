"""Segments → memory slices that the kernel gathers: nothing is assembled in fresh memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xxhash

from dsort.data.columns import Int32s, UInt64s
from dsort.data.index import Segments

__all__ = ["hash_records", "slices_of", "slices_of_sources"]


def slices_of(view: memoryview, segments: Segments, base: int = 0) -> list[memoryview]:
    """One slice a segment, in order; ``view`` begins at byte ``base`` of the source."""
    starts = segments.start - base
    if len(segments.literals) == 0:
        ends = starts + segments.length
        return [view[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    return _with_literals(
        [view] * len(starts), segments, np.where(segments.start < 0, segments.start, starts)
    )


def slices_of_sources(
    views: Mapping[int, memoryview], source: Int32s, segments: Segments
) -> list[memoryview]:
    """One slice a segment; record ``i``'s segments are in ``views[source[i]]``."""
    counts = np.diff(segments.offsets)
    of_segment = np.repeat(source, counts).tolist()
    if len(segments.literals) == 0:
        ends = segments.start + segments.length
        return [
            views[v][a:b]
            for v, a, b in zip(of_segment, segments.start.tolist(), ends.tolist(), strict=True)
        ]
    return _with_literals([views[v] for v in of_segment], segments, segments.start)


def _with_literals(
    views: list[memoryview], segments: Segments, starts: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> list[memoryview]:
    literals = np.ascontiguousarray(segments.literals).data
    return [
        view[start : start + length] if start >= 0 else literals[-1 - start : -1 - start + length]
        for view, start, length in zip(
            views, starts.tolist(), segments.length.tolist(), strict=True
        )
    ]


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
