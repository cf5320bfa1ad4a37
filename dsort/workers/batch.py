"""``Batch``: records on their way through the operators of extraction to the index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np
import xxhash
from msgspec import Struct

from dsort.data.columns import Bools, Int64s, UInt64s, row_numbers
from dsort.data.index import CLASS, GROUP, LOT, ORIGIN_BYTES, ORIGIN_START, SHARD
from dsort.data.members import MemberTable
from dsort.data.numbered import are_positions
from dsort.data.record_table import RecordTable
from dsort.data.records import FormedRecords
from dsort.data.segments import Segments
from dsort.data.table import Table
from dsort.errors import InvariantError
from dsort.moves.input_shard import ShardBytes
from dsort.moves.slices import hash_records, slices_of
from dsort.pipeline.pipeline import Pipeline
from dsort.scratch.index import IndexStore
from dsort.scratch.logs import ReactionLog
from dsort.workers.tasks import ExtractTask, WorkerSetup

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
    ``SHARD``. ``tasks``: one for each shard, of the same pass. ``shard``: the bytes of the shard,
    or of all shards. ``input``: the name of the input that the shard belongs to.

    ``read``: the members as the shard has them; ``members``: the members with all changes so far
    that are in their bytes; ``named``: ``members`` with new names that are not in the headers yet,
    or the same object. ``records``: rows of these tables. ``formed``: how many records were read.

    ``found``: the facts that operators have found, one row per record. ``GROUP``: the output of the
    record, or its template under the key map; -1: the record is dropped; missing: there is one
    output, or the outputs are not known yet. ``CLASS``, ``LOT``: the class of the record and the
    random number that it draws, where outputs have exact numbers. ``PLACE``: of a joined piece.
    ``ORIGIN_START``, ``ORIGIN_BYTES``: where the record was in the shard.
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
        """The task of the first shard; its stage is that of all."""
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
        """The records with the members that have ``extensions``, or more members. For rows of
        tables, a column that is missing is an error unless it is ``optional``; ``purpose``: what
        the columns are for, and the part of the spec that names them."""
        return self.table

    def count_earlier(self) -> Int64s | None:
        """How many records of earlier batches of the shard have the key of each; None: no key
        occurred before. To be called once."""
        return None

    def content_hashes(self, ranges: Segments) -> UInt64s:
        """XXH3 of each record as it is stored: in ``ranges`` of the shard."""
        hashes = np.zeros(len(self.records), np.uint64)
        for window in self.shard.windows(ranges):
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
        """Remove the records that are not ``kept``, shape ``(n,)``, with the facts about them."""
        self.records = self.records.keeping(kept)
        self.found = self.found.take(np.flatnonzero(kept))


def _reads_nothing(members: MemberTable, row: int) -> bytes:
    raise InvariantError("records of several shards are extracted without a look at members")


class StepsDone(Struct):
    """What the steps of a job did to one shard. ``counts``: how many records reached each step that
    needs positions. ``given``: how many records payload steps received, summed over the steps."""

    counts: tuple[int, ...] = ()
    given: int = 0


class Operator(ABC):
    """Changes the records of a batch, or finds facts about them. A worker has one instance of each
    operator that its job needs (``dsort/workers/operators/all_operators.py``)."""

    in_runs: ClassVar[bool] = False
    """Whether it works on batches of several shards, of which only keys and ranges are known."""
    in_rows: ClassVar[bool] = False
    """Whether it works on rows of tables that stay rows, or the spec refuses its feature there."""

    def __init__(self, setup: WorkerSetup, store: IndexStore) -> None:
        self.pipeline, self.store = setup.pipeline, store

    @staticmethod
    def is_needed(pipeline: Pipeline) -> bool:
        """Whether a job may need this operator."""
        return True

    @abstractmethod
    def apply(self, batch: Batch) -> None:
        """Change ``batch`` in place. An operator that removes records calls ``Batch.keep``."""
