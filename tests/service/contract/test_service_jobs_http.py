"""The routes of jobs: a submitted job is there, in order, and changes only as it should;
its spec is parsed once and checked once. Nothing runs here: jobs stay in the queue."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import yaml
from sqlalchemy import event as sql_event
from sqlalchemy import update

from dsort.service.database.tables import jobs
from dsort.service.jobs import submit
from tests.support.databases import on_both_databases
from tests.support.service_here import SPEC, ServiceHere, config_for, service_here


@pytest.fixture
def here(tmp_path: Path, database_url: str) -> Iterator[ServiceHere]:
    with service_here(tmp_path, database_url=database_url) as service:
        (service.service.config.run.root / "images").mkdir()
        yield service


def test_a_submitted_job_is_queued_with_its_whole_spec(here: ServiceHere) -> None:
    job = here.submit(label=["a", "b=1"], priority=5, description="by hand")
    assert (job["state"], job["kind"], job["owner"]) == ("queued", "run", "anyone")
    assert (job["labels"], job["priority"], job["description"]) == (["a", "b=1"], 5, "by hand")
    assert job["spec"]["output_extension"] == ".tar"  # a default, written out
    assert job["input_uri"] == (here.service.config.run.root / "images").as_uri()
    found = here.client.get(f"/v1/jobs/{job['job_id']}").json()
    assert found == job
    assert found["queue_position"] == 1


def test_yaml_is_as_good_as_json(here: ServiceHere) -> None:
    answer = here.client.post(
        "/v1/jobs", content=yaml.safe_dump(SPEC), headers={"Content-Type": "application/yaml"}
    )
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/v1/jobs/{answer.json()['job_id']}"


def test_a_shuffle_without_a_seed_gets_one_that_a_retry_keeps(here: ServiceHere) -> None:
    job = here.submit({**SPEC, "algorithm": {"kind": "shuffle"}})
    again = here.client.post(f"/v1/jobs/{job['job_id']}/retry")
    assert again.status_code == 202
    assert again.json()["job_id"] != job["job_id"]
    assert job["spec"]["algorithm"]["seed"] == again.json()["spec"]["algorithm"]["seed"] != None  # noqa: E711


def test_all_problems_of_a_spec_are_reported_at_once(here: ServiceHere) -> None:
    answer = here.client.post("/v1/jobs", json={"input_bck": "x", "algoritm": {}, "verify": "all"})
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (400, "urn:dsort:problem:spec")
    assert answer.headers["content-type"] == "application/problem+json"
    assert {"algoritm", "verify"} <= {each["path"] for each in problem["problems"]}
    assert problem["exit_code"] == 2
    assert here.client.get("/v1/jobs").json()["jobs"] == []


@on_both_databases
def test_an_idempotency_key_makes_one_job_however_often_it_is_sent(here: ServiceHere) -> None:
    def send(_: int) -> tuple[int, str]:
        answer = here.client.post("/v1/jobs", json=SPEC, headers={"Idempotency-Key": "k"})
        return answer.status_code, answer.json()["job_id"]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(send, range(16)))
    assert len({job_id for _, job_id in answers}) == 1
    assert sorted(status for status, _ in answers) == [200] * 15 + [201]
    other = here.client.post(
        "/v1/jobs", json={**SPEC, "output_format": "x-%d"}, headers={"Idempotency-Key": "k"}
    )
    assert other.status_code == 409


def test_lists_are_newest_first_in_pages(here: ServiceHere) -> None:
    made = [here.submit()["job_id"] for _ in range(7)]
    seen, cursor = [], None
    while True:
        page = here.client.get(
            "/v1/jobs", params={"limit": 3, "cursor": cursor} if cursor else {"limit": 3}
        ).json()
        seen += [job["job_id"] for job in page["jobs"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == made[::-1]


@on_both_databases
def test_lists_are_filtered(here: ServiceHere) -> None:
    first = here.submit(label=["a", "b"])
    second = here.submit(label="a", description="Nightly 100% run")
    here.client.post(f"/v1/jobs/{first['job_id']}/stop")

    def ids(**query: object) -> list[str]:
        page = here.client.get("/v1/jobs", params=query).json()  # type: ignore[arg-type]
        return [job["job_id"] for job in page["jobs"]]

    both = [second["job_id"], first["job_id"]]
    assert ids(label="a") == both
    assert ids(label=["a", "b"]) == both[1:]
    assert ids(state="stopped") == both[1:]
    assert ids(state=["stopped", "queued"]) == both
    assert ids(owner="other") == []
    assert ids(text="100% RUN") == both[:1]
    assert ids(text="%") == both[:1]
    assert ids(since=second["created_at"]) == both[:1]
    assert ids(since="2999-01-01T00:00:00Z") == []


def test_a_queued_job_stops_at_once_and_can_be_resumed_or_removed(here: ServiceHere) -> None:
    job_id = here.submit()["job_id"]
    assert here.client.delete(f"/v1/jobs/{job_id}").status_code == 409
    assert here.client.post(f"/v1/jobs/{job_id}/resume").status_code == 409
    stopped = here.client.post(f"/v1/jobs/{job_id}/stop", json={"reason": "a mistake"})
    assert stopped.status_code == 202
    assert (stopped.json()["state"], stopped.json()["stop_reason"]) == ("stopped", "a mistake")
    assert here.client.post(f"/v1/jobs/{job_id}/resume").json()["state"] == "queued"
    assert here.client.post(f"/v1/jobs/{job_id}/stop").json()["state"] == "stopped"
    assert here.client.delete(f"/v1/jobs/{job_id}").status_code == 204
    assert here.client.get(f"/v1/jobs/{job_id}").status_code == 404
    assert here.client.delete(f"/v1/jobs/{job_id}").status_code == 404


def test_everything_that_changes_a_job_is_in_the_audit_trail(here: ServiceHere) -> None:
    job_id = here.submit()["job_id"]
    here.client.post(f"/v1/jobs/{job_id}/stop")
    here.client.delete(f"/v1/jobs/{job_id}")
    trail = here.client.get("/v1/audit").json()["entries"]
    assert [(each["action"], each["target"]) for each in trail] == [
        ("job.remove", job_id),
        ("job.stop", job_id),
        ("job.submit", job_id),
    ]


def test_pages_of_others_cannot_use_a_service_without_tokens(here: ServiceHere) -> None:
    refused = here.client.post("/v1/jobs", json=SPEC, headers={"Origin": "https://evil.example"})
    rebound = here.client.get("/v1/jobs", headers={"Host": "evil.example"})
    own = here.client.get("/v1/jobs", headers={"Origin": "http://localhost"})
    assert (refused.status_code, rebound.status_code, own.status_code) == (403, 403, 200)
    for invalid in ("http://[", "http://[x]", "http://\u2100/".encode()):
        assert here.client.get("/healthz", headers={"Origin": invalid}).status_code == 403


def test_a_missing_route_or_job_is_a_problem_document(here: ServiceHere) -> None:
    for path in ("/v1/nothing", "/v1/jobs/20260101-000000-abcdef", "/v1/jobs/x/manifest"):
        answer = here.client.get(path)
        assert (answer.status_code, answer.json()["status"]) == (404, 404), path
    assert here.client.put("/v1/jobs").status_code == 405
    assert here.client.get("/v1/jobs?limit=none").json()["problems"][0]["path"] == "limit"


def test_an_owner_can_queue_only_so_many(tmp_path: Path) -> None:
    with service_here(tmp_path, queued_per_owner_max=2) as here:
        here.submit()
        here.submit()
        answer = here.client.post("/v1/jobs", json=SPEC)
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) > 0
        assert "--max-queued-per-owner" in answer.json()["hint"]
        stopped = here.client.get("/v1/jobs").json()["jobs"][0]["job_id"]
        here.client.post(f"/v1/jobs/{stopped}/stop")
        here.submit()
        assert here.client.post(f"/v1/jobs/{stopped}/resume").status_code == 429
    assert config_for(tmp_path).queued_per_owner_max == 1000  # unless it is said otherwise


def test_priority_above_the_usual_is_for_admins(tmp_path: Path) -> None:
    with service_here(tmp_path, no_auth=False) as here:
        tokens = here.service.tokens
        headers = {
            role: {"Authorization": f"Bearer {tokens.add(role, role)}"}
            for role in ("submitter", "admin")
        }

        def submit(role: str, priority: int) -> Any:
            query = {"priority": priority}
            return here.client.post("/v1/jobs", json=SPEC, params=query, headers=headers[role])

        refused = submit("submitter", 1)
        assert refused.status_code == 403
        assert "admin" in refused.json()["detail"]
        assert "take turns" in refused.json()["hint"]
        assert [submit("submitter", each).status_code for each in (0, -5)] == [201, 201]
        assert submit("admin", 1000).status_code == 201
        nightly = {"name": "n", "every": "1d", "spec": SPEC, "priority": 1}
        made = here.client.post("/v1/schedules", json=nightly, headers=headers["submitter"])
        assert made.status_code == 403
        made = here.client.post("/v1/schedules", json=nightly, headers=headers["admin"])
        assert made.status_code == 201
        # Who was an admin once makes jobs of the usual priority.
        tokens.remove("admin")
        tokens.add("admin", "submitter")
        headers["root"] = {"Authorization": f"Bearer {tokens.add('root', 'admin')}"}
        run = here.client.post("/v1/schedules/n/run-now", headers=headers["root"])
        job = here.client.get(f"/v1/jobs/{run.json()['job_id']}", headers=headers["root"]).json()
        assert (job["owner"], job["priority"]) == ("admin", 0)


def test_numbers_of_events_are_never_given_twice(here: ServiceHere) -> None:
    job_id = here.submit()["job_id"]
    last = here.service.store.last_event()
    here.client.post(f"/v1/jobs/{job_id}/stop")
    here.client.delete(f"/v1/jobs/{job_id}")
    again = here.submit()["job_id"]  # else a client that watches from `last` on misses it
    assert here.service.store.events_after(last + 1, job_id=again)


def test_a_service_is_ready_once_it_was_started_and_health_needs_no_token(tmp_path: Path) -> None:
    with service_here(tmp_path, no_auth=False) as here:
        assert here.client.get("/healthz").json() == {"status": "ok"}
        assert here.client.get("/readyz").status_code == 503
        assert here.client.get("/v1/jobs").status_code == 401
    with service_here(tmp_path, start=True) as here:
        answer = here.client.get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_reactions_that_a_spec_does_not_set_are_the_services(tmp_path: Path) -> None:
    reactions = {"missing_shards": "abort", "duplicate_keys": "rename"}
    with service_here(tmp_path, reactions=reactions) as here:
        plain = here.submit()["spec"]
        own = here.submit({**SPEC, "duplicate_keys": "drop"})["spec"]
        again = here.client.post("/v1/validate", json=plain).json()["spec"]

    def said(spec: dict[str, Any]) -> tuple[str, str]:
        where = spec.get("Config", spec)
        return where["missing_shards"], where["duplicate_keys"]

    assert said(plain) == said(again) == ("abort", "rename")
    assert said(own) == ("abort", "drop")


SERVICE = str(Path(submit.__file__).parents[1])
MODULES_MAX = 18
STATEMENTS_MAX = 9  # of which three begin a transaction
ONCE = {"parse_spec": 1, "check_spec": 1}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a spec is parsed and checked."""
    found: Counter[str] = Counter()

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            found[name] += 1
            return function(*arguments, **named)

        return call

    for name in ONCE:
        monkeypatch.setattr(submit, name, counting(name, getattr(submit, name)))
    return found


