"""The thread in which a Ray is begun and ended: what it waits for, and what it leaves. No Ray is
needed for that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dsort.errors import JobStoppedError, WorkerLostError
from dsort.stop_flag import StopFlag
from tests.support.internals import FILES_CHARACTERS_MAX, RaySession, join_ray, ray_files, start_ray


@pytest.fixture
def stop() -> Iterator[StopFlag]:
    with StopFlag() as flag:
        yield flag


class Ray:
    """Notes the threads that begin and end it; ``begin`` waits for ``let_begin``."""

    def __init__(self) -> None:
        self.let_begin = threading.Event()
        self.began_in: threading.Thread | None = None
        self.ended_in: threading.Thread | None = None
        self.arguments: dict[str, object] = {}

    def begin(self, **arguments: object) -> None:
        self.let_begin.wait()
        self.arguments = arguments
        self.began_in = threading.current_thread()

    def end(self) -> None:
        self.ended_in = threading.current_thread()


def test_ray_begins_and_ends_in_one_thread_that_lives_as_long(stop: StopFlag) -> None:
    ray = Ray()
    session = RaySession(ray.begin, ray.end)
    ray.let_begin.set()
    assert session.wait(stop) is None
    assert ray.began_in not in (None, threading.current_thread())
    assert ray.began_in.is_alive()
    assert ray.ended_in is None
    session.close()
    assert ray.ended_in is ray.began_in
    assert not ray.began_in.is_alive()
    session.close()


def test_why_it_did_not_begin_is_known(stop: StopFlag) -> None:
    ray = Ray()
    problem = RuntimeError("no room")

    def fail() -> None:
        raise problem

    session = RaySession(fail, ray.end)
    assert session.wait(stop) is problem
    session.close()


def test_waiting_ends_with_a_request_to_stop_or_in_time(stop: StopFlag) -> None:
    ray = Ray()
    session = RaySession(ray.begin, ray.end)
    assert isinstance(session.wait(stop, seconds_max=0), TimeoutError)
    stop.request(signal.SIGTERM)
    with pytest.raises(JobStoppedError):
        session.wait(stop)
    session.close()  # which does not wait for another session's
    assert ray.ended_in is None
    ray.let_begin.set()


def test_a_handler_of_sigterm_is_put_back_in_its_place(stop: StopFlag) -> None:
    ray = Ray()
    ray.let_begin.set()
    before = signal.getsignal(signal.SIGTERM)
    session = RaySession(ray.begin, ray.end)
    assert session.wait(stop) is None
    assert signal.getsignal(signal.SIGTERM) == before
    session.close()


def test_a_ray_of_ones_own_leaves_no_file_and_no_process(stop: StopFlag) -> None:
    ray = Ray()
    session = start_ray(ray.begin, ray.end, 3)
    directory = session.directory
    server = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()", str(directory / "session")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"\n"
    (directory / "socket").touch()
    ray.let_begin.set()
    assert session.wait(stop) is None
    assert ray.arguments["num_cpus"] == 3
    assert ray.arguments["_temp_dir"] == str(ray_files(directory))
    session.close()
    assert ray.ended_in is ray.began_in
    server.wait()
    assert server.stdout.read() == b""
    assert not psutil.pid_exists(server.pid)
    assert not directory.exists()
    session.close()
    for stream in (server.stdin, server.stdout):
        assert stream is not None
        stream.close()


def test_sockets_of_ray_have_short_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("long" * 10)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    ray = Ray()
    ray.let_begin.set()
    session = start_ray(ray.begin, ray.end, 1)
    assert len(str(ray_files(session.directory))) <= FILES_CHARACTERS_MAX
    session.close()
    assert list(long.iterdir()) == []


def test_a_ray_that_other_machines_reach_is_not_used(stop: StopFlag) -> None:
    ray = Ray()
    session = start_ray(ray.begin, ray.end, 1)
    listen = "import socket, sys; s = socket.create_server(('0.0.0.0', 0)); print(flush=True); "
    server = subprocess.Popen(
        [sys.executable, "-c", f"{listen} input()", str(session.directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"\n"
    ray.let_begin.set()
    error = session.wait(stop)
    assert isinstance(error, WorkerLostError)
    assert "listens on 0.0.0.0:" in error.message
    session.close()
    server.wait()
    for stream in (server.stdin, server.stdout):
        assert stream is not None
        stream.close()


@pytest.mark.parametrize("mode", [None, "disabled", "token"])
def test_a_ray_of_ones_own_is_locked_whatever_the_environment_says(
    stop: StopFlag, monkeypatch: pytest.MonkeyPatch, mode: str | None
) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    ray, seen = Ray(), []
    ray.let_begin.set()

    def begin(**arguments: object) -> None:
        seen.append((os.environ["RAY_AUTH_MODE"], len(os.environ["RAY_AUTH_TOKEN"]) >= 32))

    session = start_ray(begin, ray.end, 1)
    assert session.wait(stop) is None
    session.close()
    assert seen == [("token", True)]
    assert (os.environ.get("RAY_AUTH_MODE"), os.environ.get("RAY_AUTH_TOKEN")) == (mode, None)


def test_a_cluster_is_asked_for_only_where_something_listens(
    stop: StopFlag, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = Ray()
    ray.let_begin.set()
    session = join_ray(ray.begin, ray.end, "no-such-host.invalid:6379")
    error = session.wait(stop)
    assert error is not None
    assert "no Ray cluster answers" in str(error)
    assert ray.began_in is None
    session.close()
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    session = join_ray(ray.begin, ray.end, "auto")
    assert session.wait(stop) is None
    assert ray.arguments["address"] == "auto"
    session.close()
