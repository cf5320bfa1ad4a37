"""Whatever dies, the service, its database or a job's process, no job is lost and none that runs
is begun anew; results are the same bytes. And two replicas on one database do nothing twice."""

from __future__ import annotations

import contextlib
import functools
import json
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from sqlalchemy import select, update

from dsort.service.database.engine import Database, open_database
from dsort.service.database.tables import JobRow, jobs, schedule_runs, schedules
from dsort.service.jobs.states import ENDED
from dsort.service.jobs.store import JobStore
from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.debian import CannotInstall, skip_outside_ci
from tests.support.engine import run_local, spec_of
from tests.support.fault_points import PointFault, arm, points_environment, struck
from tests.support.postgres import PostgresServer, programs
from tests.support.postgres_restarts import RestartedServer, restarted_server
from tests.support.service_process import ServiceProcess, await_that, end_marked, running_service

SHUFFLE = {"algorithm": {"kind": "shuffle", "seed": 5}, "output_shard_records": 7}


class Place:
    """A directory with a data root, a database, and services that come and go."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.faults = root / "faults"
        self.mark = secrets.token_hex(8)
        self.url = f"sqlite:///{root}/service.db"
        write_shards(root / "in", small_dataset("restart", shards=3, records=12))

    @contextlib.contextmanager
    def serving(self, name: str = "one", *args: str) -> Iterator[ServiceProcess]:
        """A replica, which is killed at the end of the block if it still runs."""
        arguments = ["--root", str(self.root), "--state-dir", str(self.root / name), "--no-auth"]
        arguments += ["--database", self.url, "--workers", "1", *args]
        env = points_environment(self.faults)
        with running_service(self.root, *arguments, env=env, mark=self.mark) as service:
            yield service

    def submit(self, service: ServiceProcess, output: str, **fields: Any) -> str:
        """The id of a job that was just taken in."""
        spec = spec_of(**{"output_bck": output, **SHUFFLE, **fields})
        answer = httpx.post(f"{service.url}/v1/jobs", json=spec, timeout=120)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["job_id"])

    @functools.cached_property
    def database(self) -> Database:
        """The same that the services use."""
        return open_database(self.url)

    def row(self, job_id: str) -> JobRow:
        """What is stored of a job."""
        found = JobStore(self.database).get(job_id)
        assert found is not None, f"job {job_id} is lost"
        return found

    def await_end(self, job_id: str) -> JobRow:
        """The job once it is over, which has to be well."""
        row = await_that(lambda: found if (found := self.row(job_id)).ended else None)
        assert (row.state, row.error) == ("finished", None)
        return row

    def expected(self) -> dict[str, bytes]:
        """The shards of every job here."""
        if not (self.root / "expected").exists():
            run_local(self.root, spec_of(**{"output_bck": "expected", **SHUFFLE}))
        return files_of(self.root / "expected")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Everything that was started in it ends with it."""
    place = Place(tmp_path)
    place.faults.mkdir()
    try:
        yield place
    finally:
        end_marked(place.mark)
        place.database.close()


def held(service: ServiceProcess) -> psutil.Process:
    """The process that a fault has suspended, once it has."""

    def find() -> psutil.Process | None:
        stopped = service.suspended()
        return stopped[0] if stopped else None

    return await_that(find, why="nothing was suspended")


def test_a_service_that_ends_leaves_jobs_running_and_finds_them_again(place: Place) -> None:
    """Killed first, and then told to end: nothing is lost, and nothing begun a second time."""
    arm(place.faults, PointFault("extract:start", action="stop"))
    with place.serving() as service:
        first = place.submit(service, "first")
        worker = held(service)
        second = place.submit(service, "second")
        service.kill()
    process = psutil.Process(place.row(first).pid)
    expected = {first: "running", second: "queued"}
    with place.serving() as service:
        assert states(service) == expected
        assert service.stop() == 0
        assert "stopped; 1 job runs on" in service.log_text()
    assert process.is_running()
    with place.serving() as service:
        assert states(service) == expected
        worker.resume()
        rows = [place.await_end(first), place.await_end(second)]
    assert [(row.attempt, row.deaths) for row in rows] == [(1, 0), (1, 0)]
    assert rows[0].pid == process.pid
    assert files_of(place.root / "first") == files_of(place.root / "second") == place.expected()


