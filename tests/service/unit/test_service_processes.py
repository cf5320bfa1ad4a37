"""Processes of jobs: which attempts are dead, what a process reports of its job, promptly, in order
and all of it, and what it hears."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from dsort.errors import JobStoppedError
from dsort.log_lines import LineFormatter
from dsort.options import RunOptions
from dsort.service.database.engine import Database, open_database
from dsort.service.database.tables import JobRow
from dsort.service.hosting import process as deaths
from dsort.service.hosting import reporter as reporter_module
from dsort.service.hosting.process import (
    BEGIN_S_MAX,
    SILENT_S_MAX,
    VARIABLE,
    ExitReason,
    Host,
    JobEnvironment,
    JobProcess,
    Watch,
    how_it_died,
    key_of,
    log_event,
    log_path,
    remove_logs,
)
from dsort.service.hosting.reporter import Reporter
from dsort.service.jobs.queue import Ending, Limits, claim_next, take_over
from dsort.service.jobs.store import JobStore
from dsort.settings import Settings, StoreSettings
from dsort.stop_flag import StopFlag
from tests.support.fake_clock import FakeClock
from tests.support.internals import JobStarted, JobWarning, Machine, PhaseDone, Progress
from tests.support.refusals import raises
from tests.support.service_process import await_that

HOST = Host()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(100.0)


@pytest.fixture
def watch(clock: FakeClock) -> Watch:
    return Watch(HOST, "one", clock=clock.now)


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
    watch: Watch, clock: FakeClock, gone: int, host: str
) -> None:
    there = {"host": host, "replica": "two", "pid": gone, "pid_started": 1.0}
    assert death(watch, row(**there)) is None  # though its clock may be hours behind
    clock.seconds += SILENT_S_MAX - 1
    assert death(watch, row(**there)) is None
    assert death(watch, row(**there, heartbeat_at=6.0)) is None
    clock.seconds += SILENT_S_MAX - 1
    assert death(watch, row(**there, heartbeat_at=6.0)) is None
    clock.seconds += 1
    machine = host.partition("/")[0]
    assert death(watch, row(**there, heartbeat_at=6.0)) == ExitReason(
        f"{machine} has sent no heartbeat for 30 s"
    )


@pytest.mark.parametrize("host", ["far/boot/1", HOST.name])
def test_a_process_that_never_began_was_not_killed_by_its_job(
    watch: Watch, clock: FakeClock, host: str
) -> None:
    unborn = row(host=host, replica="two")
    assert death(watch, unborn) is None
    clock.seconds += BEGIN_S_MAX - 1
    assert death(watch, unborn) is None
    clock.seconds += 1
    found = death(watch, unborn)
    assert found is not None
    assert not found.died


def test_silence_of_a_database_counts_for_no_death(watch: Watch, clock: FakeClock) -> None:
    far = row(host="far/boot/1")
    assert death(watch, far) is None
    clock.seconds += 1000
    watch.forget()
    assert death(watch, far) is None
    assert watch.deaths([]) == {}
    clock.seconds += 1000
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
def test_a_death_is_reported_with_its_signal_and_whether_memory_ran_out(
    code: int, kills: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deaths, "oom_kills", lambda: 7 + kills)
    popen = cast("subprocess.Popen[bytes]", SimpleNamespace(pid=55))
    found = how_it_died(JobProcess(popen, 7), code)
    assert found == ExitReason(f"its process 55 {words}", out_of_memory="memory" in words)


def test_a_zombie_is_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = Machine().holder_of(process.pid).pid_start
    assert HOST.is_alive(process.pid, started)
    assert process.stdin is not None
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not HOST.is_alive(process.pid, started)
    process.wait()


def test_a_job_gets_its_environment_and_its_children_do_not(
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
        file.write("not logged I this\n")
    found = log_event(path)
    assert found is not None
    assert found["levels"] == "IWEE--"
    assert found["text"].splitlines()[-2:] == ["two", "not logged I this"]


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


WAIT_S = 120
ROOM = Limits(9, 9)


class Away(Database):
    """A database that does not answer the next ``refusals`` transactions that write."""

    refusals = 0
    refused: threading.Event

    @contextmanager
    def writing(self, *, alone: str = "") -> Iterator[Connection]:
        if self.refusals:
            self.refusals -= 1
            self.refused.set()
            raise OperationalError("UPDATE", {}, OSError("no server there"))
        with super().writing(alone=alone) as connection:
            yield connection


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Away]:
    """With one job, which runs its first attempt."""
    monkeypatch.setattr(reporter_module, "TELL_S", 0.01)
    monkeypatch.setattr(reporter_module, "BEAT_S", 0.02)
    with open_database(f"sqlite:///{tmp_path}/service.db") as opened:
        away = Away(opened.engine)
        away.refused = threading.Event()
        values: dict[str, Any] = {"spec": {}, "input_uri": "file:///a", "output_uri": "file:///b"}
        JobStore(away).submit(JobRow(job_id="a", kind="run", owner="ann", claims=[], **values))
        assert claim_next(away, host="h", replica="one", limits=ROOM, now_s=1.0) is not None
        yield away


@pytest.fixture
def stop() -> Iterator[StopFlag]:
    with StopFlag() as flag:
        yield flag


class Telling:
    """A reporter at work."""

    def __init__(self, database: Away, stop: StopFlag) -> None:
        self.lost = threading.Event()
        self.store = JobStore(database)
        self.reporter = Reporter(database, "a", 1, stop, self.lost.set)
        self.reporter.start()

    def row(self) -> JobRow:
        row = self.store.get("a")
        assert row is not None
        return row

    def events(self) -> list[tuple[str, Any]]:
        return [
            (each.kind, each.data.get("phase") or each.data.get("text") or each.data.get("state"))
            for each in self.store.events_after(0, job_id="a")
        ]


@pytest.fixture
def telling(database: Away, stop: StopFlag) -> Iterator[Telling]:
    telling = Telling(database, stop)
    yield telling
    telling.reporter.close()


def progress(phase: str, shards: int, bytes_done: int = 0, elapsed_s: float = 1.0) -> Progress:
    return Progress("a", phase, shards, 10, 0, bytes_done, 0, elapsed_s)


def done(phase: str) -> PhaseDone:
    return PhaseDone("a", phase, 1.5, 10, 3, 4000)


def test_events_are_reported_in_order_and_the_last_of_many_steps_only(telling: Telling) -> None:
    reporter = telling.reporter
    for shards in range(10):
        reporter(progress("resolve", shards))
    reporter(done("resolve"))
    reporter(JobStarted("a", "map", 2, 4, 99))
    reporter(JobWarning("a", "odd", "this is odd"))
    assert reporter.end(Ending("finished", 0))
    kinds = [kind for kind, _ in telling.events()]
    at = kinds.index("phase")
    assert kinds[at - 1 :] == ["progress", "phase", "started", "warning", "state"]
    assert kinds.count("progress") < 10
    row = telling.row()
    assert row.progress is not None
    assert (row.phase, row.progress["shards_done"], row.warning_count) == ("resolve", 9, 1)
    (phase,) = row.phases or ()
    counts = {"shards": 10, "records": 3, "bytes": 4000, "members": 0, "payload_bytes": 0}
    assert phase == {"phase": "resolve", "seconds": 1.5, **counts}


def test_a_request_to_stop_is_heard(telling: Telling, stop: StopFlag) -> None:
    telling.store.ask_stop("a", "too late")
    await_that(lambda: stop.requested)
    with raises(JobStoppedError, "too late", signal_number=15):
        stop.raise_if_requested()


def test_a_job_that_another_process_has_taken_over_is_let_go(
    telling: Telling, database: Away
) -> None:
    values: dict[str, Any] = {"limits": ROOM, "now_s": 2.0, "reason": "thought dead"}
    assert take_over(database, "a", 1, host="g", replica="two", **values) is not None
    assert telling.lost.wait(WAIT_S)
    assert not telling.reporter.end(Ending("finished", 0))
    row = telling.row()
    assert (row.state, row.attempt) == ("running", 2)


def test_nothing_but_old_progress_is_lost_while_the_database_is_away(
    telling: Telling, database: Away
) -> None:
    reporter = telling.reporter
    database.refusals = 3
    reporter(done("resolve"))
    for shards in range(5):
        database.refused.clear()
        reporter(progress("extract", shards))
        reporter(JobWarning("a", "odd", f"odd {shards}"))
        if database.refusals:
            assert database.refused.wait(WAIT_S)
    database.refusals = 2
    assert reporter.end(Ending("finished", 0))
    reported = telling.events()
    assert [text for kind, text in reported if kind == "warning"] == [f"odd {n}" for n in range(5)]
    assert ("phase", "resolve") in reported
    assert reported[-1] == ("state", "finished")
    row = telling.row()
    assert row.progress is not None
    assert (row.progress["shards_done"], row.warning_count) == (4, 5)


def test_a_long_jobs_progress_stays_bounded(
    telling: Telling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter_module, "PROGRESS_KEPT", 8)
    for shards in range(40):
        telling.reporter(progress("extract", shards))
        await_that(
            lambda wanted=shards: (
                (row := telling.store.get("a")) is not None
                and row.progress is not None
                and row.progress["shards_done"] == wanted
            )
        )
    kept = [kind for kind, _ in telling.events() if kind == "progress"]
    assert 2 <= len(kept) <= 16  # evenly spread: fewer, where the test was held up meanwhile


def test_the_rate_is_that_of_the_last_seconds_of_the_phase() -> None:
    rate = reporter_module._Rate()
    assert rate(progress("extract", 1, 0, 0.0)) is None
    assert rate(progress("extract", 1, 1000, 1.0)) == 1000.0
    for second in range(2, 11):
        found = rate(progress("extract", 1, 1000 + (second - 1) * 10, float(second)))
    assert found == 10.0
    assert rate(progress("create", 1, 60, 2.0)) == 30.0


def test_what_an_earlier_attempt_did_is_no_speed() -> None:
    rate = reporter_module._Rate()
    assert rate(progress("create", 1, 10**12, 0.001)) is None
    assert rate(progress("create", 1, 10**12 + 300, 3.001)) == 100.0
