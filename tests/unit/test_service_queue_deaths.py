"""Who counts as dead: a process of this machine that is gone, and one of another machine only when
it has been silent, as seen from here, for long enough. And how a death is reported."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from dsort.errors import WorkerLostError
from dsort.log_lines import LineFormatter
from dsort.options import RunOptions
from dsort.service.hosting import process as deaths
from dsort.service.hosting import ray_head
from dsort.service.hosting.dispatcher import Wakeup
from dsort.service.hosting.environment import VARIABLE, JobEnvironment
from dsort.service.hosting.logs import (
    log_event,
    log_path,
    read_logs,
    remove_logs,
    tail,
)
from dsort.service.hosting.process import (
    BEGIN_S_MAX,
    LEFT_ALONE,
    NEIGHBOUR_S,
    SILENT_S_MAX,
    Host,
    JobProcess,
    Watch,
    how_it_died,
    oom_kills,
)
from dsort.service.jobs.rows import JobRow
from dsort.settings import Settings, StoreSettings

HOST = Host()


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(clock: Clock) -> Watch:
    return Watch(HOST, "one", clock=clock)


def row(**more: Any) -> JobRow:
    values = dict.fromkeys(JobRow.__struct_fields__)
    values |= {"job_id": "a", "attempt": 1, "host": HOST.name, "replica": "one", "pid": None}
    return JobRow(**cast("dict[str, Any]", {**values, "heartbeat_at": 5.0, **more}))


@pytest.fixture(scope="module")
def gone() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_process_of_this_machine_lives_as_long_as_it_is_there(watch: Watch, gone: int) -> None:
    pid, started = HOST.this_process()
    assert watch.death(row(pid=pid, pid_started=started)) is None
    death = watch.death(row(pid=gone, pid_started=1.0))
    assert death is not None
    assert (death.reason, death.died, death.ours) == (f"its process {gone} is gone", True, True)
    other = watch.death(row(pid=pid, pid_started=started + 1))  # its number went to another
    assert other is not None


def test_a_job_that_was_claimed_before_the_service_ended_had_no_process(watch: Watch) -> None:
    death = watch.death(row())
    assert death is not None
    assert not death.died


def test_another_replica_of_this_machine_comes_first(watch: Watch, clock: Clock, gone: int) -> None:
    dead = row(replica="two", pid=gone, pid_started=1.0)
    assert watch.death(dead) is None
    clock.now_s += NEIGHBOUR_S
    death = watch.death(dead)
    assert death is not None
    assert not death.ours


def test_another_machines_heartbeats_count_by_our_clock(watch: Watch, clock: Clock) -> None:
    there = {"host": "far/boot/1", "pid": 1, "pid_started": 1.0}
    assert watch.death(row(**there)) is None  # though its clock may be hours behind
    clock.now_s += SILENT_S_MAX - 1
    assert watch.death(row(**there)) is None
    assert watch.death(row(**there, heartbeat_at=6.0)) is None
    clock.now_s += SILENT_S_MAX - 1
    assert watch.death(row(**there, heartbeat_at=6.0)) is None
    clock.now_s += 1
    death = watch.death(row(**there, heartbeat_at=6.0))
    assert death is not None
    assert death.reason == "far has not been heard of for 30 s"
    assert not death.ours


@pytest.mark.parametrize("host", ["far/boot/1", HOST.name])
def test_a_process_that_never_began_was_not_killed_by_its_job(
    watch: Watch, clock: Clock, host: str
) -> None:
    unborn = row(host=host, replica="two")
    assert watch.death(unborn) is None
    clock.now_s += BEGIN_S_MAX - 1
    assert watch.death(unborn) is None
    clock.now_s += 1
    death = watch.death(unborn)
    assert death is not None
    assert (death.died, death.ours) == (False, False)


def test_silence_of_a_database_is_nobodys_death(watch: Watch, clock: Clock) -> None:
    far = row(host="far/boot/1")
    assert watch.death(far) is None
    clock.now_s += 1000
    watch.forget()
    assert watch.death(far) is None
    watch.keep_only(set())
    clock.now_s += 1000
    assert watch.death(far) is None


@pytest.mark.parametrize(
    ("code", "kills", "words", "died"),
    [
        (1, 0, "ended with code 1", True),
        (0, 0, "ended with code 0", True),
        (LEFT_ALONE, 0, "was told to end", False),
        (-signal.SIGSEGV, 1, "was killed by SIGSEGV", True),
        (-signal.SIGKILL, 0, "was killed by SIGKILL", True),
        (-signal.SIGKILL, 1, "was killed by SIGKILL, probably because memory ran out", True),
        (-200, 0, "was killed by signal 200", True),
    ],
)
def test_how_it_died(
    code: int, kills: int, words: str, died: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deaths, "oom_kills", lambda: 7 + kills)
    process = JobProcess("a", 1, 55, 1.0, 7, cast("subprocess.Popen[bytes]", None))
    death = how_it_died(process, code)
    assert death.reason == f"its process 55 {words}"
    assert death.died == died


def test_the_kernel_counts_what_it_kills() -> None:
    kills = oom_kills()
    assert kills is None or kills >= 0


def test_a_zombie_is_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    started = HOST.start_of(process.pid)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not HOST.is_alive(process.pid, started)
    process.wait()
    assert HOST.start_of(process.pid) is None


@pytest.fixture
def waker() -> Iterator[Wakeup]:
    with Wakeup() as waker:
        yield waker


def test_a_waker_wakes_for_a_wish_made_before(waker: Wakeup) -> None:
    for _ in range(100_000):  # more than its pipe holds
        waker.wake()
    for _ in range(1000):
        waker.wait(0.0)
    waker.wake()
    waker.wait(1000.0)


def test_a_waker_wakes_for_the_end_of_a_process(waker: Wakeup) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    waker.watch(process.pid)
    assert process.stdin is not None
    process.stdin.close()
    waker.wait(100.0)
    assert process.wait(100.0) == 1
    waker.watch(process.pid)  # gone: nobody minds


def test_surroundings_reach_the_job_and_not_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = (("s3", StoreSettings(region="eu", part_bytes=5 << 20)),)
    given = JobEnvironment(
        database_url="postgresql://u:secret@h/d",
        state_dir=tmp_path / "state",
        run=RunOptions(
            root=tmp_path,
            memory_max_bytes=1 << 30,
            settings=Settings(root=tmp_path, stores=stores),
        ),
        environment={"RAY_AUTH_TOKEN": "t"},
    )
    monkeypatch.setenv("DSORT_TOKEN", "a client's")
    monkeypatch.setenv("DSORT_DATABASE_URL", given.database_url)
    variables = given.to_environment()
    assert variables["RAY_AUTH_TOKEN"] == "t"
    assert "DSORT_TOKEN" not in variables
    assert [name for name, text in variables.items() if "secret" in text] == [VARIABLE]
    monkeypatch.setenv(VARIABLE, variables[VARIABLE])
    heard = JobEnvironment.from_environment()
    assert VARIABLE not in os.environ
    assert heard.options() == given.options()
    assert (heard.database_url, heard.state_dir) == (given.database_url, given.state_dir)


def test_a_log_becomes_an_event_that_says_the_level_of_each_line(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    assert log_event(path) is None
    handler = logging.FileHandler(path)
    handler.setFormatter(LineFormatter(is_of_attempt=True))
    try:
        for level in (logging.INFO, logging.WARNING, logging.ERROR):
            handler.handle(logging.LogRecord("n", level, "f", 1, "about %s", ("I",), None))
        handler.handle(logging.LogRecord("n", logging.ERROR, "f", 1, "one\ntwo", None, None))
    finally:
        handler.close()
    with path.open("a") as file:
        file.write("nobody logged I this\n")
    found = log_event(path)
    assert found is not None
    assert found["levels"] == "IWEE--"
    assert found["text"].splitlines()[-2:] == ["two", "nobody logged I this"]


def test_logs_of_all_attempts_are_read_in_order(tmp_path: Path) -> None:
    for attempt in (2, 10, 1):
        path = log_path(tmp_path, "job", attempt)
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"attempt {attempt}\n")
    log_path(tmp_path, "job-1", 1).write_text("another's")
    assert read_logs(tmp_path, "job") == "attempt 1\nattempt 2\nattempt 10\n"
    assert read_logs(tmp_path, "none") == ""
    remove_logs(tmp_path, "job")
    assert read_logs(tmp_path, "job") == ""
    assert read_logs(tmp_path, "job-1") == "another's"


def test_the_tail_of_a_log_begins_with_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert tail(path) == ""
    path.write_bytes(b"first line\nsecond \xff line\nthird\n")
    assert tail(path) == "first line\nsecond \N{REPLACEMENT CHARACTER} line\nthird\n"
    assert tail(path, bytes_max=15) == "third\n"


def test_a_ray_that_cannot_be_started_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = [sys.executable, "-c", "raise SystemExit('no room for Ray')"]
    monkeypatch.setattr(ray_head, "interpreter", lambda: failing)
    ray = ray_head.RayHead(tmp_path, cpus=1, over=threading.Event())
    with pytest.raises(WorkerLostError, match="no room for Ray") as failed:
        ray.ensure()
    assert "ray.log" in failed.value.hint
    assert not (tmp_path / "ray.json").exists()
    ray.stop()  # nothing to stop
