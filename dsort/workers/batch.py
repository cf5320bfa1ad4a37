"""``Batch``: the records of one input shard on their way through the operators of extraction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Final

import numpy as np
from msgspec import Struct

from dsort.data.columns import Bools
from dsort.data.index import CLASS, GROUP, LOT, ORIGIN_BYTES, ORIGIN_START
from dsort.data.members import MemberTable
from dsort.data.record_table import RecordTable
from dsort.data.records import FormedRecords
from dsort.data.table import Table
from dsort.moves.input_shard import ShardBytes
from dsort.pipeline.pipeline import Pipeline
from dsort.scratch.index import IndexStore
from dsort.scratch.logs import ReactionLog
from dsort.workers.tasks import ExtractTask, WorkerSetup

FOUND: Final = (CLASS, LOT, ORIGIN_START, ORIGIN_BYTES)
"""The columns of ``Batch.found`` that the index has, too. ``GROUP`` is among the sort keys."""


def are_placed(found: Table) -> Bools:
    """Whether each record has an output; shape ``(n,)``. ``found``: see :class:`Batch`."""
    if GROUP not in found:
        return np.ones(len(found), np.bool_)
    placed: Bools = found[GROUP] >= 0
    return placed


class Batch(Struct, eq=False):
    """``read``: the members as the shard has them; ``members``: the members with all changes so far
    that are in their bytes; ``named``: ``members`` with new names that are not in the headers yet,
    or the same object. ``records``: rows of these tables. ``formed``: how many records were read.
    ``input``: the name of the input that the shard belongs to.

    ``found``: the facts that operators have found, one row per record. ``GROUP``: the output of the
    record, or its template under the key map; -1: the record is dropped; missing: there is one
    output, or the outputs are not known yet. ``CLASS``, ``LOT``: the class of the record and the
    random number that it draws, where outputs have exact numbers. ``PLACE``: of a joined piece.
    ``ORIGIN_START``, ``ORIGIN_BYTES``: where the record was in the shard.
    """

    task: ExtractTask
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

    def keep(self, kept: Bools) -> None:
        """Remove the records that are not ``kept``, shape ``(n,)``, with the facts about them."""
        self.records = self.records.keeping(kept)
        self.found = self.found.take(np.flatnonzero(kept))


class Operator(ABC):
    """Changes the records of a batch, or finds facts about them. A worker has one instance of each
    operator that its job needs (``dsort/workers/operators/all_operators.py``)."""

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
        """Change ``batch`` in place. An operator that removes records calls ``Batch.keep``."""
