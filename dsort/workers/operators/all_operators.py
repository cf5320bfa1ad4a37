"""The operators of extraction, in the order in which records pass them."""

from __future__ import annotations

from typing import Final

from dsort.errors import InvariantError
from dsort.pipeline.pipeline import Pipeline
from dsort.scratch.index import IndexStore
from dsort.workers.batch import Operator
from dsort.workers.companions import NoteOrigins
from dsort.workers.conversion import AddMemberDefaults
from dsort.workers.joiner import LeaveOutByJoin
from dsort.workers.operators.member_names import RenameKeys, WriteNames
from dsort.workers.operators.mix import CopyRecords, LeaveOutEqual
from dsort.workers.operators.outputs import PlaceRecords, SettleExactOutputs
from dsort.workers.tasks import WorkerSetup

OPERATORS: Final[tuple[type[Operator], ...]] = (
    AddMemberDefaults,
    LeaveOutByJoin,  # a join decides by the members that records have now
    LeaveOutEqual,  # a mix weighs the others
    PlaceRecords,  # the key map and the outputs refer to the old keys
    NoteOrigins,  # copies have the origin of their record
    CopyRecords,
    RenameKeys,  # also where copies repeat a key
    WriteNames,  # after all changes of names
    SettleExactOutputs,  # exact numbers count copies
)


def operators_of(setup: WorkerSetup, store: IndexStore) -> tuple[Operator, ...]:
    """The operators that a job needs, for one worker. ``InvariantError`` if the job moves rows of
    tables, and an operator that it needs does not support rows."""
    pipeline = setup.pipeline
    needed = [kind for kind in OPERATORS if kind.is_needed(pipeline)]
    if pipeline.moves_rows and not pipeline.makes_records:
        for kind in needed:
            if not kind.in_rows:
                raise InvariantError(f"{kind.__name__} is for members, and the job moves rows")
    return tuple(kind(setup, store) for kind in needed)


def allow_runs(pipeline: Pipeline) -> bool:
    """Whether all operators that a job needs allow small shards to be extracted in runs."""
    return all(kind.in_runs for kind in OPERATORS if kind.is_needed(pipeline))
