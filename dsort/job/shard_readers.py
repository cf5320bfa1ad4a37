"""How many workers can read a result so that each has as many shards: for who trains with it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

WORKERS_MAX = 65_536


@dataclass(frozen=True, slots=True)
class ReaderCounts:
    """Of one output (``output``: "" of the only one): its shards, the fewest and the most records
    of them, and ``workers``: the numbers of readers (world size x workers of each) up to 65,536
    that divide the shards, ascending."""

    output: str
    shards: int
    records_min: int
    records_max: int
    workers: tuple[int, ...]


def reader_counts(shards: Iterable[tuple[str, int]]) -> tuple[ReaderCounts, ...]:
    """``shards``: (output, records) of each. Outputs in the order in which they come."""
    found: dict[str, tuple[int, int, int]] = {}
    for output, records in shards:
        count, least, most = found.get(output, (0, records, records))
        found[output] = (count + 1, min(least, records), max(most, records))
    return tuple(
        ReaderCounts(output, count, least, most, _divisors(count))
        for output, (count, least, most) in found.items()
    )


def _divisors(number: int) -> tuple[int, ...]:
    small = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    whole = {*small, *(number // each for each in small)}
    return tuple(sorted(each for each in whole if each <= WORKERS_MAX))
