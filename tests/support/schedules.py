"""Schedules over a real database, with a clock that a test moves, and jobs that a test ends: no job
is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import select, update

from dsort.options import RunOptions
from dsort.service.aistore.transforms import TransformStore
from dsort.service.config import ServiceConfig
from dsort.service.database.engine import Database
from dsort.service.database.tables import jobs
from dsort.service.jobs.store import JobStore
from dsort.service.jobs.submit import Submitter
from dsort.service.schedules.create import JobMaker, parse_definition
from dsort.service.schedules.definition import RunRow, ScheduleDefinition, ScheduleRow
from dsort.service.schedules.fire import ScheduleKeeper
from dsort.service.schedules.store import ScheduleStore
from dsort.service.security.tokens import ANYONE, Identity
from tests.support.fake_clock import FakeClock

NIGHTLY = "0 2 * * *"


def at(text: str) -> float:
    """Seconds since 1970 of a moment in UTC: ``2026-11-20 02:00``."""
    return datetime.fromisoformat(f"{text}+00:00").timestamp()


def spec(**fields: Any) -> dict[str, Any]:
    """A job spec, with names of its own for each run."""
    return {
        "input_bck": "in",
        "output_bck": "out",
        "output_format": "{{run_id}}/s-%04d",
        "output_shard_records": 10,
        "algorithm": {"kind": "shuffle", "seed": "{{run_id}}"},
        **fields,
    }


def definition(**fields: Any) -> ScheduleDefinition:
    """A schedule for every night at two (UTC), unless ``fields`` say otherwise."""
    when = {} if "every" in fields else {"cron": NIGHTLY}
    given = {"name": "nightly", "spec": spec(), **when, **fields}
    return parse_definition(given).definition


class Nights:
    """One replica: a store of schedules and a keeper that a test gives turns."""

    def __init__(
        self,
        database: Database,
        root: Path,
        clock: FakeClock,
        *,
        identity_of: Callable[[str], Identity | None] = lambda name: ANYONE,
    ) -> None:
        config = ServiceConfig(
            run=RunOptions(root=root),
            state_dir=root / "state",
            database_url="",
            replica="one",
            no_auth=True,
        )
        self.clock = clock
        self.database = database
        self.jobs = JobStore(database, clock=clock.now)
        submitter = Submitter(config, self.jobs, TransformStore(database).find)
        maker = JobMaker(submitter, identity_of)
        self.store = ScheduleStore(database, maker, clock=clock.now)
        self.keeper = ScheduleKeeper(self.store)

    def add(self, **fields: Any) -> ScheduleRow:
        """Make a schedule; see ``definition``."""
        return self.store.add(definition(**fields), ANYONE)

    def at(self, text: str) -> None:
        """Set the clock to that moment, and give the keeper a turn."""
        self.clock.seconds = at(text)
        self.keeper.turn()

    def run_rows(self, name: str = "nightly") -> list[RunRow]:
        """All runs, by due time."""
        row = self.store.get(name)
        assert row is not None
        return sorted(self.store.runs(row.schedule_id, limit=1000), key=lambda run: run.due_at)

    def outcomes(self, name: str = "nightly") -> list[tuple[str, str]]:
        """(``MM-DD HH:MM`` in UTC, outcome) of all runs, by due time."""
        return [(short(run.due_at), run.outcome) for run in self.run_rows(name)]

    def job_specs(self) -> list[dict[str, Any]]:
        """The specs of all jobs, oldest first."""
        with self.database.reading() as connection:
            return list(connection.execute(select(jobs.c.spec).order_by(jobs.c.number)).scalars())

    def end_jobs(self, state: str = "finished", *, error: Mapping[str, Any] | None = None) -> None:
        """Put every job that has not ended into the state ``state``."""
        with self.database.writing() as connection:
            connection.execute(
                update(jobs)
                .where(jobs.c.state.in_(("queued", "running")))
                .values(state=state, error=error, ended_at=self.clock.now())
            )

    def start_jobs(self) -> None:
        """Put every queued job into the state ``running``."""
        with self.database.writing() as connection:
            connection.execute(
                update(jobs).where(jobs.c.state == "queued").values(state="running", attempt=1)
            )


def short(moment_s: float) -> str:
    """``MM-DD HH:MM`` in UTC."""
    return datetime.fromtimestamp(moment_s, UTC).strftime("%m-%d %H:%M")