def test_a_spec_is_read_once_whatever_request_sends_it_and_once_more_when_it_is_sent_again(
    here: ServiceHere, counted: Counter[str]
) -> None:
    def once(path: str, body: Any = None) -> Any:
        counted.clear()
        answer = here.client.post(path, json=body)
        assert answer.is_success, answer.text
        assert counted == ONCE, path
        return answer

    for path in ("/v1/validate", "/v1/sort"):
        once(path, SPEC)
    job_id = once("/v1/jobs", {**SPEC, "output_format": "x-%d"}).json()["job_id"]
    here.client.post(f"/v1/jobs/{job_id}/stop")
    once(f"/v1/jobs/{job_id}/resume")
    here.client.post(f"/v1/jobs/{job_id}/stop")
    once(f"/v1/jobs/{job_id}/retry")
    definition = {"name": "s", "every": "1d", "paused": True, "overlap": "replace", "spec": SPEC}
    assert here.client.post("/v1/schedules", json=definition).status_code == 201
    once("/v1/schedules/s/run-now")


def test_a_submission_enters_few_modules_of_the_service(here: ServiceHere) -> None:
    entered: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SERVICE):
            entered.add(frame.f_code.co_filename.removeprefix(SERVICE))

    threading.setprofile(note)  # each request has threads of its own
    try:
        here.submit()
    finally:
        threading.setprofile(None)
    own = {name for name in entered if not name.startswith("/aistore/")}
    assert "/jobs/submit.py" in own
    assert len(own) <= MODULES_MAX, sorted(own)


