"""Which attempts are dead: those of this replica whose process is gone, and those of others that
sent no heartbeat, as seen from here, for long enough. And how a death is reported."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dsort.log_lines import LineFormatter
from dsort.options import RunOptions
from dsort.service.database.tables import JobRow
from dsort.service.hosting import process as deaths
from dsort.service.hosting.environment import VARIABLE, JobEnvironment
from dsort.service.hosting.process import (
    BEGIN_S_MAX,
    SILENT_S_MAX,
    ExitReason,
    Host,
    JobProcess,
    Watch,
    how_it_died,
    key_of,
    log_event,
    log_path,
    oom_kills,
    remove_logs,
    tail,
)
from dsort.settings import Settings, StoreSettings
from tests.support.internals import Machine

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


def death(watch: Watch, attempt: JobRow) -> ExitReason | None:
    return watch.deaths([attempt]).get(key_of(attempt))


def test_a_process_of_this_replica_lives_as_long_as_it_is_there(watch: Watch, gone: int) -> None:
    pid, started = HOST.this_process()
    assert death(watch, row(pid=pid, pid_started=started)) is None
    assert death(watch, row(pid=gone, pid_started=1.0)) == ExitReason(f"its process {gone} is gone")
    other = death(watch, row(pid=pid, pid_started=started + 1))  # its number went to another
    assert other is not None


def test_a_job_that_was_claimed_before_the_service_ended_had_no_process(watch: Watch) -> None:
    found = death(watch, row())
    assert found is not None
    assert not found.died


@pytest.mark.parametrize("host", ["far/boot/1", HOST.name])
def test_heartbeats_of_another_replica_count_by_our_clock(
    watch: Watch, clock: Clock, gone: int, host: str
) -> None:
    there = {"host": host, "replica": "two", "pid": gone, "pid_started": 1.0}
    assert death(watch, row(**there)) is None  # though its clock may be hours behind
    clock.now_s += SILENT_S_MAX - 1
    assert death(watch, row(**there)) is None
    assert death(watch, row(**there, heartbeat_at=6.0)) is None
    clock.now_s += SILENT_S_MAX - 1
    assert death(watch, row(**there, heartbeat_at=6.0)) is None
    clock.now_s += 1
    machine = host.partition("/")[0]
    assert death(watch, row(**there, heartbeat_at=6.0)) == ExitReason(
        f"{machine} has sent no heartbeat for 30 s"
    )


@pytest.mark.parametrize("host", ["far/boot/1", HOST.name])
def test_a_process_that_never_began_was_not_killed_by_its_job(
    watch: Watch, clock: Clock, host: str
) -> None:
    unborn = row(host=host, replica="two")
    assert death(watch, unborn) is None
    clock.now_s += BEGIN_S_MAX - 1
    assert death(watch, unborn) is None
    clock.now_s += 1
    found = death(watch, unborn)
    assert found is not None
    assert not found.died


def test_silence_of_a_database_counts_for_no_death(watch: Watch, clock: Clock) -> None:
    far = row(host="far/boot/1")
    assert death(watch, far) is None
    clock.now_s += 1000
    watch.forget()
    assert death(watch, far) is None
    assert watch.deaths([]) == {}
    clock.now_s += 1000
    assert death(watch, far) is None


@pytest.mark.parametrize(
    ("code", "kills", "words"),
    [
        (1, 0, "ended with code 1"),
        (0, 0, "ended with code 0"),
        (-signal.SIGSEGV, 1, "was killed by SIGSEGV"),
        (-signal.SIGKILL, 0, "was killed by SIGKILL"),
        (-signal.SIGKILL, 1, "was killed by SIGKILL, probably because memory ran out"),
        (-200, 0, "was killed by signal 200"),
    ],
)
def test_how_it_died(code: int, kills: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deaths, "oom_kills", lambda: 7 + kills)
    popen = cast("subprocess.Popen[bytes]", SimpleNamespace(pid=55))
    found = how_it_died(JobProcess(popen, 7), code)
    assert found == ExitReason(f"its process 55 {words}", out_of_memory="memory" in words)


def test_the_kernel_counts_what_it_kills() -> None:
    kills = oom_kills()
    assert kills is None or kills >= 0


def test_a_zombie_is_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = Machine().holder(process.pid).pid_start
    assert HOST.is_alive(process.pid, started)
    assert process.stdin is not None
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not HOST.is_alive(process.pid, started)
    process.wait()


def test_surroundings_reach_the_job_and_not_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = (("s3", StoreSettings(region="eu", part_bytes=5 << 20)),)
    given = JobEnvironment(
        replica="one",
        database_url="postgresql://u:secret@h/d",
        state_dir=tmp_path / "state",
        run=RunOptions(
            root=tmp_path / "r\udcffoot",  # a name that is no UTF-8
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


def test_logs_of_all_attempts_are_removed(tmp_path: Path) -> None:
    for attempt in (2, 10, 1):
        path = log_path(tmp_path, "job", attempt)
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"attempt {attempt}\n")
    other = log_path(tmp_path, "job-1", 1)
    other.write_text("another's")
    remove_logs(tmp_path, "none")
    remove_logs(tmp_path, "job")
    assert [*other.parent.iterdir()] == [other]


def test_the_tail_of_a_log_begins_with_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert tail(path) == ""
    path.write_bytes(b"first line\nsecond \xff line\nthird\n")
    assert tail(path) == "first line\nsecond \N{REPLACEMENT CHARACTER} line\nthird\n"
    assert tail(path, bytes_max=15) == "third\n"
