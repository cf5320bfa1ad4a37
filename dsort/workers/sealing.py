"""Seals of records, made when the records are copied.

A checksum of a payload that was just copied takes half the time of one of mapped input: it is in
the processor's cache. Read before that, at places all over the inputs, it would take longer still.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dsort.containers.base import Container
from dsort.data.columns import Int64s
from dsort.data.index import Segments

__all__ = ["sealed_slices"]

JOINED_BYTES_MAX = 16 << 10
"""Larger records, on average, are not put together for it."""
AT_ONCE_BYTES = 1 << 20


def sealed_slices(
    container: Container, slices: list[memoryview], segments: Segments, stored_bytes: Int64s
) -> Iterator[Sequence[memoryview]]:
    """The bytes of records as slices, some of them at a time. ``slices``: one a segment. Records
    that were converted begin with a literal, and have room for their seal; others are whole."""
    ends, offsets = np.cumsum(stored_bytes), segments.offsets
    is_open = segments.start[offsets[:-1]] < 0
    if not is_open.any():
        yield slices
        return
    is_large = int(ends[-1]) > JOINED_BYTES_MAX * len(ends)
    row = done = 0
    while row < len(ends):
        stop = max(int(np.searchsorted(ends, done + AT_ONCE_BYTES, side="right")), row + 1)
        some = slice(row, stop)
        rows = row + np.flatnonzero(is_open[some])
        if is_large:
            of_run = slices[offsets[row] : offsets[stop]]
            bounds = offsets[rows] - offsets[row], offsets[rows + 1] - offsets[row]
            yield _sealed_apart(container, of_run, *bounds)
        else:
            data = bytearray().join(slices[offsets[row] : offsets[stop]])
            first = ends[rows] - stored_bytes[rows] - done
            _seal_within(container, data, first, ends[rows] - done)
            yield [memoryview(data)]
        row, done = stop, int(ends[stop - 1])


def _seal_within(container: Container, data: bytearray, starts: Int64s, stops: Int64s) -> None:
    """Write the seals of records ``data[starts[i] : stops[i]]``."""
    stops = stops - container.seal_bytes
    places = map(slice, (starts + container.seal_skips_bytes).tolist(), stops.tolist())
    seals = container.seals(zip(map(memoryview(data).__getitem__, places)))
    np.frombuffer(data, np.uint8)[stops[:, None] + np.arange(container.seal_bytes)] = seals


def _sealed_apart(
    container: Container, slices: list[memoryview], starts: Int64s, stops: Int64s
) -> list[memoryview]:
    """The same with the seals of records ``slices[starts[i] : stops[i]]`` in their ends."""
    bounds = list(zip(starts.tolist(), (stops - 1).tolist(), strict=True))
    size, skips = container.seal_bytes, container.seal_skips_bytes
    ends = [slices[last][:-size] for _start, last in bounds]
    for (_start, last), end in zip(bounds, ends, strict=True):
        slices[last] = end
    pieces = ([slices[start][skips:], *slices[start + 1 : last + 1]] for start, last in bounds)
    seals = memoryview(container.seals(pieces).tobytes())
    for number in range(len(bounds) - 1, -1, -1):
        slices.insert(bounds[number][1] + 1, seals[number * size : (number + 1) * size])
    return slices
