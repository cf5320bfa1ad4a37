"""``Batch``: records on their way through the operators of extraction to the index; and the values
of its records: sort keys, and digests that find equal ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
import xxhash
from msgspec import Struct
from msgspec.structs import replace

from dsort.data.columns import Bools, BytesColumn, Int32s, Int64s, UInt64s, row_numbers
from dsort.data.index import CLASS, GROUP, LOT, ORIGIN_BYTES, ORIGIN_START, SHARD, SortKeys
from dsort.data.members import MemberTable
from dsort.data.numbered import are_positions
from dsort.data.record_table import RecordTable
from dsort.data.records import FormedRecords
from dsort.data.segments import Segments
from dsort.data.table import Table
from dsort.errors import InvariantError
from dsort.moves.input_shard import ShardBytes
from dsort.moves.slices import hash_records, slices_of
from dsort.order.base import Algorithm
from dsort.order.class_numbers import ClassCounter
from dsort.order.placement import Placement
from dsort.pipeline.pipeline import Deduplication, DeduplicationByField
from dsort.scratch.index import IndexStore
from dsort.scratch.logs import ReactionLog
from dsort.scratch.requests import classes_of_shard
from dsort.workers.tasks import ExtractTask, WorkerSetup

if TYPE_CHECKING:
    from dsort.expressions.expression import Expression

FOUND: Final = (SHARD, CLASS, LOT, ORIGIN_START, ORIGIN_BYTES)
"""The columns of ``Batch.found`` that the index has, too. ``GROUP`` is among the sort keys."""

SORT_KEYS = ("to sort by", "algorithm.extension names a column, with a dot before it")
CLASSES = ("to stratify by", "stratify names a column")
SAME = ("to compare records by", "deduplicate.by.field names a column")
"""The purpose of a column, and the part of the spec that names it: for messages."""


def are_placed(found: Table) -> Bools:
    """Whether each record has an output; shape ``(n,)``. ``found``: see :class:`Batch`."""
    if GROUP not in found:
        return np.ones(len(found), np.bool_)
    placed: Bools = found[GROUP] >= 0
    return placed


class Batch(Struct, eq=False):
    """Records of one input shard, or of several that follow one another; then ``found`` has
    ``SHARD``. ``tasks``: a task for each shard, all of the same pass. ``shard``: the bytes of the
    shard, or of all shards. ``input``: the name of the input that the shard belongs to.

    ``read``: the members as the shard has them. ``members``: the members with all changes so far,
    except new names that are not in headers yet. ``named``: the members with these names, too (the
    object ``members`` itself if there are none). ``records``: the records, as rows of these tables.
    ``formed``: how many records were read.

    ``found``: the facts that operators have found, one row per record. ``GROUP``: the output of the
    record, or its template under the key map; -1: the record is dropped. The column is missing if
    there is one output, or if outputs are not known yet. ``CLASS``, ``LOT``: the class of the
    record and the random number that it draws, if outputs have exact numbers of records. ``PLACE``:
    the place of a joined piece in output order. ``ORIGIN_START``, ``ORIGIN_BYTES``: where the
    record was in the shard.
    """

    tasks: tuple[ExtractTask, ...]
    shard: ShardBytes
    log: ReactionLog
    input: str
    read: MemberTable
    members: MemberTable
    named: MemberTable
    records: FormedRecords
    formed: int
    found: Table

    @property
    def task(self) -> ExtractTask:
        """The task of the first shard. All tasks of a batch have one stage."""
        return self.tasks[0]

    @property
    def table(self) -> RecordTable:
        """The records with all changes so far, and with their new names."""
        is_alone = len(self.tasks) == 1
        return RecordTable(
            self.shard.name,
            self.named,
            self.records,
            self.shard.content if is_alone else _reads_nothing,
            input=self.input,
            read_many=self.shard.contents if is_alone else None,
            are_rows=self.shard.container.is_columnar,
        )

    @property
    def ordinals(self) -> Int64s:
        """The number of each record in its shard, shape ``(n,)``."""
        keys = self.records.keys
        if SHARD in self.found:
            begins = np.flatnonzero(np.diff(self.found[SHARD], prepend=-1))
            counts = np.diff(begins, append=len(self.found))
            return np.arange(len(self.found)) - np.repeat(begins, counts)
        return keys.numbers if are_positions(keys) else row_numbers(len(self.records))

    @property
    def ranges(self) -> Segments:
        """The places of the records in ``shard``."""
        return self.records.segments(self.members)

    def cells(
        self, extensions: Sequence[str], purpose: tuple[str, str], optional: Sequence[str] = ()
    ) -> RecordTable:
        """The records with at least the members that have ``extensions``. For rows of tables, a
        missing column is an error unless it is ``optional``. ``purpose``: the use of the columns,
        and the part of the spec that names them."""
        return self.table

    def count_earlier(self) -> Int64s | None:
        """For each record, how many records in earlier batches of the shard have its key; None: no
        key occurred before. Call it once for each batch."""
        return None

    def content_hashes(self, ranges: Segments) -> UInt64s:
        """XXH3 of the stored bytes of each record, which are ``ranges`` of the shard."""
        hashes = np.zeros(len(self.records), np.uint64)
        for window in self.shard.windows(ranges):
            # An empty window: the record is larger than the buffer.
            if window.stop == window.row:
                state = xxhash.xxh3_64()
                for piece in self.shard.stream(ranges, window.row):
                    state.update(piece)
                hashes[window.row] = state.intdigest()
                continue
            part = ranges.take(np.arange(window.row, window.stop))
            slices = slices_of(window.view, part, window.base)
            hashes[window.row : window.stop] = hash_records(slices, part.offsets.tolist())
        return hashes

    def keep(self, kept: Bools) -> None:
        """Remove the records for which ``kept``, shape ``(n,)``, is false, with the facts about
        them."""
        self.records = self.records.keeping(kept)
        self.found = self.found.take(np.flatnonzero(kept))


def _reads_nothing(members: MemberTable, row: int) -> bytes:
    raise InvariantError("a batch of several shards has no content of members")


class StepsDone(Struct):
    """What the steps of a job did to one shard. ``counts``: how many records reached each step that
    needs positions. ``given``: how many records payload steps received, summed over the steps."""

    counts: tuple[int, ...] = ()
    given: int = 0


class Operator(ABC):
    """Changes the records of a batch, or finds facts about them. A worker has one instance of each
    operator that its job needs (``dsort/workers/operators/all_operators.py``)."""

    in_runs: ClassVar[bool] = False
    """Whether the operator works on batches of several shards, whose records have only keys and
    ranges."""
    in_rows: ClassVar[bool] = False
    """Whether the operator works on rows of tables that stay rows; true also if the spec refuses
    its feature for such rows."""

    def __init__(self, setup: WorkerSetup, store: IndexStore) -> None:
        self.pipeline, self.store = setup.pipeline, store

    @abstractmethod
    def apply(self, batch: Batch) -> None:
        """Change ``batch`` in place. An operator that removes records calls ``Batch.keep``."""


SURVEY: Final = "survey"
"""The stage of the survey. The index of the survey may still be on this node."""


class ShardSortKeys:
    """Makes the sort keys of one shard's records, some at a time and in input order; or of the
    records of several shards at once.

    If records are placed by their numbers (``Algorithm.placement``), the sort keys of a survey are
    their classes, and extraction counts the records of each class again. The classes are read from
    the index of the survey if this node has that index, else from the records.
    """

    def __init__(
        self, algorithm: Algorithm, tasks: Sequence[ExtractTask], store: IndexStore
    ) -> None:
        self._algorithm, self._tasks, task = algorithm, tasks, tasks[0]
        self._counter: ClassCounter | None = None
        self._surveyed = BytesColumn.empty(0)
        self._first = 0
        if task.stage.classes and store.has_shard(SURVEY, task.shard):
            self._surveyed = store.sort_keys(SURVEY, task.shard).texts
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
        places = self._counter.places(found.filled(GROUP), classes)
        hashes = self._algorithm.hashes(
            records.shard,
            records.key_hash,
            records.earlier,
            are_distinct=records.are_distinct,
        )
        return replace(placement.sort_keys(records, places, hashes), group=group)

    def _of_shards(self, records: RecordTable, shard: Int32s) -> SortKeys:
        """The sort keys of records of several shards. ``shard``: the shard of each record,
        ascending."""
        if not self._algorithm.has_hashes:  # the keys do not depend on the names of shards
            return self._algorithm.sort_keys(records)
        begins = np.searchsorted(shard, [task.shard for task in self._tasks])
        bounds, words = pairwise([*begins.tolist(), len(shard)]), []
        for task, (start, stop) in zip(self._tasks, bounds, strict=True):
            words.append(self._algorithm.hashes(task.name, records.key_hash[start:stop]))
        return SortKeys(len(records), words=np.concatenate(words))

    def _classes(self, placement: Placement, records: RecordTable) -> BytesColumn:
        first, stop = self._first, self._first + len(records)
        self._first = stop
        if len(self._surveyed) < stop:
            return placement.classes(records)
        return self._surveyed.run(first, stop)

    def finish(self) -> None:
        """``InvariantError`` if the records differ from those that the survey counted."""
        if self._counter is not None:
            self._counter.finish()


DEDUPLICATE: Final = "deduplicate"
_HALF = (1 << 64) - 1


def digests_of(shard: ShardBytes, table: RecordTable, compared: Deduplication) -> UInt64s:
    """A digest of each record (128 bits), shape ``(n, 2)``: of its content, or of the field that is
    compared."""
    if isinstance(compared, DeduplicationByField):
        return digests_of_field(table, compared.value)
    return _digests_of_content(shard, table, compared.extensions)


def digests_of_field(table: RecordTable, value: Expression) -> UInt64s:
    """XXH3-128 of the value of each record; shape ``(n, 2)``. ``TransformError`` names a record
    without the value."""
    from dsort.expressions.expression import text_of_value

    digests = np.zeros((len(table), 2), np.uint64)
    for record, found in enumerate(value.values_of(table, f"{DEDUPLICATE}: by")):
        digest = xxhash.xxh3_128_intdigest(text_of_value(found))
        digests[record] = digest & _HALF, digest >> 64
    return digests


def _digests_of_content(
    shard: ShardBytes, table: RecordTable, extensions: Sequence[str]
) -> UInt64s:
    """XXH3-128 of the members of each record, with their extensions, in their order; shape ``(n,
    2)``. Only members with one of ``extensions`` count, unless that is empty. Zeros for a record
    without such members."""
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
            # With their lengths, no two lists of members make the same bytes.
            state.update(b"%d %d " % (len(extension), size_bytes) + extension)
            for piece in _payload(shard, table, row):
                state.update(piece)
        value = state.intdigest()
        digests[record] = value & _HALF, value >> 64
    return digests


def _payload(shard: ShardBytes, table: RecordTable, row: int) -> Iterable[memoryview | bytes]:
    # The shard does not have these bytes: an earlier change of the record made them.
    if table.members.payload_start[row] < 0:
        return [table.members.literals.get(row, b"")]
    return shard.payload(table.members, row)
