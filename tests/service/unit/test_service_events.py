"""Events of jobs: their metrics, which Prometheus can read, count each once; the feed hands each to
all who watch its job; and progress is one number that only ever grows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import insert, update
from starlette.types import Receive, Scope, Send

from dsort.service import change_feed as feed
from dsort.service.api.metrics import Metrics, RequestMetrics
from dsort.service.change_feed import ChangeFeed
from dsort.service.database.engine import Database, open_database, stored_value
from dsort.service.database.tables import events, jobs
from dsort.service.jobs.rows import PHASES, EventRow, progress_view
from dsort.service.jobs.store import JobStore
from dsort.service.security.tokens import VIEWER, Identity
from tests.support.internals import JobOut, to_json
from tests.support.job_rows import job_row

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@dataclass(frozen=True)
class Counted:
    """A database with two running jobs, and the metrics of the replica that runs the first."""

    database: Database
    metrics: Metrics

    def set(self, job_id: str, **values: Any) -> None:
        with self.database.writing() as connection:
            connection.execute(update(jobs).where(jobs.c.job_id == job_id).values(values))

    def samples(self, caller: Identity | None = None) -> Samples:
        exposition = self.metrics.text(caller) if caller else self.metrics.text()
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(exposition.decode())
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        return self.samples().get((name, tuple(sorted(labels.items()))))


@pytest.fixture
def counted(tmp_path: Path) -> Iterator[Counted]:
    with open_database(f"sqlite:///{tmp_path}/service.db") as database:
        store = JobStore(database, clock=lambda: 1000.0)
        found = Counted(database, Metrics(store, replica="r1"))
        for job_id, replica in (("job-1", "r1"), ("job-2", "r2")):
            store.submit(job_row(job_id, input_uri="s3://in", output_uri=f"s3://out-{job_id}"))
            found.set(job_id, state="running", replica=replica, started_at=1042.0, attempt=1)
        yield found


def progress(phase: str, bytes_done: int, records_done: int = 0, **more: Any) -> dict[str, Any]:
    counts = {"shards_done": 0, "shards_total": 0, "bytes_total": 100, "elapsed_s": 2.0}
    done = {"bytes_done": bytes_done, "records_done": records_done, "bytes_per_s": 21.0}
    return {"phase": phase, **counts, **done, **more}


def phase_done(phase: str, size: int, records: int, elapsed_s: float) -> dict[str, Any]:
    return {"phase": phase, "elapsed_s": elapsed_s, "shards": 1, "records": records, "bytes": size}


def test_bytes_and_records_count_as_they_are_worked_off_and_once(counted: Counted) -> None:
    on_event = counted.metrics.on_event
    for done in (progress("extract", 10, 1), progress("extract", 60, 4)):
        on_event("job-1", "progress", done)
    assert counted.value("dsort_phase_bytes_total", phase="extract") == 60
    on_event("job-2", "progress", progress("extract", 5, 1))
    on_event("job-1", "phase", phase_done("extract", 100, 7, 20.0))
    assert counted.value("dsort_phase_bytes_total", phase="extract") == 105
    assert counted.value("dsort_phase_records_total", phase="extract") == 8
    on_event("job-1", "progress", progress("create", 30, 2))
    assert counted.value("dsort_phase_bytes_total", phase="create") == 30
    assert counted.value("dsort_phase_seconds_sum", phase="extract") == 20
    assert counted.value("dsort_phase_seconds_bucket", phase="extract", le="15.0") == 0
    assert counted.value("dsort_phase_seconds_bucket", phase="extract", le="60.0") == 1


def test_the_time_in_the_queue_is_that_of_the_first_attempt(counted: Counted) -> None:
    counted.metrics.on_event("job-1", "state", {"state": "running", "attempt": 1})
    assert counted.value("dsort_job_queue_seconds_sum") == 42
    assert counted.value("dsort_job_queue_seconds_bucket", le="15.0") == 0
    assert counted.value("dsort_job_queue_seconds_bucket", le="60.0") == 1
    counted.metrics.on_event("gone", "state", {"state": "running", "attempt": 1})
    assert counted.value("dsort_job_queue_seconds_count") == 1


def test_a_running_job_has_series_until_it_has_ended(counted: Counted) -> None:
    counted.set("job-1", phase="extract", progress=progress("extract", 50, 7), warning_count=3)
    assert counted.value("dsort_job_phase", job="job-1", phase="extract") == 1
    assert counted.value("dsort_job_bytes_per_second", job="job-1") == 21
    for name, value in (("bytes", 50), ("records", 7), ("elapsed_seconds", 2)):
        name = f"dsort_job_phase_{name}"
        assert counted.value(name, job="job-1", phase="extract") == value
    assert counted.value("dsort_job_attempts", job="job-1") == 1
    assert counted.value("dsort_job_warning_count", job="job-1") == 3
    share = counted.value("dsort_job_progress_ratio", job="job-1")
    assert share is not None
    assert 0 < share < 1
    counted.set("job-1", state="finished")
    assert not [key for key in counted.samples() if ("job", "job-1") in key[1]]


def test_jobs_of_others_and_of_other_replicas_are_not_shown(counted: Counted) -> None:
    for job_id in ("job-1", "job-2"):
        counted.set(job_id, phase="extract", progress=progress("extract", 50))

    def shown(caller: Identity | None = None) -> set[str]:
        return {
            value
            for _, labels in counted.samples(caller)
            for label, value in labels
            if label == "job"
        }

    assert shown() == {"job-1"}
    assert shown(Identity("bob", VIEWER, ("*",), ("s3://out-job-1",))) == {"job-1"}
    assert shown(Identity("bob", VIEWER, ("*",), ("s3://mine",))) == set()


def test_metrics_report_a_database_that_is_away(counted: Counted, tmp_path: Path) -> None:
    counted.database.close()
    for each in tmp_path.glob("service.db*"):
        each.unlink()
    (tmp_path / "service.db").mkdir()
    assert counted.value("dsort_database_up") == 0
    counted.metrics.on_event("job-1", "state", {"state": "running", "attempt": 1})
    assert counted.value("dsort_jobs_ended_total", state="finished") == 0


def test_requests_are_counted_by_route_not_by_path(counted: Counted) -> None:
    app = FastAPI()

    @app.get("/things/{name}")
    def thing(name: str) -> str:
        return name

    app.add_middleware(RequestMetrics, metrics=counted.metrics)
    client = TestClient(app)
    for name in "abc":
        client.get(f"/things/{name}")
        client.get(f"/no/{name}")
    client.request("BREW", "/things/a")
    samples = {
        labels: value
        for (name, labels), value in counted.samples().items()
        if name == "dsort_http_requests_total"
    }
    assert {tuple(value for _, value in labels): n for labels, n in samples.items()} == {
        ("GET", "/things/{name}", "200"): 3,
        ("GET", "(none)", "404"): 3,
        ("OTHER", "/things/{name}", "405"): 1,
    }
    assert counted.value("dsort_http_request_seconds_count", route="/things/{name}", method="GET")


def test_a_request_that_raises_is_counted_once(counted: Counted) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = SimpleNamespace(path="/broken")
        raise ZeroDivisionError

    scope = {"type": "http", "method": "GET"}
    with pytest.raises(ZeroDivisionError):
        asyncio.run(RequestMetrics(broken, metrics=counted.metrics)(scope, None, None))  # type: ignore[arg-type]
    assert (
        counted.value("dsort_http_requests_total", route="/broken", method="GET", status="500") == 1
    )


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(f"sqlite:///{tmp_path}/service.db") as opened:
        store = JobStore(opened)
        for job_id in ("a", "b"):
            new = job_row(job_id, owner="me")
            store.submit(new)
        yield opened


def note(database: Database, number: int, job_id: str = "a") -> None:
    row = {"number": number, "job_id": job_id, "at": 0.0, "kind": "log", "data": {"n": number}}
    with database.writing() as connection:
        connection.execute(insert(events), row)


async def taken(queue: feed.Subscriber) -> list[int | None]:
    await asyncio.to_thread(int)  # what was handed on comes with the loop's next turn
    found: list[int | None] = []
    while not queue.empty():
        event = queue.get_nowait()
        found.append(None if event is None else event.number)
    return found


def test_all_who_watch_a_job_learn_of_it_and_no_others(database: Database) -> None:
    heard: list[EventRow] = []

    async def watch() -> None:
        source = ChangeFeed(JobStore(database), trails=False, listener=heard.append)
        with source.watch("a") as one, source.watch("a") as two, source.watch("b") as other:
            note(database, 10)
            note(database, 11, "b")
            note(database, 12)
            source.turn()
            source.turn()
            assert await taken(one) == await taken(two) == [10, 12]
            assert await taken(other) == [11]
        assert [event.number for event in heard] == [10, 11, 12]

    asyncio.run(watch())


def test_an_event_that_is_committed_late_is_reported_late_and_once(database: Database) -> None:
    async def watch() -> None:
        source = ChangeFeed(JobStore(database), trails=True)
        with source.watch("a") as queue:
            note(database, 20)
            source.turn()
            note(database, 15)
            note(database, 21)
            source.turn()
            source.turn()
            assert await taken(queue) == [20, 15, 21]

    asyncio.run(watch())


def test_a_stream_that_falls_far_behind_is_ended(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "WAITING_MAX", 3)

    async def watch() -> None:
        source = ChangeFeed(JobStore(database), trails=False)
        with source.watch("a") as queue:
            for number in range(10, 20):
                note(database, number)
            source.turn()
            assert None in await taken(queue)  # and it asks again for what it has not seen

    asyncio.run(watch())


def progress_of(phase: str, done: int, total: int, elapsed_s: float = 4.0) -> dict[str, Any]:
    shards = {"shards_done": done, "shards_total": total, "bytes_total": total * 100}
    return progress(phase, done * 100, **shards, elapsed_s=elapsed_s, bytes_per_s=None)


@pytest.mark.parametrize("kind", ["run", "plan"])
def test_the_share_grows_to_the_whole_over_all_phases(kind: str) -> None:
    phases = PHASES if kind == "run" else PHASES[:3]
    shares = []
    for phase in phases:
        for done in (0, 3, 10):
            view = progress_view(progress_of(phase, done, 10), kind)
            assert view is not None
            shares.append(view["share"])
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)


def test_what_is_left_is_reported_once_one_can_tell() -> None:
    def left_s(done: int, total: int, elapsed_s: float) -> float | None:
        view = progress_view(progress_of("create", done, total, elapsed_s), "run")
        assert view is not None
        return view["left_s"]  # type: ignore[no-any-return]

    assert left_s(1, 4, 2.0) == 6.0
    assert left_s(1, 4, 0.5) is None  # too soon
    assert left_s(0, 4, 9.0) is None
    assert left_s(4, 4, 9.0) is None
    assert left_s(1, 0, 9.0) is None  # of how much is not known


def test_what_is_left_goes_with_the_rate_that_is_shown() -> None:
    """A job that goes on had most of it done before this attempt began."""
    view = progress_view({**progress_of("create", 9, 10, 2.0), "bytes_per_s": 10.0}, "run")
    assert view is not None
    assert view["left_s"] == 10.0


def test_without_bytes_shards_are_counted() -> None:
    counted = {**progress_of("extract", 5, 10), "bytes_done": 0, "bytes_total": 0}
    view = progress_view(counted, "run")
    assert view is not None
    assert view["share"] == pytest.approx(0.02 + 0.43 / 2)
    assert progress_view(None, "run") is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_what_the_service_stores_is_read_as_it_was(value: object) -> None:
    assert stored_value(to_json(value)) == json.loads(to_json(value))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": NaN}', {"a": None}),
        ('["caf\\udce9", "\\ud83d"]', ["caf\\xe9", "\\ud83d"]),
        ('{"\\ud800": "\\ud83d\\ude00"}', {"\\ud800": "\U0001f600"}),
        ('{"a": 123456789012345678901234567890}', {"a": 123456789012345678901234567890}),
    ],
)
def test_odd_values_are_read_as_values_that_can_be_sent(text: str, value: object) -> None:
    assert stored_value(text) == value


@pytest.mark.parametrize("levels", [150, 250, 5_000, 200_000])
def test_a_value_of_many_levels_can_be_shown(levels: int) -> None:
    document = {"levels": stored_value("[" * levels + "]" * levels)}
    shown = JobOut(job_id="a", kind="run", state="failed", error=document)
    assert json.loads(to_json(shown.model_dump(mode="json")))["error"]


@pytest.mark.parametrize("text", ["", "[", '{"a"', b"\xff\xfe", "nul"])
def test_a_torn_text_says_so(text: str | bytes) -> None:
    assert stored_value(text)["unreadable"].startswith("no JSON")
