"""What a job process tells: promptly, in order, and all of it, though the database is away at
times; and what it hears."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from dsort.service.database.engine import Database, open_database
from dsort.service.database.tables import JobRow
from dsort.service.hosting import reporter as reporter_module
from dsort.service.hosting.reporter import Reporter, progress_data
from dsort.service.jobs.queue import Ending, Limits, claim_next, take_over
from dsort.service.jobs.store import JobStore
from dsort.stop_flag import StopFlag
from tests.support.internals import JobStarted, JobWarning, PhaseDone, Progress

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
            raise OperationalError("UPDATE", {}, OSError("nobody there"))
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


def until(what: Callable[[], object]) -> None:
    """Wait until ``what`` is true."""
    pause = threading.Event()
    for _ in range(WAIT_S * 100):
        if what():
            return
        pause.wait(0.01)
    raise AssertionError("it never came to that")


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
    row = telling.store.get("a")
    assert row is not None
    assert row.progress is not None
    assert (row.phase, row.progress["shards_done"], row.warning_count) == ("resolve", 9, 1)
    (phase,) = row.phases or ()
    counts = {"shards": 10, "records": 3, "bytes": 4000, "members": 0, "payload_bytes": 0}
    assert phase == {"phase": "resolve", "seconds": 1.5, **counts}


def test_progress_is_reported_while_the_job_runs(telling: Telling) -> None:
    telling.reporter(progress("extract", 3))
    until(lambda: ("progress", "extract") in telling.events())
    row = telling.store.get("a")
    assert row is not None
    assert row.phase == "extract"


def test_heartbeats_come_without_anything_to_tell(telling: Telling) -> None:
    seen = set()

    def beats() -> bool:
        row = telling.store.get("a")
        assert row is not None
        seen.add(row.heartbeat_at)
        return len(seen) >= 4

    until(beats)
    assert len(telling.events()) == 2  # queued, running


def test_a_request_to_stop_is_heard(telling: Telling, stop: StopFlag) -> None:
    telling.store.ask_stop("a", "too late")
    until(lambda: stop.requested)
    with pytest.raises(Exception, match="stopped by a request: too late") as stopped:
        stop.raise_if_requested()
    assert stopped.value.signal_number == 15  # type: ignore[attr-defined]


def test_a_job_that_another_process_has_taken_over_is_let_go(
    telling: Telling, database: Away
) -> None:
    values: dict[str, Any] = {"limits": None, "now_s": 2.0, "reason": "thought dead"}
    assert take_over(database, "a", 1, host="g", replica="two", **values) is not None
    assert telling.lost.wait(WAIT_S)
    assert not telling.reporter.end(Ending("finished", 0))
    row = telling.store.get("a")
    assert row is not None
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
    row = telling.store.get("a")
    assert row is not None
    assert row.progress is not None
    assert (row.progress["shards_done"], row.warning_count) == (4, 5)


def test_a_long_jobs_progress_stays_bounded(
    telling: Telling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter_module, "PROGRESS_KEPT", 8)
    for shards in range(40):
        telling.reporter(progress("extract", shards))
        until(
            lambda wanted=shards: (
                (row := telling.store.get("a")) is not None
                and row.progress is not None
                and row.progress["shards_done"] == wanted
            )
        )
    kept = [kind for kind, _ in telling.events() if kind == "progress"]
    assert 2 <= len(kept) <= 16  # evenly spread: fewer, where the test was held up meanwhile


def test_figures_of_progress() -> None:
    reported = progress_data(Progress("a", "create", 3, 10, 7, 250, 1000, 5.0004), lambda now: 50.0)
    assert reported == {
        "phase": "create",
        "shards_done": 3,
        "shards_total": 10,
        "records_done": 7,
        "bytes_done": 250,
        "bytes_total": 1000,
        "elapsed_s": 5.0,
        "members_done": 0,
        "payload_bytes_done": 0,
        "bytes_per_s": 50.0,
    }


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
