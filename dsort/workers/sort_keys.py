"""The sort keys of the records of one shard, as they are read."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from dsort.data.columns import BytesColumn, Int32s
from dsort.data.index import SortKeys
from dsort.data.record_table import RecordTable
from dsort.errors import InvariantError
from dsort.order.base import Algorithm
from dsort.order.class_numbers import ClassCounter
from dsort.order.placement import Placement
from dsort.scratch.class_table import classes_of_shard
from dsort.scratch.index import IndexStore
from dsort.workers.tasks import ExtractTask

SURVEY: Final = "survey"
"""The stage of the survey. Its index may still be on this node."""


class ShardSortKeys:
    """Makes the sort keys of one shard's records, some at a time and in input order.

    Where records are placed by their numbers (``Algorithm.placement``), a survey has their classes
    as sort keys, and extraction counts the records of each class again. It reads the classes from
    the survey's index if that is on this node, and from the records if not.
    """

    def __init__(self, algorithm: Algorithm, task: ExtractTask, store: IndexStore) -> None:
        self._algorithm = algorithm
        self._counter: ClassCounter | None = None
        self._surveyed: BytesColumn | None = None
        self._first = 0
        if task.stage.classes and store.has_shard(SURVEY, task.shard):
            self._surveyed = store.sort_keys(SURVEY, task.shard).text
        if task.stage.classes:
            counts = classes_of_shard(store.columns(task.stage.classes), task.shard)
            self._counter = ClassCounter(task.name, counts, algorithm.seed_text)

    def of(self, records: RecordTable, group: Int32s | None) -> SortKeys:
        """The sort keys of the next ``records``. ``group``: the output of each; -1: none."""
        placement = self._algorithm.placement
        if placement is None:
            return replace(self._algorithm.sort_keys(records), group=group)
        classes = self._classes(placement, records)
        if self._counter is None:
            return SortKeys(len(records), group=group, text=classes)
        places = self._counter.places(group, classes)
        hashes = self._algorithm.hashes(
            records.shard,
            records.key_hash,
            records.earlier,
            are_distinct=records.are_distinct,
        )
        if hashes is None:
            raise InvariantError("only a shuffle places records by their numbers")
        return replace(placement.sort_keys(records, places, hashes), group=group)

    def _classes(self, placement: Placement, records: RecordTable) -> BytesColumn:
        first, stop = self._first, self._first + len(records)
        self._first = stop
        if self._surveyed is None or len(self._surveyed) < stop:
            return placement.classes(records)
        return self._surveyed.run(first, stop)

    def finish(self) -> None:
        """``InvariantError`` if the records differ from those that the survey counted."""
        if self._counter is not None:
            self._counter.finish()
