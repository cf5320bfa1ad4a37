"""The operators of extraction, in the order in which records pass them."""

from __future__ import annotations

from collections.abc import Iterator

from dsort.errors import InvariantError
from dsort.pipeline.pipeline import Pipeline
from dsort.scratch.index import IndexStore
from dsort.workers.batch import Operator
from dsort.workers.tasks import WorkerSetup


def needed(pipeline: Pipeline) -> Iterator[type[Operator]]:
    """Yield the operators that a job needs. Only these are loaded."""
    if pipeline.member_defaults:
        from dsort.workers.conversion import AddMemberDefaults

        yield AddMemberDefaults
    if pipeline.join:  # a join decides by the members that records have at this point
        from dsort.workers.joiner import LeaveOutByJoin

        yield LeaveOutByJoin
    if pipeline.deduplicates_first:  # a mix weighs the records that are left
        from dsort.workers.operators.mix import LeaveOutEqual

        yield LeaveOutEqual
    if pipeline.division or pipeline.placed_by:  # both refer to the old keys
        from dsort.workers.operators.outputs import PlaceRecords

        yield PlaceRecords
    if pipeline.result.keeps_origins:  # copies have the origin of their record
        from dsort.workers.companions import NoteOrigins

        yield NoteOrigins
    if pipeline.mix is not None:
        from dsort.workers.operators.mix import CopyRecords

        yield CopyRecords
    from dsort.workers.operators.member_names import RenameKeys, WriteNames

    yield RenameKeys  # also where copies repeat a key
    yield WriteNames  # after all changes of names
    if pipeline.division.is_counted:  # exact numbers count copies
        from dsort.workers.operators.outputs import SettleExactOutputs

        yield SettleExactOutputs


def operators_of(setup: WorkerSetup, store: IndexStore) -> tuple[Operator, ...]:
    """The operators that a job needs, for one worker. ``InvariantError`` if the job moves rows of
    tables, and an operator that it needs does not support rows."""
    pipeline = setup.pipeline
    kinds = tuple(needed(pipeline))
    if pipeline.moves_rows and not pipeline.makes_records:
        for kind in kinds:
            if not kind.in_rows:
                raise InvariantError(f"{kind.__name__} is for members, and the job moves rows")
    return tuple(kind(setup, store) for kind in kinds)


def allow_runs(pipeline: Pipeline) -> bool:
    """Whether all operators that a job needs allow small shards to be extracted in runs."""
    return all(kind.in_runs for kind in needed(pipeline))
