"""Jobs that a dispatcher in this process runs, in real processes, and their state for tests."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import text

from dsort.options import RunOptions
from dsort.service.config import ServiceConfig
from dsort.service.database.engine import Database, open_database
from dsort.service.database.tables import JobRow
from dsort.service.hosting.dispatcher import Dispatcher, Timing
from dsort.service.jobs.store import JobStore
from dsort.spec.load import parse_spec
from tests.support.children import children_here
from tests.support.fault_points import DIRECTORY, points_environment
from tests.support.forked_jobs import forked_jobs
from tests.support.internals import new_job_id, with_seed
from tests.support.service_process import await_that
from tests.support.surviving import CASES, Case, prepare

WAIT_S = 180.0


class Hosting:
    """A database, and dispatchers that come and go; ``root`` is the data root of all jobs."""

    def __init__(self, root: Path, database: Database, config: ServiceConfig) -> None:
        self.root = root
        self.database = database
        self.config = config
        self.store = JobStore(database)
        self.dispatcher: Dispatcher | None = None

    def start(self, **timing: float) -> Dispatcher:
        """Start a dispatcher, which runs the jobs in the queue."""
        self.dispatcher = Dispatcher(
            self.config, self.database, timing=Timing(**{"look_s": 0.1, **timing})
        )
        self.dispatcher.start()
        return self.dispatcher

    def close(self) -> None:
        """End the dispatcher, as when the service ends."""
        if self.dispatcher is not None:
            self.dispatcher.close()
        self.dispatcher = None

    def submit(self, case: Case | str = "shuffle", **more: Any) -> str:
        """Put a job into the queue, and return its id. Its inputs exist, its output bucket is
        ``out``."""
        case = CASES[case] if isinstance(case, str) else case
        prepare(self.root, case)
        spec = with_seed(parse_spec(case.spec).spec)
        values: dict[str, Any] = {
            "job_id": new_job_id(),
            "kind": "run",
            "owner": "ann",
            "spec": spec.canonical(),
            "input_uri": (self.root / "in").as_uri(),
            "output_uri": (self.root / "out").as_uri(),
            "claims": [],
        }
        row, _ = self.store.submit(JobRow(**{**values, **more}))
        if self.dispatcher is not None:
            self.dispatcher.wake()
        return row.job_id

    def row(self, job_id: str) -> JobRow:
        """The job as it is now."""
        row = self.store.get(job_id)
        assert row is not None
        return row

    def ended(self, job_id: str) -> JobRow:
        """The job once it is over."""
        await_that(lambda: self.row(job_id).ended, WAIT_S)
        return self.row(job_id)

    def process(self, job_id: str, attempt: int = 1) -> psutil.Process:
        """The process that runs the attempt, once the job's row names it."""

        def found() -> psutil.Process | None:
            row = self.row(job_id)
            assert row.attempt <= attempt, "a later attempt has begun"
            if row.attempt < attempt or row.pid is None:
                return None
            return psutil.Process(row.pid)

        return await_that(found, WAIT_S)

    def until_stopped(self, process: psutil.Process) -> None:
        """Wait until a signal has stopped the process."""
        await_that(lambda: process.status() == psutil.STATUS_STOPPED, WAIT_S)

    def suspend(self, process: psutil.Process) -> None:
        """Suspend a job's process at a moment when it writes nothing to the database. Otherwise no
        other process could write."""
        with self.database.writing() as connection:
            connection.execute(text("SELECT 1"))
            process.suspend()
        self.until_stopped(process)

    def held(self, job_id: str, attempt: int = 1) -> tuple[psutil.Process, psutil.Process]:
        """(the job's process, its worker that has stopped), once a worker has stopped."""
        process = self.process(job_id, attempt)

        def stopped() -> psutil.Process | None:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in process.children(recursive=True):
                    if child.status() == psutil.STATUS_STOPPED:
                        return child
            return None

        return process, await_that(stopped, WAIT_S)

    def events(self, job_id: str, kind: str) -> list[dict[str, Any]]:
        """The data of all events of a kind."""
        found = self.store.events_after(0, job_id=job_id, limit=10_000)
        return [dict(each.data) for each in found if each.kind == kind]

    def reasons(self, job_id: str) -> list[str]:
        """The reason of each attempt but the first."""
        running = [each for each in self.events(job_id, "state") if each["state"] == "running"]
        return [each["reason"] for each in running if "reason" in each]


@contextlib.contextmanager
def hosting(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    points: Path | None = None,
    fresh: bool = False,
    **config: Any,
) -> Iterator[Hosting]:
    """A database and its first dispatcher. ``points``: the faults that job processes meet.
    ``fresh``: job processes are fresh interpreters, and no forks. At the end of the block, all
    processes of jobs are killed, and none is left as a zombie: other tests of this process count
    its children."""
    before = set(children_here())
    for name, value in points_environment(points).items():
        monkeypatch.setenv(name, value)
    if points is None:
        monkeypatch.delenv(DIRECTORY)
    values: dict[str, Any] = {
        "run": RunOptions(root=root, workers=1),
        "state_dir": root / "state",
        "database_url": f"sqlite:///{root}/state/service.db",
        "replica": "one",
    }
    given = ServiceConfig(**{**values, **config})
    with (
        contextlib.nullcontext() if fresh else forked_jobs(),
        open_database(given.database_url) as database,
    ):
        hosted = Hosting(root, database, given)
        try:
            hosted.start()
            yield hosted
        finally:
            hosted.close()
            for row in hosted.store.running():
                if row.pid is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(row.pid, signal.SIGKILL)
            psutil.wait_procs(set(children_here()) - before, timeout=WAIT_S)
