"""Counts what the next batches of a loader hold: how much of the epoch, which records twice, and
how well they are mixed."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from dsort.data.columns import Int64s

__all__ = ["LoaderCheck", "check_batches"]


class LoaderCheck(Struct, frozen=True):
    """Figures of the next ``steps`` of all ranks together.

    ``records``: the places that were counted. ``coverage``: the share of the epoch's records among
    them, 0..1. ``duplicates``: places whose record an earlier place has, too (in a last step that
    is padded). ``shards_a_step``: the average number of shards that the records of a step come
    from. ``neighbours``: the share of records that directly follow the record before them in their
    shard: 1 for reading in sequence, about 1/k for a window of k shards of one size.
    """

    steps: int
    records: int
    coverage: float
    duplicates: int
    shards_a_step: float
    neighbours: float

    def __str__(self) -> str:
        return (
            f"{self.steps:,} steps, {self.records:,} records: {self.coverage:.2%} of the epoch, "
            f"{self.duplicates:,} twice; {self.shards_a_step:.1f} shards a step, "
            f"{self.neighbours:.0%} beside their neighbours"
        )


def check_batches(
    shards: Int64s, rows: Int64s, step_records: int, epoch_records: int
) -> LoaderCheck:
    """The figures of whole steps. ``shards`` and ``rows``: the record at each place, shapes
    ``(n,)``. ``step_records``: the number of places of a step."""
    places = len(shards)
    width = int(rows.max()) + 1 if places else 1
    distinct = len(np.unique(shards * width + rows))
    steps = places // step_records
    per_step = [len(np.unique(part)) for part in np.split(shards, steps)] if steps else []
    follows = (np.diff(shards) == 0) & (np.diff(rows) == 1)
    return LoaderCheck(
        steps=steps,
        records=places,
        coverage=distinct / epoch_records,
        duplicates=places - distinct,
        shards_a_step=float(np.mean(per_step)) if per_step else 0.0,
        neighbours=float(follows.mean()) if places > 1 else 0.0,
    )
