"""The law of metrics: what is reported can be read by Prometheus, every event counts once, a job
that has ended leaves no series behind, and nobody makes series by what he asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import update
from starlette.types import Receive, Scope, Send

from dsort.service.api.metrics import Metrics, RequestMetrics
from dsort.service.database.engine import Database, open_database
from dsort.service.database.tables import JobRow, jobs
from dsort.service.jobs.store import JobStore
from dsort.service.security.tokens import VIEWER, Identity

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
            store.submit(
                JobRow(
                    job_id=job_id,
                    kind="run",
                    owner="ann",
                    spec={},
                    input_uri="s3://in",
                    output_uri=f"s3://out-{job_id}",
                    claims=[],
                )
            )
            found.set(job_id, state="running", replica=replica, started_at=1042.0, attempt=1)
        yield found


def progress(phase: str, bytes_done: int, records_done: int = 0) -> dict[str, Any]:
    return {
        "phase": phase,
        "bytes_done": bytes_done,
        "bytes_total": 100,
        "records_done": records_done,
        "shards_done": 0,
        "shards_total": 0,
        "elapsed_s": 2.0,
        "bytes_per_s": 21.0,
    }


def phase_done(phase: str, size: int, records: int, elapsed_s: float) -> dict[str, Any]:
    return {
        "phase": phase,
        "elapsed_s": elapsed_s,
        "shards": 1,
        "records": records,
        "bytes": size,
    }


def test_what_has_not_happened_is_nought_not_missing(counted: Counted) -> None:
    assert counted.value("dsort_phase_bytes_total", phase="create") == 0
    assert counted.value("dsort_phase_seconds_count", phase="commit") == 0
    assert counted.value("dsort_jobs_ended_total", state="failed") == 0
    assert counted.value("dsort_jobs", state="stopped") == 0
    assert counted.value("dsort_job_retries_total") == 0


def test_jobs_are_counted_by_state_as_the_database_has_them(counted: Counted) -> None:
    assert counted.value("dsort_jobs", state="running") == 2
    counted.set("job-2", state="finished")
    assert counted.value("dsort_jobs", state="running") == 1
    assert counted.value("dsort_jobs", state="finished") == 1
    assert counted.value("dsort_database_up") == 1


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


def test_a_phase_that_is_begun_anew_counts_what_is_done_again(counted: Counted) -> None:
    on_event = counted.metrics.on_event
    on_event("job-1", "progress", progress("extract", 80))
    on_event("job-1", "state", {"state": "running", "attempt": 2, "reason": "it died"})
    on_event("job-1", "progress", progress("extract", 30))
    assert counted.value("dsort_phase_bytes_total", phase="extract") == 110
    assert counted.value("dsort_job_retries_total") == 1
    assert counted.value("dsort_job_queue_seconds_count") == 0


def test_the_time_in_the_queue_is_that_of_the_first_attempt(counted: Counted) -> None:
    counted.metrics.on_event("job-1", "state", {"state": "running", "attempt": 1})
    assert counted.value("dsort_job_queue_seconds_sum") == 42
    assert counted.value("dsort_job_queue_seconds_bucket", le="15.0") == 0
    assert counted.value("dsort_job_queue_seconds_bucket", le="60.0") == 1
    counted.metrics.on_event("gone", "state", {"state": "running", "attempt": 1})
    assert counted.value("dsort_job_queue_seconds_count") == 1


def test_ends_and_warnings_are_counted_by_kind(counted: Counted) -> None:
    for state in ("finished", "failed", "failed", "queued"):
        counted.metrics.on_event("job-1", "state", {"state": state, "attempt": 1})
    for number in range(200):
        counted.metrics.on_event("job-1", "warning", {"kind": f"k{number}", "text": "x"})
    counted.metrics.on_event("job-1", "log", {"text": "x"})
    assert counted.value("dsort_jobs_ended_total", state="finished") == 1
    assert counted.value("dsort_jobs_ended_total", state="failed") == 2
    assert counted.value("dsort_job_warnings_total", kind="k7") == 1
    assert counted.value("dsort_job_warnings_total", kind="other") == 100


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


def test_a_database_that_is_away_is_said_so(counted: Counted, tmp_path: Path) -> None:
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


def test_a_request_that_fails_in_the_service_is_counted_once(counted: Counted) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = SimpleNamespace(path="/broken")
        raise ZeroDivisionError

    scope = {"type": "http", "method": "GET"}
    with pytest.raises(ZeroDivisionError):
        asyncio.run(RequestMetrics(broken, metrics=counted.metrics)(scope, None, None))  # type: ignore[arg-type]
    assert (
        counted.value("dsort_http_requests_total", route="/broken", method="GET", status="500") == 1
    )


def test_what_runs_is_reported(counted: Counted) -> None:
    names = {name for name, _ in counted.samples()}
    assert "dsort_build_info" in names
    assert not {name for name in names if not name.startswith("dsort_")}
