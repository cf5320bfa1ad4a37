"""``/metrics`` in Prometheus' text format, and how the figures are counted.

Counters and histograms cover the jobs that this replica has run since it started; the number of
jobs, and the progress of running jobs, are read from the database at each scrape.
"""

from __future__ import annotations

import platform
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from fastapi import APIRouter, Depends, Response
from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Histogram, Info
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dsort.model.report import EXAMPLE_ID
from dsort.service.api.dependencies import identity, problems
from dsort.service.database.tables import JobRow
from dsort.service.jobs.rows import PHASES, progress_view
from dsort.service.jobs.states import ENDED, STATES
from dsort.service.jobs.store import JobStore
from dsort.service.security.tokens import ANYONE, Identity
from dsort.version import dsort_version

if TYPE_CHECKING:  # the service has the metrics
    from dsort.service.service import Service

TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
QUEUE_S = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86400)
PHASE_S = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 3 * 3600, 8 * 3600, 86400)
REQUEST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
KINDS_MAX = 100
JOBS_REMEMBERED_MAX = 10_000


class _Counted(Struct):
    """The part of a job's current phase that is already counted."""

    phase: str
    bytes: int = 0
    records: int = 0


class Metrics:
    """Counts what jobs and requests do. Only one thread may call ``on_event``; any thread may call
    the other methods.

    ``replica``: only running jobs of this replica are shown one by one; None: all running jobs.
    """

    def __init__(self, store: JobStore, *, replica: str | None = None) -> None:
        self._store = store
        self._replica = replica
        self._counted: OrderedDict[str, _Counted] = OrderedDict()
        self._kinds: set[str] = set()
        registry = self._registry = CollectorRegistry()
        build = Info("dsort_build", "Versions of dsort and Python", registry=registry)
        build.info({"version": dsort_version(), "python": platform.python_version()})
        self._queue_s = Histogram(
            "dsort_job_queue_seconds",
            "From submission to the start of a job's first attempt",
            buckets=QUEUE_S,
            registry=registry,
        )
        self._phase_s = Histogram(
            "dsort_phase_seconds",
            "Seconds that phases of jobs took",
            ["phase"],
            buckets=PHASE_S,
            registry=registry,
        )
        self._bytes = Counter(
            "dsort_phase_bytes", "Bytes that jobs have processed", ["phase"], registry=registry
        )
        self._records = Counter(
            "dsort_phase_records", "Records that jobs have processed", ["phase"], registry=registry
        )
        self._retries = Counter(
            "dsort_job_retries",
            "Attempts after a job's first: the process died, or a user resumed the job",
            registry=registry,
        )
        self._warnings = Counter(
            "dsort_job_warnings", "Warnings of jobs", ["kind"], registry=registry
        )
        self._ended = Counter("dsort_jobs_ended", "Jobs that ended", ["state"], registry=registry)
        self._requests = Counter(
            "dsort_http_requests",
            "HTTP requests",
            ["route", "method", "status"],
            registry=registry,
        )
        self._request_s = Histogram(
            "dsort_http_request_seconds",
            "From an HTTP request to the start of its answer",
            ["route", "method"],
            buckets=REQUEST_S,
            registry=registry,
        )
        # A counter without events has the value 0; otherwise the scrape would lack the counter.
        for phase in PHASES:
            for each in (self._phase_s, self._bytes, self._records):
                each.labels(phase)
        for state in sorted(ENDED):
            self._ended.labels(state)

    # -- counting ---------------------------------------------------------------------------------

    def on_event(self, job_id: str, kind: str, data: Mapping[str, Any]) -> None:
        """Count an event of a job, as in the table ``events``; events of other kinds are
        ignored."""
        if kind == "state":
            self._on_state(job_id, data)
        elif kind == "warning":
            self._warnings.labels(self._known_kind(str(data.get("kind", "")))).inc()
        elif kind in ("progress", "phase") and data.get("phase") in PHASES:
            end = "" if kind == "phase" else "_done"
            amounts = data.get(f"bytes{end}", 0), data.get(f"records{end}", 0)
            self._count(job_id, data["phase"], *amounts)
            if kind == "phase":
                self._phase_s.labels(data["phase"]).observe(data.get("elapsed_s", 0.0))
                self._counted.pop(job_id, None)

    def _on_state(self, job_id: str, data: Mapping[str, Any]) -> None:
        state = data.get("state")
        if state == "running":
            self._counted.pop(job_id, None)
            if data.get("attempt", 1) > 1:
                self._retries.inc()
                return
            queue_s = self._waited_s(job_id)
            if queue_s is not None:
                self._queue_s.observe(queue_s)
        elif state in ENDED:
            self._counted.pop(job_id, None)
            self._ended.labels(state).inc()

    def _waited_s(self, job_id: str) -> float | None:
        try:
            row = self._store.get(job_id)
        except SQLAlchemyError:  # without this figure, the service continues
            return None
        if row is None or row.started_at is None:
            return None
        return max(0.0, row.started_at - row.created_at)

    def _count(self, job_id: str, phase: str, done_bytes: int, records: int) -> None:
        """``done_bytes`` and ``records`` are totals of a phase so far. Only what the last totals
        lack is counted."""
        counted = self._counted.get(job_id)
        if counted is None or counted.phase != phase:
            counted = self._counted[job_id] = _Counted(phase)
            while len(self._counted) > JOBS_REMEMBERED_MAX:
                self._counted.popitem(last=False)
        self._bytes.labels(phase).inc(max(0, done_bytes - counted.bytes))
        self._records.labels(phase).inc(max(0, records - counted.records))
        counted.bytes = max(counted.bytes, done_bytes)
        counted.records = max(counted.records, records)

    def _known_kind(self, kind: str) -> str:
        if kind not in self._kinds and len(self._kinds) >= KINDS_MAX:
            return "other"
        self._kinds.add(kind)
        return kind

    def on_request(self, route: str, method: str, status: int, elapsed_s: float) -> None:
        """Count a request. ``route``: the template of the request's route, because paths would make
        a time series for each job."""
        known = method if method in METHODS else "OTHER"
        self._requests.labels(route, known, str(status)).inc()
        self._request_s.labels(route, known).observe(elapsed_s)

    # -- scraping ------------------------------------------------------------------------------

    def text(self, caller: Identity = ANYONE) -> bytes:
        """All metrics in Prometheus' text format; of running jobs, only the jobs that ``caller``
        may see."""
        now = CollectorRegistry()
        now.register(_Now(self._store, self._replica, caller))
        return generate_latest(self._registry) + generate_latest(now)


