"""The Ray of a service: found again, ended by its number, refused if others can reach it; and a job
that died with it is resumed on the next one."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from dsort.errors import WorkerLostError
from dsort.service.database.engine import open_database
from dsort.service.database.tables import JobRow
from dsort.service.hosting import dispatcher, ray_head
from dsort.service.hosting.dispatcher import Dispatcher
from dsort.service.hosting.process import Host, JobEnvironment, JobProcess
from dsort.service.hosting.ray_head import STARTED, RayHead
from dsort.service.jobs.queue import Limits, claim_next
from dsort.service.jobs.store import JobStore
from tests.support.refusals import raises
from tests.support.service_here import SPEC, config_for
from tests.support.service_process import await_that

Begin = Callable[[str], RayHead]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """Makes the head of a service whose Ray is a program."""
    monkeypatch.setattr(ray_head, "STOP_S_MAX", 60)

    def made(program: str) -> RayHead:
        monkeypatch.setattr(ray_head, "interpreter", lambda: [sys.executable, "-c", program])
        return RayHead(tmp_path, cpus=1, over=threading.Event())

    yield made
    made("").stop()


def recorded(tmp_path: Path) -> psutil.Process:
    """The process in the head's file, which only its owner can read."""
    file = tmp_path / "ray.json"
    assert file.stat().st_mode & 0o777 == 0o600
    return psutil.Process(json.loads(file.read_bytes())["process"]["pid"])


def test_a_ray_that_cannot_be_started_shows_the_end_of_its_log(
    begin: Begin, tmp_path: Path
) -> None:
    ray = begin("raise SystemExit('no room for Ray')")
    with raises(WorkerLostError, "no room for Ray", hint="ray.log"):
        ray.ensure()
    assert not (tmp_path / "ray.json").exists()
    ray.stop()  # nothing to stop


def test_the_next_service_waits_for_a_ray_that_is_being_started_and_ends_it(
    begin: Begin, tmp_path: Path
) -> None:
    go_on = tmp_path / "go on"
    program = (
        "import pathlib, time\n"
        f"while not pathlib.Path({str(go_on)!r}).exists(): time.sleep(0.01)\n"
        f"print({STARTED!r}, flush=True)\n"
        "time.sleep(1000)"
    )
    first = begin(program)
    first._begin()  # and then its service is killed
    process = recorded(tmp_path)
    second = begin("raise SystemExit('begun a second time')")
    found: list[dict[str, str]] = []
    waiting = threading.Thread(target=lambda: found.append(second.ensure()))
    waiting.start()
    assert not found
    go_on.touch()
    waiting.join()
    assert recorded(tmp_path) == process
    assert found == [second.ensure()]
    assert found[0]["RAY_AUTH_TOKEN"] not in " ".join(process.cmdline())
    second.stop()
    first.stop()  # reaps its child
    await_that(lambda: not process.is_running())
    assert not (tmp_path / "ray.json").exists()


def test_a_ray_that_other_machines_can_reach_is_ended_and_refused(
    begin: Begin, tmp_path: Path
) -> None:
    ray = begin(
        "import socket, time\n"
        "held = socket.create_server(('0.0.0.0', 0))\n"
        f"print({STARTED!r}, flush=True)\n"
        "time.sleep(1000)"
    )
    with raises(WorkerLostError, "0.0.0.0"):
        ray.ensure()
    assert ray._child is not None
    assert ray._child.poll() is not None
    assert not (tmp_path / "ray.json").exists()


class Ray:
    """The Ray of a service, which has ended and is started again."""

    def __init__(self, *arguments: Any, **more: Any) -> None: ...

    def ensure(self) -> dict[str, str]:
        return {"RAY_ADDRESS": "127.0.0.1:2"}


def test_a_job_that_died_with_the_services_own_ray_is_resumed_on_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses: list[str | None] = []

    def begin(row: JobRow, environment: JobEnvironment) -> JobProcess:
        addresses.append(environment.run.ray_address)
        raise OSError("enough is known")

    monkeypatch.setattr(dispatcher, "RayHead", Ray)
    monkeypatch.setattr(JobProcess, "begin", begin)
    config = config_for(tmp_path)
    config = replace(config, run=replace(config.run, runtime="ray"))
    uris = {"input_uri": "file:///in", "output_uri": "file:///out"}
    job = JobRow(job_id="a", kind="run", owner="ann", spec=SPEC, claims=[], **uris)
    with open_database(config.database_url) as database:
        JobStore(database).submit(job)
        here = Host().name
        assert claim_next(
            database, host=here, replica=config.replica, limits=Limits(1, 1), now_s=1.0
        )
        Dispatcher(config, database).turn()
    assert addresses == ["127.0.0.1:2"]
