"""Values of records, as they are read: their sort keys, and the digests that find duplicates whose
content, or the value of a field, is equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import xxhash
from msgspec.structs import replace

from dsort.data.columns import BytesColumn, Int32s, UInt64s
from dsort.data.index import GROUP, SHARD, SortKeys
from dsort.data.record_table import RecordTable
from dsort.data.table import Table
from dsort.errors import InvariantError
from dsort.moves.input_shard import ShardBytes
from dsort.order.base import Algorithm
from dsort.order.class_numbers import ClassCounter
from dsort.order.placement import Placement
from dsort.pipeline.pipeline import Deduplication
from dsort.scratch.index import IndexStore
from dsort.scratch.lots import classes_of_shard
from dsort.workers.tasks import ExtractTask

if TYPE_CHECKING:
    from dsort.expressions.expression import Expression


SURVEY: Final = "survey"
"""The stage of the survey. Its index may still be on this node."""


class ShardSortKeys:
    """Makes the sort keys of one shard's records, some at a time and in input order; or of the
    records of several shards at once.

    Where records are placed by their numbers (``Algorithm.placement``), a survey has their classes
    as sort keys, and extraction counts the records of each class again. It reads the classes from
    the survey's index if that is on this node, and from the records if not.
    """

    def __init__(
        self, algorithm: Algorithm, tasks: Sequence[ExtractTask], store: IndexStore
    ) -> None:
        self._algorithm, self._tasks, task = algorithm, tasks, tasks[0]
        self._counter: ClassCounter | None = None
        self._surveyed: BytesColumn | None = None
        self._first = 0
        if task.stage.classes and store.has_shard(SURVEY, task.shard):
            self._surveyed = store.sort_keys(SURVEY, task.shard).text
        if task.stage.classes:
            counts = classes_of_shard(store.columns(task.stage.classes), task.shard)
            self._counter = ClassCounter(task.name, counts, algorithm.seed_text)

    def of(self, records: RecordTable, found: Table) -> SortKeys:
        """The sort keys of the next ``records``. ``found``: the facts about them, see ``Batch``."""
        placement, group = self._algorithm.placement, found.get(GROUP)
        if SHARD in found:
            return replace(self._of_shards(records, found[SHARD]), group=group)
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

    def _of_shards(self, records: RecordTable, shard: Int32s) -> SortKeys:
        """The sort keys of records of several shards. ``shard``: of each record, ascending."""
        begins = np.searchsorted(shard, [task.shard for task in self._tasks])
        bounds, words = pairwise([*begins.tolist(), len(shard)]), []
        for task, (start, stop) in zip(self._tasks, bounds, strict=True):
            hashes = self._algorithm.hashes(task.name, records.key_hash[start:stop])
            if hashes is None:  # the keys do not depend on the names of shards
                return self._algorithm.sort_keys(records)
            words.append(hashes)
        return SortKeys(len(records), words=np.concatenate(words))

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


DEDUPLICATE: Final = "deduplicate"
_HALF = (1 << 64) - 1


def digests_of(shard: ShardBytes, table: RecordTable, compared: Deduplication) -> UInt64s:
    """A digest of each record (128 bits), shape ``(n, 2)``: of its content, or of its field."""
    if compared.value is None:
        return _digests_of_content(shard, table, compared.extensions)
    return digests_of_field(table, compared.value)


def digests_of_field(table: RecordTable, value: Expression) -> UInt64s:
    """XXH3-128 of the value of each record; shape ``(n, 2)``. ``TransformError`` names a record
    that has none."""
    from dsort.expressions.expression import text_of_value

    digests = np.zeros((len(table), 2), np.uint64)
    for record, found in enumerate(value.values_of(table, f"{DEDUPLICATE}: by")):
        digest = xxhash.xxh3_128_intdigest(text_of_value(found))
        digests[record] = digest & _HALF, digest >> 64
    return digests


def _digests_of_content(
    shard: ShardBytes, table: RecordTable, extensions: Sequence[str]
) -> UInt64s:
    """XXH3-128 of the members of each record that have one of ``extensions`` (none: of all), with
    these extensions, in their order; shape ``(n, 2)``. Zeros for a record without such members."""
    digests = np.zeros((len(table), 2), np.uint64)
    for each in extensions:
        table.fits(f"{DEDUPLICATE}: {each}", bool(table.members_with(f".{each}").any()))
    names, records = table.members.names, table.records
    offsets, rows = records.member_offsets.tolist(), records.member_rows.tolist()
    key_bytes = records.key_bytes
    wanted = [b"." + each.encode("utf-8", "surrogateescape") for each in extensions]
    for record in range(len(table)):
        own = {
            names[row][int(key_bytes[row]) :]: row
            for row in rows[offsets[record] : offsets[record + 1]]
        }
        chosen = [each for each in wanted if each in own] if wanted else sorted(own)
        if not chosen:
            continue
        state = xxhash.xxh3_128()
        for extension in chosen:
            row = own[extension]
            size_bytes = int(table.members.payload_bytes[row])
            state.update(b"%d %d " % (len(extension), size_bytes) + extension)
            for piece in _payload(shard, table, row):
                state.update(piece)
        value = state.intdigest()
        digests[record] = value & _HALF, value >> 64
    return digests


def _payload(shard: ShardBytes, table: RecordTable, row: int) -> Iterable[memoryview | bytes]:
    if table.members.payload_start[row] < 0:
        return [table.members.literals.get(row, b"")]
    return shard.payload(table.members, row)