class _Now(Collector):
    """The figures that are read from the database at each scrape."""

    def __init__(self, store: JobStore, replica: str | None, caller: Identity) -> None:
        self._store = store
        self._replica = replica
        self._caller = caller

    def describe(self) -> Iterable[Metric]:
        return ()  # else the registration would query the database, too

    def collect(self) -> Iterator[Metric]:
        answers = GaugeMetricFamily("dsort_database_up", "Whether the database answers")
        try:
            by_state, running = self._store.count_by_state(), self._store.running()
        except SQLAlchemyError:
            answers.add_metric([], 0)
            yield answers
            return
        answers.add_metric([], 1)
        yield answers
        jobs = GaugeMetricFamily(
            "dsort_jobs", "Jobs of all replicas, equal on each replica", labels=["state"]
        )
        for state in STATES:
            jobs.add_metric([state], by_state.get(state, 0))
        yield jobs
        here = (row for row in running if self._replica in (None, row.replica))
        yield from _job_gauges([row for row in here if self._caller.may_see(row)])


_OF_JOBS = {
    "dsort_job_progress_ratio": "Share of a running job that is done",
    "dsort_job_bytes_per_second": "Bytes per second of a running job",
    "dsort_job_attempts": "Attempts at a running job",
    "dsort_job_warning_count": "Warnings of a running job so far",
}
_OF_PHASES = {
    "dsort_job_phase": "1 for the phase that a running job is in",
    "dsort_job_phase_bytes": "Bytes that a running job has processed in its phase",
    "dsort_job_phase_records": "Records that a running job has processed in its phase",
    "dsort_job_phase_elapsed_seconds": "Seconds since the phase of a running job began",
}


