"""Odd texts of requests and jobs: each is refused with its field named, or it is shown, on SQLite
and PostgreSQL; and no list, page or stream ends with it."""

from __future__ import annotations

import json
import random
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text as sql
from sqlalchemy import update

from dsort.service.database.tables import events, jobs, schedules
from dsort.service.jobs.queue import Ending, Limits, ProgressUpdate, claim_next, finish, record
from tests.support.databases import on_both_databases
from tests.support.odd_texts import ODD_TEXTS, is_plain, odd_texts
from tests.support.service_here import SPEC, ServiceHere, service_here

NIGHTLY = {"name": "nightly", "every": "1d", "paused": True, "spec": SPEC}
JSON = {"Content-Type": "application/json"}


def strict(answer: Any) -> Any:
    """The answer as a reader takes it that knows neither NaN nor half characters."""

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} in an answer")

    value = json.loads(answer.content.decode("utf-8"), parse_constant=refuse)
    json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def all_answers(here: ServiceHere) -> None:
    """All lists and all that there is of each job answer, in UTF-8 and JSON."""
    client, jobs_there = here.client, []
    for path in ("/v1/jobs", "/v1/schedules", "/v1/tokens", "/v1/audit", "/v1/sort"):
        answer = client.get(path)
        assert answer.status_code == 200, (path, answer.text)
        found = strict(answer)
        jobs_there += found["jobs"] if path == "/v1/jobs" else []
    assert client.get("/metrics").content.decode("utf-8")
    for job in jobs_there:
        path = f"/v1/jobs/{job['job_id']}"
        for answer in (client.get(path), client.get(f"{path}/page")):
            assert answer.status_code == 200, (path, answer.text)
            strict(answer)
        assert client.get(f"{path}/log").content.decode("utf-8")


def post(here: ServiceHere, path: str, document: Any, method: str = "POST", **query: Any) -> Any:
    # JSON's own escapes carry what no encoding does.
    content = json.dumps(document).encode()
    return here.client.request(method, path, content=content, headers=JSON, params=query)


def named(answer: Any) -> set[str]:
    return {each["path"].partition(".")[0].partition("[")[0] for each in answer.json()["problems"]}


# --- what users send -----------------------------------------------------------------------------

SPEC_FIELDS: dict[str, dict[str, Any]] = {
    "description": {"description": "@"},
    "input_bck": {"input_bck": "@"},
    "output_bck": {"output_bck": {"provider": "file", "name": "@"}},
    "output_format": {"output_format": "@-%d"},
    "input_format": {"input_format": {"objnames": ["@"]}},
    "algorithm": {"algorithm": {"kind": "shuffle", "seed": "@"}},
    "ekm": {"output_format": None, "ekm": {"@-%d": ["@"]}},
    "ekm_file": {"output_format": None, "ekm_file": "@"},
    "ekm_file_sep": {"output_format": None, "ekm_file": "keys", "ekm_file_sep": "@"},
    "unknown": {"@": "@"},
}


def with_text(value: Any, odd: str) -> Any:
    if isinstance(value, dict):
        return {with_text(key, odd): with_text(each, odd) for key, each in value.items()}
    if isinstance(value, list):
        return [with_text(each, odd) for each in value]
    return value.replace("@", odd) if isinstance(value, str) else value


