"""The law of schedules with several replicas, the same on SQLite and PostgreSQL: what one of them
has just done is not undone by another that looked a moment before."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import event

from dsort.service.database.engine import Database, open_database
from dsort.service.schedules import fire as firing
from tests.support.databases import on_both_databases
from tests.support.fake_clock import FakeClock
from tests.support.schedules import Nights, at

WAIT_S = 120


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(at("2026-11-20 00:00"))


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with open_database(database_url) as opened:
        yield opened


@pytest.fixture
def nights(database: Database, tmp_path: Path, clock: FakeClock) -> Nights:
    return Nights(database, tmp_path, clock)


@on_both_databases
def test_a_replica_that_is_late_does_not_stop_what_a_waiting_run_has_become(
    nights: Nights, database: Database, tmp_path: Path, clock: FakeClock
) -> None:
    nights.add(overlap="replace")
    nights.at("2026-11-20 02:00")
    nights.start_jobs()
    nights.at("2026-11-21 02:00")
    nights.end_jobs("stopped")
    row = nights.store.get("nightly")
    assert row is not None
    other = Nights(database, tmp_path, clock)
    queries = count()

    def between(*query: object) -> None:
        """The other replica makes the run's job between our two queries."""
        if next(queries) == 2:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(other.keeper.turn).result(WAIT_S)

    event.listen(database.engine, "before_cursor_execute", between)
    firing.ScheduleKeeper(nights.store).start_waiting(row.schedule_id)
    assert next(queries) > 3
    assert nights.outcomes()[-1] == ("11-21 02:00", "submitted")
    job = nights.jobs.get(str(nights.run_rows()[-1].job_id))
    assert job is not None
    assert job.state == "queued"