def test_a_submission_executes_few_statements_and_reads_its_place_from_an_index(
    tmp_path: Path,
) -> None:
    executed: list[tuple[str, Any]] = []

    def note(connection: object, cursor: object, statement: str, values: Any, *_: object) -> None:
        executed.append((statement, values))

    with service_here(tmp_path) as here:
        here.submit()
        engine = here.service.database.engine
        sql_event.listen(engine, "before_cursor_execute", note)
        here.submit()
        sql_event.remove(engine, "before_cursor_execute", note)
        assert len(executed) <= STATEMENTS_MAX, [statement for statement, _ in executed]
        counting = [each for each in executed if "count(*)" in each[0]]
        assert len(counting) == 2  # the owner's jobs in the queue, and the places before this one
        with here.service.database.reading() as connection:
            for statement, values in counting:
                plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
                steps = [row[3] for row in plan if "jobs" in row[3]]
                assert steps
                assert all("COVERING INDEX ix_jobs_queue" in step for step in steps), steps


def test_to_show_a_job_parses_no_spec(here: ServiceHere, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = here.submit()["job_id"]
    for name in ("dsort.spec.load._parse", "dsort.spec.load._validate"):
        monkeypatch.setattr(name, None)
    for part in ("manifest", "report", "page"):
        assert here.client.get(f"/v1/jobs/{job_id}/{part}").status_code in (200, 404), part


def test_a_row_that_names_no_bucket_is_an_error_and_no_bug(here: ServiceHere) -> None:
    job_id = here.submit()["job_id"]
    for spec in ({}, {"output_bck": 1}, {"output_bck": {"name": ""}}):
        with here.service.database.writing() as connection:
            connection.execute(update(jobs).where(jobs.c.job_id == job_id).values(spec=spec))
        answer = here.client.get(f"/v1/jobs/{job_id}/manifest")
        assert answer.status_code == 400, answer.text
        assert answer.json()["problems"][0]["path"] == "output_bck"


def test_a_spec_can_be_checked_without_submitting_it(here: ServiceHere) -> None:
    good = here.client.post("/v1/validate", json=SPEC)
    assert good.status_code == 200
    assert good.json()["spec"]["algorithm"]["kind"] == "shuffle"
    assert here.client.post("/v1/validate", content=b"{").status_code == 400
    assert here.client.get("/v1/schema").json()["properties"]["algorithm"]
    assert here.client.get("/v1/jobs").json()["jobs"] == []