def specs(odd: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """A spec with the text in each of its fields in turn."""
    for field, parts in SPEC_FIELDS.items():
        made = {**SPEC, **with_text(parts, odd)}
        yield field, {key: each for key, each in made.items() if each is not None}


def test_no_text_of_a_users_ends_a_list(
    here: ServiceHere, rng: random.Random, rounds: Callable[[int, int], int]
) -> None:
    for number, odd in enumerate(rng.sample([*odd_texts(rng, 18)], rounds(4, 18))):
        asked = []
        for field, spec in specs(odd):
            asked.append((field, post(here, "/v1/jobs", spec)))
            nested = {**NIGHTLY, "name": f"n{number}-{field}", "spec": spec}
            asked.append(("spec", post(here, "/v1/schedules", nested)))
        strict(post(here, "/v1/validate", spec))
        assert post(here, "/v1/sort", spec).status_code in (200, 400, 403)
        for at, field in enumerate(
            ("description", "labels", "latest", "timezone", "cron", "name", "@")
        ):
            value: Any = ["@"] if field == "labels" else "@"
            fields = {"name": f"s{number}-{at}", **with_text({field: value}, odd)}
            asked.append((field, post(here, "/v1/schedules", {**NIGHTLY, **fields})))
        for field in ("name", "role", "input_buckets", "@"):
            token = {"name": "t", "role": "viewer", **with_text({field: "@"}, odd)}
            asked.append((field, post(here, "/v1/tokens", token)))
        for field, answer in asked:
            assert answer.status_code in (200, 201, 400, 403), (odd, field, answer.text)
            # A separator is no text to be shown, and JSON has a word for NUL.
            separates = field == "ekm_file_sep" and is_plain(odd.replace("\0", ""))
            if not is_plain(odd) and not separates:
                assert answer.status_code in (400, 403), (odd, field, answer.text)
            strict(answer)
    all_answers(here)


@pytest.mark.sample(keep=4)
@pytest.mark.parametrize("odd", ["caf\udce9", "\ud83d", "a\0b"])
@pytest.mark.parametrize("field", ["description", "labels"])
def test_an_invalid_text_is_refused_with_its_field(here: ServiceHere, field: str, odd: str) -> None:
    value = [odd] if field == "labels" else odd
    answer = post(here, "/v1/schedules", {**NIGHTLY, field: value})
    assert answer.status_code == 400, answer.text
    assert named(answer) == {field}
    if field == "description":
        answer = post(here, "/v1/jobs", {**SPEC, field: odd})
        assert answer.status_code == 400, answer.text
        assert named(answer) == {field}
    assert here.client.get("/v1/schedules").json() == {"schedules": []}


@pytest.mark.parametrize("odd", ["caf\udce9", "a\0b"])
def test_why_a_job_is_to_stop_is_a_text(here: ServiceHere, odd: str) -> None:
    job_id = here.submit()["job_id"]
    answer = post(here, f"/v1/jobs/{job_id}/stop", {"reason": odd})
    assert answer.status_code == 400, answer.text
    assert named(answer) == {"reason"}
    assert here.client.get(f"/v1/jobs/{job_id}").json()["state"] == "queued"


def test_a_query_is_utf8_without_nul(here: ServiceHere) -> None:
    for field in ("description", "label", "text", "owner", "schedule"):
        for odd in ("%FF", "caf%E9", "%ED%A0%80", "a%00b"):
            method = "POST" if field in ("description", "label") else "GET"
            body = json.dumps(SPEC).encode() if method == "POST" else b""
            answer = here.client.request(method, f"/v1/jobs?limit=5&{field}={odd}", content=body)
            assert answer.status_code == 400, answer.text
            assert named(answer) == {field}
    assert here.client.get("/v1/jobs").json()["jobs"] == []


def test_a_query_that_is_text_is_taken_as_it_is(here: ServiceHere) -> None:
    view = here.submit(description="größe \U0001f308 + %")
    assert view["description"] == "größe \U0001f308 + %"


def test_any_key_of_idempotency_is_one(here: ServiceHere) -> None:
    made = []
    for _ in range(2):
        headers = {**JSON, "Idempotency-Key": b"\xff\x80\xe9"}
        content = json.dumps(SPEC).encode()
        made.append(here.client.post("/v1/jobs", content=content, headers=headers).json()["job_id"])
    assert made[0] == made[1]
    all_answers(here)


# --- what jobs come upon -------------------------------------------------------------------------


def running(here: ServiceHere) -> str:
    job_id = here.submit({**SPEC, "output_format": f"{secrets.token_hex(4)}-%d"})["job_id"]
    row = claim_next(
        here.service.database, host="h", replica="here", limits=Limits(99, 99), now_s=1.0
    )
    assert row is not None
    assert row.job_id == job_id
    return row.job_id


def tell(here: ServiceHere, job_id: str, odd: str) -> None:
    """What a job's process tells of it, with the text wherever one can be."""
    progress = {
        "phase": "extract",
        "shards_done": 1,
        "shards_total": 2,
        "records_done": 1,
        "bytes_done": 1,
        "bytes_total": 2,
        "elapsed_s": float("nan"),
        "bytes_per_s": float("inf"),
    }
    sent = ProgressUpdate(
        events=[
            (1.0, "warning", {"kind": odd, "text": odd, odd: [odd]}),
            (1.0, "log", {"text": odd}),
            (1.0, "progress", progress),
        ],
        phase="extract",
        progress=progress,
        phases=[{"phase": odd, "seconds": float("nan"), "shards": 1, "records": 1, "bytes": 1}],
    )
    assert record(here.service.database, job_id, 1, sent, now_s=2.0).ours


@on_both_databases
def test_what_jobs_tell_is_shown(
    here: ServiceHere, rng: random.Random, rounds: Callable[[int, int], int]
) -> None:
    odds = [*odd_texts(rng, 18)]
    sent = {running(here): odd for odd in rng.sample(odds, rounds(9, len(odds)))}
    for job_id, odd in sent.items():
        tell(here, job_id, odd)
    all_answers(here)
    for job_id, odd in sent.items():
        error = {"detail": odd, "hint": odd, "exit_code": 3, "problems": [{"path": odd}]}
        ending = Ending("failed", 3, error=error, reason=odd)
        assert finish(here.service.database, job_id, 1, ending, now_s=3.0), odd
    all_answers(here)
    for job_id, odd in sent.items():
        answer = here.client.get(f"/v1/jobs/{job_id}/events")
        assert "event: end" in answer.content.decode("utf-8"), odd
        for line in answer.content.decode("utf-8").split("\n"):
            if line.startswith("data: "):
                json.dumps(json.loads(line[6:]), ensure_ascii=False).encode()
        assert here.client.delete(f"/v1/jobs/{job_id}").status_code == 204
    assert here.client.get("/v1/jobs").json()["jobs"] == []


def test_a_half_character_is_shown_as_an_escape(here: ServiceHere) -> None:
    job_id = running(here)
    error = {"detail": "malformed line (1): caf\udce9 \ud83d"}
    assert finish(here.service.database, job_id, 1, Ending("failed", 3, error=error), now_s=3.0)
    [view] = here.client.get("/v1/jobs").json()["jobs"]
    assert view["error"]["detail"] == "malformed line (1): caf\\xe9 \\ud83d"


def test_the_audit_trail_takes_any_text(here: ServiceHere) -> None:
    for odd in ODD_TEXTS:
        here.service.audit.note(None, odd, odd, "job.stop", odd, {"reason": odd, odd: odd})
    all_answers(here)


# --- what is stored already ----------------------------------------------------------------------


def store(here: ServiceHere, table: Any, column: str, text: str) -> None:
    """Write into all rows what an older service, or another program, may have written."""
    with here.service.database.writing() as connection:
        statement = f"UPDATE {table.name} SET {column} = :text"
        if here.service.database.dialect == "postgresql":
            statement = f"UPDATE {table.name} SET {column} = CAST(:text AS json)"
        connection.execute(sql(statement), {"text": text})


@on_both_databases
def test_rows_with_half_characters_are_shown(here: ServiceHere) -> None:
    job_id = here.submit()["job_id"]
    assert post(here, "/v1/schedules", NIGHTLY).status_code == 201
    definition = {**NIGHTLY, "description": "caf\udce9", "labels": []}
    store(here, schedules, "definition", json.dumps(definition))
    store(here, jobs, "error", json.dumps({"detail": "caf\udce9", "\ud800": 1}))
    store(here, events, "data", json.dumps({"state": "queued", "reason": "caf\udce9\0"}))
    all_answers(here)
    [shown] = here.client.get("/v1/schedules").json()["schedules"]
    assert shown["description"] == "caf\\xe9"
    assert here.client.get(f"/v1/jobs/{job_id}").json()["error"]["detail"] == "caf\\xe9"
    assert here.client.post("/v1/schedules/nightly/run-now").status_code == 202
    all_answers(here)


def test_a_job_that_cannot_be_shown_hides_no_other(here: ServiceHere) -> None:
    broken, whole = here.submit()["job_id"], here.submit()["job_id"]
    with here.service.database.writing() as connection:
        connection.execute(
            update(jobs)
            .where(jobs.c.job_id == broken)
            .values(state="running", attempt=1, progress={"of": "tomorrow"}, created_at=1e300)
        )
    found = {each["job_id"]: each for each in strict(here.client.get("/v1/jobs"))["jobs"]}
    assert set(found) == {broken, whole}
    assert found[whole]["unreadable"] is None
    assert (found[broken]["state"], found[broken]["owner"]) == ("running", "anyone")
    assert "created_at" in found[broken]["unreadable"]
    assert "progress" in found[broken]["unreadable"]
    all_answers(here)
    assert here.client.post(f"/v1/jobs/{broken}/stop").status_code == 202


def test_a_schedule_that_cannot_be_shown_hides_no_other(here: ServiceHere) -> None:
    for name in ("broken", "whole"):
        assert post(here, "/v1/schedules", {**NIGHTLY, "name": name}).status_code == 201
    with here.service.database.writing() as connection:
        connection.execute(
            update(schedules)
            .where(schedules.c.name == "broken")
            .values(definition={"name": "broken", "every": "of tomorrow"})
        )
    found = {each["name"]: each for each in here.client.get("/v1/schedules").json()["schedules"]}
    assert set(found) == {"broken", "whole"}
    assert found["whole"]["unreadable"] is None
    assert "definition" in found["broken"]["unreadable"]
    assert here.client.get("/v1/schedules/broken").json() == found["broken"]
    answer = here.client.post("/v1/schedules/broken/run-now")
    assert answer.status_code == 409, answer.text
    assert here.client.get("/v1/schedules/broken/runs").json()["runs"] == []
    assert here.client.delete("/v1/schedules/broken").status_code == 204
    assert [each["name"] for each in here.client.get("/v1/schedules").json()["schedules"]] == [
        "whole"
    ]


def test_damaged_json_hides_no_row(tmp_path: Path) -> None:
    with service_here(tmp_path) as here:  # PostgreSQL keeps no such thing
        job_id = here.submit()["job_id"]
        store(here, jobs, "error", '{"detail": "torn')
        store(here, events, "data", '{"state"')
        all_answers(here)
        shown = here.client.get(f"/v1/jobs/{job_id}").json()
        assert "torn" in json.dumps(shown["error"])
