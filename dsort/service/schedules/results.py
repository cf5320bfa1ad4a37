"""The results of a schedule, as the database knows them and as their manifests are in buckets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, select, update

from dsort.errors import JobConflictError
from dsort.job.manifest import manifest_name
from dsort.service.database.engine import Database
from dsort.service.database.tables import jobs, schedule_runs
from dsort.service.jobs.queue import claim_outputs
from dsort.spec.buckets import parse_bucket
from dsort.storage.bucket import Bucket, ObjectInfo
from dsort.storage.bucket_ref import BucketRef

__all__ = ["Opener", "Result", "ScheduleResults"]

Opener = Callable[[BucketRef], Bucket]
"""How a process opens buckets: reached and limited as its settings say."""


@dataclass(frozen=True, slots=True)
class Result:
    """A job of a schedule that has made something, or may have. ``after_commit``: as
    ``making.py`` writes it. ``claims``: (bucket URI, template) of all names that it may write."""

    number: int
    job_id: str
    state: str
    due_s: float
    spec: Mapping[str, Any]
    after_commit: Mapping[str, Any]
    claims: Sequence[Sequence[str]] | None
    attempt: int

    @property
    def input_bck(self) -> BucketRef:
        """Where it reads."""
        return parse_bucket(self.spec["input_bck"])

    @property
    def output_bck(self) -> BucketRef:
        """Where it writes."""
        return parse_bucket(self.spec["output_bck"])

    @property
    def order(self) -> tuple[float, int]:
        """Results sort by this: newer ones are due later, or else were submitted later."""
        return self.due_s, self.number

    def manifest_info(self, bucket: Bucket) -> ObjectInfo | None:
        """Its manifest in its output bucket, if it is there: if it is, the job has finished."""
        return bucket.stat_many([manifest_name(self.job_id)]).get(manifest_name(self.job_id))


class ScheduleResults:
    """What the database knows of the results of schedules."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def one(self, job_id: str) -> Result | None:
        """A job of a schedule; None if it is not one."""
        found = self._read(jobs.c.job_id == job_id)
        return found[0] if found else None

    def unfinished(self, schedule_id: str) -> Sequence[Result]:
        """Its jobs that are not over, newest first."""
        return self._read(_of(schedule_id), jobs.c.state.in_(("queued", "running")))

    def finished(self, schedule_id: str) -> Sequence[Result]:
        """Its jobs that have finished and whose outputs have not been removed, newest first."""
        removed = select(schedule_runs.c.job_id).where(
            schedule_runs.c.schedule_id == schedule_id,
            schedule_runs.c.removed_at.is_not(None),
            schedule_runs.c.job_id.is_not(None),
        )
        return self._read(
            _of(schedule_id), jobs.c.state == "finished", jobs.c.job_id.not_in(removed)
        )

    @contextlib.contextmanager
    def hold(self, result: Result, others: Iterable[Result]) -> Iterator[None]:
        """Within it no job begins that would write what ``others`` have made: somebody may resume
        one of them. ``JobConflictError`` if one runs, or the job of ``result`` is somebody else's
        by now."""
        if result.state != "running":
            yield
            return
        own = list(result.claims or ())
        self._claim(result, [*own, *(claim for each in others for claim in each.claims or ())])
        yield
        self._claim(result, own)  # what it may write itself is what it may lose one day

    def _claim(self, result: Result, claims: Sequence[Sequence[str]]) -> None:
        if not claim_outputs(self._database, result.job_id, result.attempt, claims):
            raise JobConflictError(f"another attempt of job {result.job_id} has begun")

    def mark_removed(self, result: Result, *, now_s: float) -> None:
        """Note that its outputs are gone."""
        with self._database.writing() as connection:
            connection.execute(
                update(schedule_runs)
                .where(schedule_runs.c.job_id == result.job_id)
                .values(removed_at=now_s)
            )

    def _read(self, *conditions: ColumnElement[bool]) -> list[Result]:
        columns = (
            "number",
            "job_id",
            "state",
            "due_at",
            "spec",
            "after_commit",
            "claims",
            "attempt",
        )
        query = select(*(jobs.c[name] for name in columns)).where(
            jobs.c.after_commit.is_not(None), jobs.c.due_at.is_not(None), *conditions
        )
        with self._database.reading() as connection:
            found = [
                Result(*row) for row in connection.execute(query) if row.after_commit is not None
            ]
        return sorted(found, key=lambda each: each.order, reverse=True)


def _of(schedule_id: str) -> ColumnElement[bool]:
    return (jobs.c.schedule_id == schedule_id) & (jobs.c.kind == "run")
