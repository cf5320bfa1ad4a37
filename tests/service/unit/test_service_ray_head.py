"""The Ray of a service: found again, ended by its number, and refused if others can reach it."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from dsort.errors import WorkerLostError
from dsort.service.hosting import ray_head
from dsort.service.hosting.ray_head import STARTED, RayHead
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
    with pytest.raises(WorkerLostError) as failed:
        ray.ensure()
    assert "no room for Ray" in failed.value.message
    assert "ray.log" in failed.value.hint
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
    with pytest.raises(WorkerLostError) as refused:
        ray.ensure()
    assert "0.0.0.0" in refused.value.message
    assert ray._child is not None
    assert ray._child.poll() is not None
    assert not (tmp_path / "ray.json").exists()
