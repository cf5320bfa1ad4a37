"""The routes of results: a job's work is reported as long as anything of it is there: by its
manifest, by what the database knows once that is removed, and from any event on. Documents of
others' making do no harm, and admins see what is stored and may go."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import update

from dsort.errors import JobConflictError
from dsort.options import RunOptions
from dsort.service.api import results as events
from dsort.service.api.jobs import JOB
from dsort.service.api.results import _progress_and_warnings, _words
from dsort.service.database.tables import jobs
from dsort.service.hosting.job_main import JobAttempt
from dsort.service.jobs.queue import Ending, Limits, ProgressUpdate, claim_next, finish
from dsort.service.jobs.rows import EventRow
from dsort.service.schedules.retention import ScheduleResults
from dsort.service.security import limits
from dsort.spec.load import parse_spec
from dsort.stop_flag import StopFlag
from tests.support.internals import (
    ManifestView,
    RunReportView,
    example_of,
    manifest_name,
    report_name,
)
from tests.support.manifests import manifest_bytes
from tests.support.schedule_results import make_result
from tests.support.service_here import SPEC, ServiceHere, service_here
from tests.support.service_process import await_that

PHASES = [{"phase": "extract", "seconds": 2.0, "shards": 19, "records": 19000, "bytes": 1912340480}]
LOG = {
    "text": "2026 I extract: done\nTraceback: something odd\nsaid I nothing\n\n",
    "levels": "I---",
}
WARNING = {"kind": "missing_shards", "text": "samples-07.tar is missing"}

ERROR = {"title": "Missing shard", "detail": "1 of 20 input shards is missing", "hint": ""}
REPORT = example_of(RunReportView)
MANIFEST, PAGE = example_of(ManifestView), events.PAGE


def ended(here: ServiceHere, result: Mapping[str, Any] | None, **query: Any) -> str:
    """A job that was run, and warned, and ended with ``result``, or failed without one."""
    job_id: str = here.submit(**query)["job_id"]
    database, limits = here.service.database, Limits(9, 9)
    row = claim_next(database, host="h", replica="here", limits=limits, now_s=1000.0)
    assert row is not None
    assert row.job_id == job_id
    progress = {**JOB["progress"], "phase": "extract"}
    update = ProgressUpdate(
        events=[
            (
                1001.0,
                "started",
                {"input_shards": 19, "input_bytes": 1, "workers": 1, "move": "map"},
            ),
            (1002.0, "warning", WARNING),
            (1003.0, "progress", progress),
            (1004.0, "phase", {**PHASES[0], "elapsed_s": 2.0}),
            (1005.0, "log", LOG),
        ],
        phases=PHASES,
        warning_count=1,
    )
    found = None if result is None else {**result, "job_id": job_id}
    error = None if result is not None else ERROR
    ending = Ending("finished" if result else "failed", 0 if result else 3, found, error)
    assert finish(database, job_id, 1, ending, now_s=1006.0, latest=update)
    return job_id


def get(here: ServiceHere, path: str) -> Any:
    answer = here.client.get(f"/v1/jobs/{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def events_of(here: ServiceHere, job_id: str, query: str = "", **headers: str) -> list[str]:
    """The kinds of a job's events. The job is over, so the stream ends."""
    answer = here.client.get(f"/v1/jobs/{job_id}/events{query}", headers=headers)
    assert answer.headers["content-type"].startswith("text/event-stream")
    return [
        line.removeprefix("event: ")
        for line in answer.text.splitlines()
        if line.startswith("event: ")
    ]


def numbers_of(here: ServiceHere, job_id: str) -> list[int]:
    return [each.number for each in here.service.store.events_after(0, job_id=job_id)]


def test_a_page_is_made_of_the_manifest(here: ServiceHere) -> None:
    job_id = ended(here, REPORT)
    bucket = here.service.config.run.root / "shuffled"
    path = bucket / manifest_name(job_id)
    path.parent.mkdir(parents=True)
    spec = parse_spec({**SPEC}).spec.canonical()
    path.write_text(json.dumps({**MANIFEST, "job_id": job_id, "spec": spec}))
    page = get(here, f"{job_id}/page")
    assert page["shards"] == PAGE["shards"]
    assert page["timeline"] == PAGE["timeline"]
    assert page["warnings"] == [WARNING]
    assert page["mixing"]["before"][0] == [1000, 0]
    assert get(here, f"{job_id}/manifest")["totals"] == MANIFEST["totals"]