@pytest.mark.exhaustive
def test_a_service_in_a_container_hands_its_job_over_when_it_has_to_end(place: Place) -> None:
    arm(place.faults, PointFault("extract:start", action="stop"))
    with place.serving("one", "--hand-over") as service:
        job_id = place.submit(service, "first")
        held(service)
        assert service.stop() == 0
        assert "stopped; 1 job waits in the queue" in service.log_text()
        await_that(lambda: not service.offspring())
    with place.serving("two"):
        row = place.await_end(job_id)
    assert (row.attempt, row.deaths) == (2, 0)
    assert files_of(place.root / "first") == place.expected()


def states(service: ServiceProcess) -> dict[str, str]:
    """What the service says of its jobs."""
    listed = httpx.get(f"{service.url}/v1/jobs", timeout=120).json()["jobs"]
    return {each["job_id"]: each["state"] for each in listed}


@pytest.mark.exhaustive
def test_jobs_whose_processes_are_killed_are_resumed(place: Place) -> None:
    """One amid its output shards, the other while they get their names: of which the first job has
    six."""
    arm(
        place.faults,
        PointFault("create:end", nth=1, action="kill parent"),
        PointFault("publish:end", nth=8),
    )
    with place.serving() as service:
        ids = [place.submit(service, "first"), place.submit(service, "second")]
        rows = [place.await_end(job_id) for job_id in ids]
    assert struck(place.faults) == ["create:end", "publish:end"]
    assert [(row.attempt, row.deaths) for row in rows] == [(2, 1), (2, 1)]
    assert files_of(place.root / "first") == files_of(place.root / "second") == place.expected()


@pytest.mark.exhaustive
def test_service_and_job_are_killed_at_once(place: Place) -> None:
    arm(place.faults, PointFault("create:end", action="stop"))
    with place.serving() as service:
        job_id = place.submit(service, "out")
        held(service)
        service.kill()
    psutil.Process(place.row(job_id).pid).kill()
    with place.serving():
        row = place.await_end(job_id)
    assert (row.attempt, row.deaths) == (2, 1)
    assert files_of(place.root / "out") == place.expected()


@pytest.mark.exhaustive
def test_two_replicas_do_nothing_twice(place: Place, postgres: PostgresServer) -> None:
    """Three due times wait for whichever replica comes first, and jobs of users'."""
    place.url = postgres.fresh_database()
    nightly = [
        {
            "name": f"nightly-{number}",
            "every": "60s",
            "paused": True,
            "end_at": datetime.fromtimestamp(time.time() + 30, UTC).isoformat(),
            "spec": spec_of(output_bck=f"nightly-{number}", output_format="a-%d", **SHUFFLE),
        }
        for number in range(3)
    ]
    with place.serving("one") as one, place.serving("two") as two:
        for each in nightly:
            made = httpx.post(f"{one.url}/v1/schedules", json=each, timeout=120)
            assert made.status_code == 201, made.text
        by_hand = [place.submit(each, f"out-{at}") for at, each in enumerate((one, two))]
        with place.database.writing() as connection:
            # As after a long absence of all services.
            connection.execute(
                update(schedules).values(
                    paused=False,
                    created_at=schedules.c.created_at - 61,
                    next_due_at=schedules.c.created_at - 1,
                )
            )
        await_that(lambda: _all_over(place.database, len(by_hand) + 3))
    with place.database.reading() as connection:
        due = connection.execute(select(schedule_runs)).all()
        rows = connection.execute(select(jobs)).all()
    events = JobStore(place.database).events_after(0, limit=100_000)
    begun = Counter(
        each.job_id for each in events if each.kind == "state" and each.data["state"] == "running"
    )
    assert begun == dict.fromkeys((row.job_id for row in rows), 1)
    assert [(row.state, row.error) for row in rows] == [("finished", None)] * 5
    assert len({row.replica for row in rows}) == 2, "one of them did nothing"
    assert len({row.schedule_id for row in due}) == len(due) == 3
    assert {row.job_id for row in due} == {row.job_id for row in rows} - set(by_hand)


