"""What a service answers becomes frozen values, whatever a newer one adds; events come one by one,
also over a stream that breaks off."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import FrozenInstanceError, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from dsort.client import (
    DsortClient,
    Job,
    JobEnded,
    JobEvent,
    LogText,
    Patience,
    StateChanged,
)
from dsort.client.events import stream_events
from dsort.client.transport import Transport
from dsort.errors import (
    InputError,
    JobStoppedError,
    NotFoundError,
    ServiceError,
    SpecError,
    UnauthorizedError,
)
from dsort.service.api.jobs import JOB as EXAMPLE_JOB
from dsort.service.problems import problem_of
from dsort.spec.load import parse_spec
from tests.support.commands import SPEC
from tests.support.internals import (
    Forecast,
    JobReport,
    JobStarted,
    JobWarning,
    Order,
    PhaseDone,
    PlanReportView,
    Progress,
    Run,
    RunReportView,
    Totals,
)
from tests.support.refusals import raises

URL = "http://service.test"
JOB = EXAMPLE_JOB["job_id"]
REPORT = JobReport(
    JOB,
    "finished",
    "file:///out",
    Totals(3, 4, 5, 6, 7, 8),
    Run("map", 2, {"plan": 1.0}),
    Order("9"),
    manifest_name="m.json",
)
PLAN = JobReport(
    JOB,
    "planned",
    "",
    Totals(1, 0, 2, 3, 4, 5),
    Run("map", 2),
    Order(None),
    warnings=("odd",),
    plan=Forecast((), "they fit", 6, 7),
)


@dataclass
class Service:
    """A service that answers as set, and remembers the requests."""

    answers: dict[str, Sequence[httpx.Response | Callable[[], httpx.Response]]]
    asked: list[httpx.Request] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        key = f"{request.method} {request.url.path}"
        number = sum(f"{each.method} {each.url.path}" == key for each in self.asked)
        self.asked.append(request)
        answers = self.answers[key]
        answer = answers[min(number, len(answers) - 1)]
        return answer if isinstance(answer, httpx.Response) else answer()

    def client(self, **patience: Any) -> DsortClient:
        return DsortClient(
            URL,
            patience=Patience(**{"delay_s": 0, **patience}),
            http=httpx.MockTransport(self),
        )


def view(**changed: Any) -> dict[str, Any]:
    return {**EXAMPLE_JOB, **changed}


def ok(document: Any) -> httpx.Response:
    return httpx.Response(200, json=document)


# --- values --------------------------------------------------------------------------------------


def test_a_job_is_a_frozen_value_of_its_fields() -> None:
    job = Job.of(view(result=REPORT.to_dict(), spec=SPEC))
    assert (job.job_id, job.state, job.labels) == (JOB, "running", ("nightly",))
    assert job.created_at == datetime(2026, 1, 31, 2, tzinfo=UTC)
    assert job.progress is not None
    assert (job.progress.phase, job.progress.share) == ("extract", 0.2915)
    assert [each.phase for each in job.phases] == ["resolve"]
    assert job.result == REPORT
    assert not job.ended
    with pytest.raises(FrozenInstanceError):
        job.state = "finished"  # type: ignore[misc]


def test_reports_have_the_fields_that_routes_describe_in_their_order() -> None:
    run, plan = list(RunReportView.model_fields), list(PlanReportView.model_fields)
    assert [*REPORT.to_dict(), "flow"] == run  # left out where it is not known
    assert list(PLAN.to_dict()) == [name for name in plan if name != "shards_total"]


def test_a_newer_service_may_say_more_and_an_older_one_less() -> None:
    job = Job.of(view(mood="fine", progress={"phase": "plan", "mood": "fine"}))
    assert job.progress is not None
    assert job.progress.phase == "plan"
    assert job.document["mood"] == "fine"
    assert Job.of({"job_id": "a", "kind": "run", "state": "queued"}).labels == ()


@pytest.mark.parametrize(
    "document", [None, [], {}, {"job_id": "a"}, view(created_at="yesterday"), view(phases=["x"])]
)
def test_what_is_no_job_is_the_services_fault(document: Any) -> None:
    with pytest.raises(ServiceError):
        Job.of(document)


def test_a_job_that_failed_raises_what_the_engine_raised() -> None:
    failed = Job.of(view(state="failed", error=problem_of(InputError("a shard is odd"))))
    with pytest.raises(InputError, match="a shard is odd"):
        failed.raise_if_failed()
    stopped = Job.of(view(state="stopped", exit_code=143, stop_reason="too late"))
    with raises(JobStoppedError, JOB, "too late", signal_number=15) as raised:
        stopped.raise_if_failed()
    assert raised.value.signal_number == 15
    with raises(ServiceError, JOB):
        Job.of(view(state="failed")).raise_if_failed()
    Job.of(view(state="finished")).raise_if_failed()
    assert Job.of(view(stopping=True)).words == "stopping"


# --- submitting, finding, listing ----------------------------------------------------------------


def test_a_spec_may_be_given_in_every_way(tmp_path: Path) -> None:
    text = json.dumps(SPEC)
    (tmp_path / "spec.json").write_text(text)
    (tmp_path / "spec.yaml").write_text("input_bck: images\n")
    (tmp_path / "spec").write_text("input_bck: images\n")
    service = Service({"POST /v1/jobs": [httpx.Response(201, json=view())]})
    job_spec = parse_spec(SPEC).spec
    with service.client() as client:
        for spec in (
            SPEC,
            text,
            tmp_path / "spec.json",
            str(tmp_path / "spec.yaml"),
            tmp_path / "spec",
            job_spec,
        ):
            assert client.submit(spec).job_id == JOB
        with raises(SpecError, "none.json"):
            client.submit(tmp_path / "none.json")
        with pytest.raises(SpecError):
            client.submit({"a": float("nan")})
    kinds = [each.headers["content-type"] for each in service.asked]
    assert kinds == ["application/json"] * 3 + ["application/yaml"] * 2 + ["application/json"]
    assert json.loads(service.asked[0].content) == SPEC
    assert json.loads(service.asked[-1].content) == job_spec.canonical()


def test_a_submit_may_be_sent_twice_and_is_one_job() -> None:
    service = Service({"POST /v1/jobs": [httpx.Response(503), httpx.Response(201, json=view())]})
    with service.client() as client:
        client.submit(SPEC, priority=5, labels=["a", "b"], description="what", dry_run=True)
        client.submit(SPEC, idempotency_key="mine")
    keys = [each.headers["idempotency-key"] for each in service.asked]
    assert keys[0] == keys[1]
    assert keys[2] == "mine"
    assert len(set(keys)) == 2
    query = service.asked[0].url.params.multi_items()
    assert sorted(query) == [
        ("description", "what"),
        ("dry_run", "1"),
        ("label", "a"),
        ("label", "b"),
        ("priority", "5"),
    ]


def test_a_list_goes_through_its_pages_as_far_as_it_is_wanted() -> None:
    ids = [f"20260131-02000{number}-4f2a9c" for number in range(4)]
    pages = [
        ok({"jobs": [view(job_id=each) for each in ids[:2]], "next_cursor": "7"}),
        ok({"jobs": [view(job_id=each) for each in ids[2:]], "next_cursor": None}),
    ]
    service = Service({"GET /v1/jobs": pages})
    with service.client() as client:
        found = client.list(
            state=["queued", "running"], label="a", since=datetime(2026, 1, 1, tzinfo=UTC)
        )
        assert next(found).job_id == ids[0]
        assert len(service.asked) == 1
        assert [each.job_id for each in found] == ids[1:]
    first, second = (each.url.params for each in service.asked)
    assert first.get_list("state") == ["queued", "running"]
    assert (first["since"], first["label"]) == ("2026-01-01T00:00:00Z", "a")
    assert (second["cursor"], second["label"]) == ("7", "a")
    service.asked.clear()
    with service.client() as client:
        assert [each.job_id for each in client.list(limit=2)] == ids[:2]
    assert [each.url.params["limit"] for each in service.asked] == ["2"]


def test_the_beginning_of_an_id_finds_a_job_if_no_other_begins_so() -> None:
    other = "20260131-020000-aaaaaa"
    listed = ok({"jobs": [view(), view(job_id=other), view(job_id="x")], "next_cursor": None})
    service = Service(
        {
            "GET /v1/jobs": [listed],
            f"GET /v1/jobs/{JOB}": [ok(view())],
            f"GET /v1/jobs/{other}": [ok(view(job_id=other))],
        }
    )
    with service.client() as client:
        assert client.find(JOB).job_id == client.find(f"srt-{JOB}").job_id == JOB
        assert client.find(other[:-3]).job_id == other
        with raises(SpecError, f"{JOB}, {other}"):
            client.find("20260131")
        with raises(NotFoundError, "job 'y'"):
            client.find("y")


def test_a_log_is_followed_in_whole_lines() -> None:
    texts = ["a\nb", "a\nb\n", "a\nb\nc\nd"]
    states = ["running", "running", "failed"]
    service = Service(
        {
            f"GET /v1/jobs/{JOB}/log": [httpx.Response(200, text=each) for each in texts],
            f"GET /v1/jobs/{JOB}": [ok(view(state=each)) for each in states],
        }
    )
    with service.client() as client:
        client._transport.sleep = [].append
        assert list(client.follow_log(JOB)) == ["a\n", "b\n", "c\nd"]


# --- events --------------------------------------------------------------------------------------


def as_stream(events: Iterable[tuple[int | None, str, dict[str, Any]]]) -> str:
    return ": still here\n\n".join(
        (f"id: {number}\n" if number else "") + f"event: {kind}\ndata: {json.dumps(data)}\n\n"
        for number, kind, data in events
    )


def stream(*events: tuple[int | None, str, dict[str, Any]]) -> Callable[[], httpx.Response]:
    text = ": here we are\n\n" + as_stream(events)
    return lambda: httpx.Response(200, text=text, headers={"Content-Type": "text/event-stream"})


QUEUED = (3, "state", {"at": 1.0, "state": "queued", "attempt": 0})
END = (None, "end", {"state": "finished", "exit_code": 0})
EVENTS = f"GET /v1/jobs/{JOB}/events"


def test_events_are_typed() -> None:
    progress = {
        "phase": "extract",
        "shards_done": 1,
        "shards_total": 2,
        "records_done": 3,
        "bytes_done": 4,
        "bytes_total": 5,
        "elapsed_s": 6.0,
        "bytes_per_s": 7.0,
    }
    done = {"phase": "extract", "elapsed_s": 1.0, "shards": 2, "records": 3, "bytes": 4}
    started = {"move": "map", "workers": 2, "input_shards": 3, "input_bytes": 4}
    service = Service(
        {
            EVENTS: [
                stream(
                    QUEUED,
                    (4, "started", started),
                    (5, "progress", progress),
                    (6, "phase", done),
                    (7, "warning", {"kind": "odd", "text": "one"}),
                    (8, "log", {"text": "a line"}),
                    (9, "mood", {"mood": "fine"}),
                    END,
                )
            ]
        }
    )
    with service.client() as client:
        found = list(client.events(JOB))
    assert found == [
        JobEvent(3, "state", StateChanged(JOB, "queued", 0)),
        JobEvent(4, "started", JobStarted(JOB, "map", 2, 3, 4)),
        JobEvent(5, "progress", Progress(JOB, "extract", 1, 2, 3, 4, 5, 6.0)),
        JobEvent(6, "phase", PhaseDone(JOB, "extract", 1.0, 2, 3, 4)),
        JobEvent(7, "warning", JobWarning(JOB, "odd", "one")),
        JobEvent(8, "log", LogText(JOB, "a line")),
        JobEvent(9, "mood", {"mood": "fine"}),
        JobEvent(9, "end", JobEnded(JOB, "finished", 0)),
    ]


def broken() -> httpx.Response:
    raise httpx.ReadError("reset")


def test_a_stream_that_breaks_off_goes_on_where_it_did() -> None:
    running = (5, "state", {"state": "running", "attempt": 1})
    service = Service({EVENTS: [stream(QUEUED), broken, httpx.Response(503), stream(running, END)]})
    with service.client() as client:
        client._transport.sleep = [].append
        assert [each.number for each in client.events(JOB)] == [3, 5, 5]
    assert [each.headers.get("last-event-id") for each in service.asked] == [None, "3", "3", "3"]


def test_a_service_that_stays_away_is_not_waited_for_for_ever() -> None:
    now_s = 0.0

    def sleep(span_s: float) -> None:
        nonlocal now_s
        now_s += span_s

    messages: list[str] = []
    transport = Transport(
        URL,
        None,
        timeout_s=5,
        verify=True,
        patience=Patience(reconnect_max_s=60),
        on_wait=messages.append,
        http=httpx.MockTransport(Service({EVENTS: [stream(QUEUED), broken]})),
        sleep=sleep,
        clock=lambda: now_s,
        uniform=lambda low, high: high,
    )
    seen = []
    with raises(ServiceError, "http://service.test", "reset"):
        seen.extend(stream_events(transport, JOB))
    assert 55 < now_s <= 60  # a wait that would end later is not begun
    assert 0 < len(messages) < 20


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (httpx.Response(404, json=problem_of(NotFoundError("no job"))), NotFoundError),
        (httpx.Response(401, json=problem_of(UnauthorizedError("who?"))), UnauthorizedError),
        (httpx.Response(200, html="<p>"), ServiceError),
    ],
)
def test_a_stream_that_is_refused_is_not_asked_for_again(
    answer: httpx.Response, kind: type[Exception]
) -> None:
    service = Service({EVENTS: [answer]})
    with service.client() as client, pytest.raises(kind):
        list(client.events(JOB))
    assert len(service.asked) == 1
