"""The database goes away and comes back while jobs run, wait and are due: no process dies of it,
nothing is lost, nothing is done twice, and whoever watches sees the end."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import httpx
import psutil
import pytest

from tests.service.faults.test_service_restart import SHUFFLE, Place, held
from tests.support.datasets import files_of
from tests.support.debian import CannotInstall, skip_outside_ci
from tests.support.engine import spec_of
from tests.support.fault_points import PointFault, arm
from tests.support.postgres import programs
from tests.support.postgres_restarts import RestartedServer, restarted_server
from tests.support.service_process import ServiceProcess, await_that, end_marked

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
def place(tmp_path: Path, server: RestartedServer) -> Iterator[Place]:
    place = Place(tmp_path)
    place.url = server.server.url(server.server.fresh_database().rpartition("/")[2])
    place.faults.mkdir()
    try:
        yield place
    finally:
        end_marked(place.mark)
        place.database.close()


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
def test_the_database_is_away_for_a_while(place: Place, server: RestartedServer) -> None:
    arm(place.faults, PointFault("create:start", 1, "stop"))
    with place.serving() as service, ThreadPoolExecutor(1) as pool:
        running = place.submit(service, "out-running")
        worker = held(service)
        waiting = place.submit(service, "out-waiting")
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
        process = psutil.Process(place.row(running).pid)
        place.database.close()

        server.stop()
        answer = httpx.post(f"{service.url}/v1/jobs", json=spec_of(output_bck="x"), timeout=120)
        assert answer.status_code == 503
        assert httpx.get(f"{service.url}/v1/jobs", timeout=120).status_code == 503
        assert httpx.get(f"{service.url}/healthz", timeout=120).status_code == 200
        worker.send_signal(signal.SIGCONT)  # the job comes to its end, and can tell nobody
        await_that(lambda: list(place.root.glob("out-running/**/*manifest*")), WAIT_S)
        await_that(lambda: time.time() > due_s + 1, WAIT_S)
        assert process.is_running()
        server.start()

        assert stream.result(WAIT_S) == {"state": "finished", "exit_code": 0}
        for job_id in (running, waiting):
            row = place.await_end(job_id)
            assert (row.attempt, row.deaths) == (1, 0)
        runs = f"{service.url}/v1/schedules/once/runs"
        found = await_that(lambda: httpx.get(runs, timeout=120).json()["runs"], WAIT_S)
        assert [each["outcome"] for each in found] == ["submitted"]
        assert place.await_end(found[0]["job_id"]).attempt == 1
        for output in ("out-running", "out-waiting", "out-due"):
            assert files_of(place.root / output) == place.expected()
        assert not (place.root / "x").exists()
        ready = httpx.get(f"{service.url}/readyz", timeout=120)
        assert ready.status_code == 200, ready.text
