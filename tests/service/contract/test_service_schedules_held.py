"""While older results are removed nobody begins to write them again: one may be resumed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import update

from dsort.errors import JobConflictError
from dsort.service.database.engine import Database, open_database
from dsort.service.database.tables import JobRow, jobs
from dsort.service.jobs.queue import Limits, claim_next
from dsort.service.jobs.store import JobStore
from dsort.service.schedules.retention import ScheduleResults
from tests.support.databases import on_both_databases

ROOM = Limits(running_jobs_max=9, running_plans_max=9)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with open_database(database_url) as opened:
        yield opened


def submit(database: Database, job_id: str, template: str) -> None:
    JobStore(database).submit(
        JobRow(
            job_id=job_id,
            kind="run",
            owner="ann",
            spec={"input_bck": "in", "output_bck": "out"},
            input_uri="file:///in",
            output_uri="file:///out",
            claims=[["file:///out", template]],
            due_at=float(len(job_id)),
            after_commit={"schedule_id": "a"},
        )
    )


def begun(database: Database) -> JobRow | None:
    return claim_next(database, host="h", replica="r", limits=ROOM, now_s=1.0)


@on_both_databases
def test_what_older_results_are_called_is_held_while_they_are_removed(database: Database) -> None:
    results = ScheduleResults(database)
    submit(database, "old", "old-%d.tar")
    with database.writing() as connection:
        connection.execute(update(jobs).values(state="finished"))
    submit(database, "newest", "new-%d.tar")
    assert begun(database) is not None
    newest, old = results.one("newest"), results.one("old")
    assert newest is not None
    assert old is not None
    with results.hold(newest, [old]):
        with database.writing() as connection:
            connection.execute(update(jobs).where(jobs.c.job_id == "old").values(state="queued"))
        assert begun(database) is None
    assert results.one("newest") == newest  # it claims its own names, as before
    again = begun(database)
    assert again is not None
    assert again.job_id == "old"


def test_what_is_being_written_again_is_not_held(database: Database) -> None:
    results = ScheduleResults(database)
    submit(database, "old", "old-%d.tar")
    submit(database, "newest", "new-%d.tar")
    assert begun(database) is not None
    assert begun(database) is not None
    newest, old = results.one("newest"), results.one("old")
    assert newest is not None
    assert old is not None
    with pytest.raises(JobConflictError, match="old"), results.hold(newest, [old]):
        pytest.fail("they were held")


def test_an_attempt_that_is_over_removes_nothing_any_more(database: Database) -> None:
    results = ScheduleResults(database)
    submit(database, "newest", "new-%d.tar")
    assert begun(database) is not None
    newest = results.one("newest")
    assert newest is not None
    with database.writing() as connection:
        connection.execute(update(jobs).values(attempt=2))
    with pytest.raises(JobConflictError, match="another attempt"), results.hold(newest, []):
        pytest.fail("they were held")
