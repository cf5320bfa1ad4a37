"""``Batch``: the records of one input shard on their way through the operators of extraction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dsort.data.columns import UInt64s
from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords
from dsort.data.table import Table
from dsort.moves.source import ShardBytes
from dsort.order.table import RecordTable
from dsort.pipeline.pipeline import Pipeline
from dsort.scratch.index import IndexStore
from dsort.scratch.logs import ReactionLog
from dsort.workers.placed import NOWHERE, Placed
from dsort.workers.tasks import ExtractTask, WorkerSetup


@dataclass(slots=True, eq=False)
class Batch:
    """``read``: the members as the shard has them; ``members``: as far as they are changed;
    ``named``: ``members`` with new names, which no header has yet, or the same object. ``records``:
    rows of these tables. ``formed``: how many records were read. ``input``: the input that the
    shard is of. ``placed``: the outputs of records; ``join_places``: the places of pieces that are
    joined, shape ``(n,)``; ``origins``: where records were in the shard."""

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
        """The records as they are now, with their new names."""
        return RecordTable(
            self.shard.name,
            self.named,
            self.records,
            self.shard.content,
            input=self.input,
            read_many=self.shard.contents,
        )


class Operator(Protocol):
    """Changes the records of a batch, or finds something about them. One worker has one of each
    that its job needs (``dsort/workers/operators.py``)."""

    def __init__(self, setup: WorkerSetup, store: IndexStore) -> None: ...

    @staticmethod
    def is_needed(pipeline: Pipeline) -> bool:
        """Whether a job may need it."""

    def apply(self, batch: Batch) -> None:
        """Do it, in place; nothing if the task of the batch does not ask for it."""