def _job_gauges(rows: Sequence[JobRow]) -> Iterable[Metric]:
    families = {name: GaugeMetricFamily(name, _OF_JOBS[name], labels=["job"]) for name in _OF_JOBS}
    for name, text in _OF_PHASES.items():
        families[name] = GaugeMetricFamily(name, text, labels=["job", "phase"])
    for row in rows:
        progress = progress_view(row.progress, row.kind) or {}
        values = {
            "dsort_job_progress_ratio": progress.get("share"),
            "dsort_job_bytes_per_second": progress.get("bytes_per_s"),
            "dsort_job_attempts": row.attempt,
            "dsort_job_warning_count": row.warning_count,
        }
        if row.phase is not None:
            values["dsort_job_phase"] = 1
        if row.phase is not None and progress.get("phase") == row.phase:
            values["dsort_job_phase_bytes"] = progress["bytes_done"]
            values["dsort_job_phase_records"] = progress["records_done"]
            values["dsort_job_phase_elapsed_seconds"] = progress["elapsed_s"]
        for name, value in values.items():
            if value is not None:
                labels = [row.job_id, str(row.phase)] if name in _OF_PHASES else [row.job_id]
                families[name].add_metric(labels, value)
    return families.values()


class RequestMetrics:
    """ASGI middleware that adds each request to ``metrics``."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin_s = time.perf_counter()
        is_counted = False

        def count(status: int) -> None:
            nonlocal is_counted
            if not is_counted:
                is_counted = True
                elapsed_s = time.perf_counter() - begin_s
                self._metrics.on_request(_template(scope), scope["method"], status, elapsed_s)

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                count(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception:
            count(500)
            raise


def _template(scope: Scope) -> str:
    """The path template of the route. Requests for unknown paths share one, so that clients cannot
    create time series."""
    return str(getattr(scope.get("route"), "path", "(none)"))


_EXAMPLE: Final = f"""\
# HELP dsort_jobs Jobs of all replicas, equal on each replica
# TYPE dsort_jobs gauge
dsort_jobs{{state="queued"}} 3.0
dsort_jobs{{state="running"}} 1.0
# HELP dsort_phase_bytes_total Bytes that jobs have processed
# TYPE dsort_phase_bytes_total counter
dsort_phase_bytes_total{{phase="extract"}} 1.91234048e+09
# HELP dsort_job_progress_ratio Share of a running job that is done
# TYPE dsort_job_progress_ratio gauge
dsort_job_progress_ratio{{job="{EXAMPLE_ID}"}} 0.2915
"""


def router(service: Service) -> APIRouter:
    """The route of the metrics, which needs a token, unless ``--metrics-open`` is set."""
    routes = APIRouter(tags=["service"])

    def anyone() -> Identity:
        return ANYONE

    who = anyone if service.config.metrics_open else identity

    @routes.get(
        "/metrics",
        response_class=Response,
        responses={
            200: {
                "description": "Metrics in Prometheus' text format.",
                "content": {"text/plain": {"schema": {"type": "string"}, "example": _EXAMPLE}},
            },
            **problems(401, 429),
        },
        summary="Metrics",
    )
    def metrics(caller: Identity = Depends(who)) -> Response:
        """For Prometheus: jobs by state, time in the queue, bytes and records by phase, seconds of
        phases, retries, warnings, requests. For each running job of this replica that the token may
        see: progress, rate, bytes and records. The request needs a token, unless the service was
        started with `--metrics-open`."""
        return Response(service.metrics.text(caller), media_type=TEXT_FORMAT)

    return routes