def test_what_the_database_knows_outlives_the_result(here: ServiceHere) -> None:
    """As when a schedule keeps its newest results alone: there is no manifest any more."""
    job_id = ended(here, REPORT)
    answer = here.client.get(f"/v1/jobs/{job_id}/manifest")
    assert answer.status_code == 404
    assert answer.json()["detail"] == f"job {job_id} is finished and has no manifest"
    assert "retain" in answer.json()["hint"]
    assert get(here, f"{job_id}/report") == {**REPORT, "job_id": job_id}
    page = get(here, f"{job_id}/page")
    assert (page["phases"], page["warnings"]) == (PHASES, [WARNING])
    assert page["timeline"] == REPORT["timeline"]
    assert page["mixing"]["counts"] == REPORT["mixing"]["counts"]
    assert (page["shards"]["total"], page["shards"]["rows"]) == (2, [])


def test_a_log_has_a_line_for_all_but_progress(here: ServiceHere) -> None:
    answer = here.client.get(f"/v1/jobs/{ended(here, REPORT)}/log")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    lines = answer.text.splitlines()
    kinds = [line.split()[1] for line in lines if line.startswith(("1970", "20"))]
    assert kinds == ["state", "state", "started", "warning", "phase", "state"]
    assert lines[2].endswith("started 19 input shards, 1 B, 1 workers, movement map")
    assert lines[3].endswith("warning missing_shards: samples-07.tar is missing")
    # Not what a phase's event says already, which the level of the line decides, not its text.
    assert [line for line in lines if line.startswith("  ")] == [
        "    Traceback: something odd",
        "    said I nothing",
        "    ",
    ]
    assert "I extract" not in answer.text


def test_a_stream_goes_on_behind_the_event_that_is_named(here: ServiceHere) -> None:
    job_id = ended(here, REPORT)
    numbers = numbers_of(here, job_id)
    whole = events_of(here, job_id)
    assert whole == [
        *("state", "state", "started", "warning", "progress", "phase", "log", "state", "end")
    ]
    for at, number in enumerate(numbers, start=1):
        assert events_of(here, job_id, **{"Last-Event-ID": str(number)}) == whole[at:]
    assert events_of(here, job_id, f"?after={numbers[3]}") == whole[4:]
    # A browser that asks again has the address that it began with, and the header.
    both = events_of(here, job_id, f"?after={numbers[0]}", **{"Last-Event-ID": str(numbers[6])})
    assert both == whole[7:]
    for nonsense in ("x", "-1", ""):
        assert events_of(here, job_id, **{"Last-Event-ID": nonsense}) == whole
    assert here.client.get(f"/v1/jobs/{job_id}/events?after=x").status_code == 400


def test_a_stream_ends_though_the_feed_has_missed_it(
    here: ServiceHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "LOOK_S", 0.05)  # the feed was not started: it misses everything
    job_id = here.submit()["job_id"]
    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(events_of, here, job_id)
        await_that(lambda: job_id in here.service.feed._watched)
        here.service.store.ask_stop(job_id, "enough")
        assert watching.result(30) == ["state", "state", "end"]


DEAD = "20260101-000000-dead00"


def test_leftovers_of_dead_jobs_are_listed_and_stay(here: ServiceHere) -> None:
    out = here.service.config.run.root / "out"
    left = out / ".dsort" / DEAD / "part"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"x" * 100)
    long_ago_s = time.time() - 200_000
    for path in (left, left.parent):
        os.utime(path, (long_ago_s, long_ago_s))
    answer = here.client.get("/v1/garbage/out")
    assert answer.status_code == 200, answer.text
    (found,) = answer.json()["garbage"]
    assert (found["kind"], found["job_id"], found["size_bytes"]) == ("job", DEAD, 100)
    assert found["is_old"] is True
    assert left.exists()
    older = here.client.get("/v1/garbage/out", params={"older_than_s": 1e6})
    assert older.json()["garbage"][0]["is_old"] is False
    assert here.client.get("/v1/garbage/none").status_code == 404
    assert here.service.audit.list(limit=9)[-1].action == "storage.look"


