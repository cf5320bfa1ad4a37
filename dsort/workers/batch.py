"""``Batch``: the records of one input shard on their way through the operators of extraction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from msgspec import Struct

from dsort.data.columns import Int32s, Int64s, UInt64s
from dsort.data.members import MemberTable
from dsort.data.record_table import RecordTable
from dsort.data.records import FormedRecords
from dsort.data.table import Table
from dsort.moves.input_shard import ShardBytes
from dsort.pipeline.pipeline import Pipeline
from dsort.scratch.index import IndexStore
from dsort.scratch.logs import ReactionLog
from dsort.workers.tasks import ExtractTask, WorkerSetup


class Placed(Struct, frozen=True, eq=False):
    """Where records go, in columns of shape ``(n,)``. ``group``: the output of each record, or its
    template under the key map; -1: the record is dropped; None: there is one output, or the outputs
    are not known yet. ``lots``: the class of each record and its lot (the random number that it
    draws), shape ``(n, 2)``, where outputs have exact numbers."""

    group: Int32s | None = None
    lots: UInt64s | None = None

    def repeated(self, counts: Int64s) -> Placed:
        """The places of repeated records. ``counts``: how often each record comes out."""
        return Placed(
            None if self.group is None else np.repeat(self.group, counts),
            None if self.lots is None else np.repeat(self.lots, counts, axis=0),
        )

    def run(self, start: int, stop: int) -> Placed:
        """The places of records ``start:stop``."""
        return Placed(
            None if self.group is None else self.group[start:stop],
            None if self.lots is None else self.lots[start:stop],
        )

    def take(self, rows: Int64s) -> Placed:
        """The places of the records ``rows``."""
        return Placed(
            None if self.group is None else self.group[rows],
            None if self.lots is None else self.lots[rows],
        )

    def kept(self) -> Int64s | None:
        """The rows of the records that are not dropped; None: all of them."""
        if self.group is None or not (self.group < 0).any():
            return None
        return np.flatnonzero(self.group >= 0)


NOWHERE = Placed()
"""The value for records that have no place yet, or whose job has one output."""


class Batch(Struct, eq=False):
    """``read``: the members as the shard has them; ``members``: the members with all changes so far
    that are in their bytes; ``named``: ``members`` with new names that are not in the headers yet,
    or the same object. ``records``: rows of these tables. ``formed``: how many records were read.
    ``input``: the name of the input that the shard belongs to. ``placed``: the outputs of records;
    ``join_places``: the places of pieces that are joined, shape ``(n,)``; ``origins``: where
    records were in the shard."""

    task: ExtractTask
    shard: ShardBytes
    log: ReactionLog
    input: str
    read: MemberTable
    members: MemberTable
    named: MemberTable
    records: FormedRecords
    formed: int
    placed: Placed = NOWHERE
    join_places: UInt64s | None = None
    origins: Table | None = None

    @property
    def table(self) -> RecordTable:
        """The records with all changes so far, and with their new names."""
        return RecordTable(
            self.shard.name,
            self.named,
            self.records,
            self.shard.content,
            input=self.input,
            read_many=self.shard.contents,
            are_rows=self.shard.container.is_columnar,
        )


class Operator(ABC):
    """Changes the records of a batch, or finds facts about them. A worker has one instance of each
    operator that its job needs (``dsort/workers/operators.py``)."""

    in_runs: ClassVar[bool] = False
    """Whether jobs that need this operator may extract small shards in runs. If so, it does nothing
    unless a task requests it, or an earlier operator has changed a record."""
    in_rows: ClassVar[bool] = False
    """Whether rows of tables that stay rows do not need it: ``TableExtractor`` does the same work,
    or the spec refuses the feature."""

    def __init__(self, setup: WorkerSetup, store: IndexStore) -> None:
        self.pipeline, self.store = setup.pipeline, store

    @staticmethod
    def is_needed(pipeline: Pipeline) -> bool:
        """Whether a job may need this operator."""
        return True

    @abstractmethod
    def apply(self, batch: Batch) -> None:
        """Change ``batch`` in place. An operator that removes records runs before ``PlaceRecords``,
        because later operators keep one value per record."""
