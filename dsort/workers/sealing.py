"""Seals of records, made when the records are copied.

A checksum of a payload that was just copied takes half the time of one of mapped input: it is in
the processor's cache. Read before that, at places all over the inputs, it would take longer still.
"""

from __future__ import annotations

from itertools import repeat

import numpy as np

from dsort.containers.base import Container
from dsort.data.columns import Int64s, UInt8s
from dsort.workers.gathering import table_of


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