def test_results_that_the_next_run_removes_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [make_result(number, retain=2) for number in (3, 2, 1)]
    monkeypatch.setattr(ScheduleResults, "finished", lambda *_: kept)
    with service_here(tmp_path) as here:
        spec = {**SPEC, "output_format": "{{run_id}}/s-%d"}
        schedule = {"name": "nightly", "cron": "0 2 * * *", "retain": 2, "spec": spec}
        assert here.client.post("/v1/schedules", json=schedule).status_code == 201
        shown = here.client.get("/v1/storage").json()
    (found,) = shown["schedules"]
    assert (found["schedule"], found["retain"]) == ("nightly", 2)
    assert [each["goes_next"] for each in found["results"]] == [False, True, True]
    assert {each["what"] for each in shown["disks"]} >= {"data", "scratch of jobs"}
    assert all(0 < each["free_bytes"] <= each["total_bytes"] for each in shown["disks"])


def test_a_log_is_asked_for_from_where_it_ended(here: ServiceHere) -> None:
    job_id = here.submit()["job_id"]
    first = here.client.get(f"/v1/jobs/{job_id}/log")
    last = first.headers["Dsort-Last-Event"]
    assert first.text.split()[1:] == ["state", "queued"]
    here.service.store.ask_stop(job_id, "enough")
    more = here.client.get(f"/v1/jobs/{job_id}/log", params={"after": last})
    assert more.text.split()[1:3] == ["state", "stopped:"]
    assert int(more.headers["Dsort-Last-Event"]) > int(last)
    again = {"after": more.headers["Dsort-Last-Event"]}
    none = here.client.get(f"/v1/jobs/{job_id}/log", params=again)
    assert (none.text, none.headers["Dsort-Last-Event"]) == ("", again["after"])


def event(number: int, kind: str, /, **data: Any) -> EventRow:
    return EventRow(number, "a", float(number), kind, data)


def test_counts_of_nothing_are_not_in_the_log() -> None:
    resolved = event(1, "phase", phase="resolve", elapsed_s=0.3, shards=19, records=0, bytes=2048)
    planned = event(2, "phase", phase="plan", elapsed_s=0.0, shards=0, records=1900, bytes=2048)
    assert _words(resolved.kind, resolved.data) == "resolve took 0.30 s: 19 shards, 2 KiB"
    assert _words(planned.kind, planned.data) == "plan took 0.00 s: 1,900 records, 2 KiB"


def test_warnings_are_those_of_the_newest_attempt() -> None:
    events = [
        event(1, "state", state="running", attempt=1),
        event(2, "warning", **WARNING),
        event(3, "state", state="running", attempt=2),
        event(4, "warning", **WARNING),
        event(5, "state", state="finished", attempt=2),
    ]
    store = SimpleNamespace(
        events_after=lambda after, job_id: [each for each in events if each.number > after]
    )
    service: Any = SimpleNamespace(store=store)
    assert _progress_and_warnings(service, "a") == ([], [WARNING])


def test_a_job_that_waits_has_a_page_and_a_log(here: ServiceHere) -> None:
    job_id = here.submit()["job_id"]
    answer = here.client.get(f"/v1/jobs/{job_id}/report")
    assert (answer.status_code, answer.json()["hint"]) == (404, "the job has not ended yet")
    page = get(here, f"{job_id}/page")
    assert (page["job"]["state"], page["phases"], page["timeline"]) == ("queued", [], [])
    assert here.client.get(f"/v1/jobs/{job_id}/log").text.split()[1:] == ["state", "queued"]


# --- documents in buckets, which others write ----------------------------------------------------


@pytest.fixture
def job(here: ServiceHere) -> str:
    """A job that has finished, whose manifest and report are whatever a test writes."""
    return ended_as(here, here.submit()["job_id"])


def ended_as(here: ServiceHere, job_id: str, state: str = "finished") -> str:
    with here.service.database.writing() as connection:
        connection.execute(update(jobs).where(jobs.c.job_id == job_id).values(state=state))
    return job_id


def place(here: ServiceHere, name: str) -> Path:
    """Where an object of the output bucket is."""
    path = here.service.config.run.root / "shuffled" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def ask(here: ServiceHere, job_id: str, what: str) -> tuple[int, str]:
    answer = here.client.get(f"/v1/jobs/{job_id}/{what}")
    return answer.status_code, answer.text


