"""The records of one training step, and where their bytes are."""

from __future__ import annotations

from msgspec import Struct

from dsort.reading.dataset import Dataset
from dsort.reading.view import ViewBucket

__all__ = ["StepRecord", "step_record"]


class StepRecord(Struct, frozen=True):
    """One record of a step. ``rank``: the rank that reads it; ``url`` and ``number``: its shard in
    the dataset, and its place there; ``source``: the URL of the shard that has its bytes, which for
    a view is an input; ``offset``: the first byte of its content in ``source``, None if that shard
    is encoded."""

    rank: int
    key: str
    url: str
    number: int
    source: str
    offset: int | None


def step_record(dataset: Dataset, rank: int, shard: int, number: int) -> StepRecord:
    """Record ``number`` of shard number ``shard``."""
    place = dataset.places[shard]
    url = place.uri
    index = dataset.record_index(shard)
    if index is None:
        return StepRecord(rank, dataset.record(shard, number).key, url, number, url, None)
    key = index.keys[number]
    offset = int(index.low[number])
    found = None
    if isinstance(place.bucket, ViewBucket):
        found = place.bucket.source_of(place.name, offset)
    source, offset = found or (url, offset)
    return StepRecord(rank, key, url, number, source, offset)