def _all_over(database: Database, count: int) -> bool:
    with database.reading() as connection:
        states = connection.execute(select(jobs.c.state)).scalars().all()
    return len(states) >= count and all(state in ENDED for state in states)


WAIT_S = 180


@pytest.fixture
def server() -> Iterator[RestartedServer]:
    try:
        binaries = programs()
    except CannotInstall as none:
        skip_outside_ci(f"there is no PostgreSQL: {none.reason}")
    with restarted_server(binaries) as server:
        yield server


@pytest.fixture
def pg_place(tmp_path: Path, server: RestartedServer) -> Iterator[Place]:
    pg_place = Place(tmp_path)
    pg_place.url = server.server.url(server.server.fresh_database().rpartition("/")[2])
    pg_place.faults.mkdir()
    try:
        yield pg_place
    finally:
        end_marked(pg_place.mark)
        pg_place.database.close()


def watched(service: ServiceProcess, job_id: str, begun: threading.Event) -> dict[str, object]:
    """What the last event of a job's stream says."""
    url = f"{service.url}/v1/jobs/{job_id}/events"
    kind = ""
    with httpx.stream("GET", url, timeout=WAIT_S) as stream:
        for line in stream.iter_lines():
            begun.set()
            if line.startswith("event:"):
                kind = line.removeprefix("event:").strip()
            if line.startswith("data:") and kind == "end":
                event: dict[str, object] = json.loads(line.removeprefix("data:"))
                return event
    raise AssertionError("the stream ended before the job did")


@pytest.mark.exhaustive
def test_the_database_is_away_for_a_while(pg_place: Place, server: RestartedServer) -> None:
    arm(pg_place.faults, PointFault("create:start", 1, "stop"))
    with pg_place.serving() as service, ThreadPoolExecutor(1) as pool:
        running = pg_place.submit(service, "out-running")
        worker = held(service)
        waiting = pg_place.submit(service, "out-waiting")
        due_s = int(time.time()) + 3
        schedule = {
            "name": "once",
            "spec": spec_of(**{"output_bck": "out-due", **SHUFFLE}),
            "every": "1d",
            "start_at": datetime.fromtimestamp(due_s, UTC).isoformat(),
        }
        answer = httpx.post(f"{service.url}/v1/schedules", json=schedule, timeout=120)
        assert answer.status_code == 201, answer.text
        begun = threading.Event()
        stream = pool.submit(watched, service, running, begun)
        assert begun.wait(WAIT_S)
        process = psutil.Process(pg_place.row(running).pid)
        pg_place.database.close()

        server.stop()
        answer = httpx.post(f"{service.url}/v1/jobs", json=spec_of(output_bck="x"), timeout=120)
        assert answer.status_code == 503
        assert httpx.get(f"{service.url}/v1/jobs", timeout=120).status_code == 503
        assert httpx.get(f"{service.url}/healthz", timeout=120).status_code == 200
        worker.send_signal(signal.SIGCONT)  # the job ends, and cannot report it
        await_that(lambda: list(pg_place.root.glob("out-running/**/*manifest*")), WAIT_S)
        await_that(lambda: time.time() > due_s + 1, WAIT_S)
        assert process.is_running()
        server.start()

        assert stream.result(WAIT_S) == {"state": "finished", "exit_code": 0}
        for job_id in (running, waiting):
            row = pg_place.await_end(job_id)
            assert (row.attempt, row.deaths) == (1, 0)
        runs = f"{service.url}/v1/schedules/once/runs"
        found = await_that(lambda: httpx.get(runs, timeout=120).json()["runs"], WAIT_S)
        assert [each["outcome"] for each in found] == ["submitted"]
        assert pg_place.await_end(found[0]["job_id"]).attempt == 1
        for output in ("out-running", "out-waiting", "out-due"):
            assert files_of(pg_place.root / output) == pg_place.expected()
        assert not (pg_place.root / "x").exists()
        ready = httpx.get(f"{service.url}/readyz", timeout=120)
        assert ready.status_code == 200, ready.text