@pytest.mark.parametrize("what", ["manifest", "report", "page"])
@pytest.mark.parametrize("elsewhere", ["of-others/secret", "data/other-team/secret"])
@pytest.mark.parametrize("linked", ["the file", "its directory"])
@pytest.mark.sample(keep=6)
def test_a_link_in_a_bucket_shows_nothing_from_elsewhere(
    here: ServiceHere, tmp_path: Path, job: str, what: str, elsewhere: str, linked: str
) -> None:
    name = report_name(job) if what == "report" else manifest_name(job)
    secret = tmp_path / elsewhere / Path(name).name
    secret.parent.mkdir(parents=True)
    secret.write_text('{"manifest": "top secret"}')
    document = place(here, name)
    if linked == "the file":
        document.symlink_to(secret)
    else:
        document.parent.rmdir()
        document.parent.symlink_to(secret.parent)
    status, text = ask(here, job, what)
    assert status == 502, text
    assert "leads out" in text
    assert "top secret" not in text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"manifest": 1',
        b"[]",
        b'{"inputs": [{"bytes": 1e999, "records": 1}], "outputs": [], "totals": {"records": 0, '
        b'"file_bytes": 0}, "phase_seconds": {"create": NaN}, "reactions": []}',
        b'{"inputs": [], "outputs": [], "totals": {"records": 0, "file_bytes": 0}, '
        b'"phase_seconds": {}, "reactions": [], "mixing": {"counts": [[99999999999999999999]]}}',
    ],
)
def test_an_invalid_manifest_is_reported_as_one(
    here: ServiceHere, job: str, content: bytes
) -> None:
    place(here, manifest_name(job)).write_bytes(content)
    status, text = ask(here, job, "page")
    assert status == 502, text
    assert "manifest" in text


@pytest.mark.parametrize("what", ["manifest", "page"])
def test_a_document_without_end_is_not_read(here: ServiceHere, job: str, what: str) -> None:
    with place(here, manifest_name(job)).open("wb") as file:
        file.truncate(1 << 40)
    status, text = ask(here, job, what)
    assert status == 502, text
    assert "too large" in text


def test_a_manifest_of_another_spec_is_no_result(here: ServiceHere) -> None:
    job_id = here.submit()["job_id"]
    row = here.service.store.get(job_id)
    assert row is not None
    other = here.submit({**SPEC, "output_format": "mine-%04d"})
    spec = here.service.store.get(other["job_id"])
    assert spec is not None
    content = manifest_bytes(job_id=job_id, spec=spec.spec, inputs=[], outputs=[])
    place(here, manifest_name(job_id)).write_bytes(content)
    options = RunOptions(root=here.service.config.run.root)
    with StopFlag() as stop:
        doing = JobAttempt.of(replace(row, attempt=2), options, lambda event: None, stop)
        with pytest.raises(JobConflictError):
            doing.run()


def test_an_invalid_number_of_an_event_is_ignored(here: ServiceHere, job: str) -> None:
    answer = here.client.get(f"/v1/jobs/{job}/events", headers={"Last-Event-ID": "9" * 5000})
    assert answer.status_code == 200
    assert "event: end" in answer.text


def test_a_stream_ends_with_its_token(asking: ServiceHere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LOOK_S", 0.05)
    ann = asking.headers("ann", "submitter")
    job_id = asking.client.post("/v1/jobs", json=SPEC, headers=ann).json()["job_id"]
    removed = threading.Timer(0.3, asking.service.tokens.remove, ["ann"])
    removed.start()
    answer = asking.client.get(f"/v1/jobs/{job_id}/events", headers=ann)
    removed.join()
    assert "event: state" in answer.text
    assert "event: end" not in answer.text


def test_the_streams_of_a_client_are_limited(
    here: ServiceHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = ended_as(here, here.submit()["job_id"])
    monkeypatch.setattr(limits, "STREAMS_MAX", 1)
    for _ in range(2):  # one after the other
        assert here.client.get(f"/v1/jobs/{job_id}/events").status_code == 200
    with here.service.limits.stream("anyone"):
        answer = here.client.get(f"/v1/jobs/{job_id}/events")
        assert answer.status_code == 429, answer.text
        assert answer.headers["Retry-After"]
    with here.service.limits.stream("another"):
        assert here.client.get(f"/v1/jobs/{job_id}/events").status_code == 200
