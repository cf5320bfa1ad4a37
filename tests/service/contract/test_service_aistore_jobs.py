"""Requests about jobs as AIStore's own command and clients send them, each with its answer: ids and
errors as texts, AIStore's statuses, and the same law of access as everywhere.

The command itself is not ours to ship: a row has what it sends (method, path, query, body), and
what it needs of the answer."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient
from sqlalchemy import update

from dsort.errors import ConflictError, DsortError, JobConflictError, NamesTakenError
from dsort.service.aistore.routes import _error_response as error_response
from dsort.service.database.tables import JobRow, jobs
from dsort.service.service import Service
from dsort.spec.load import parse_spec
from tests.support.service_here import ServiceHere, service_here

NO_BUCKET = {"name": "", "provider": "", "namespace": {"uuid": "", "name": ""}}
ALGORITHM = {"kind": "", "decreasing": False, "seed": "", "extension": "", "content_key_type": ""}
SPEC: dict[str, Any] = {
    "input_bck": {"name": "in", "provider": "ais"},
    "input_format": {"template": "in-{0..3}", "objnames": None},
    "input_extension": ".tar",
    "output_bck": NO_BUCKET,
    "output_format": "out-{0..9}",
    "output_extension": "",
    "output_shard_size": "10KB",
    "algorithm": ALGORITHM,
    **dict.fromkeys(("ekm_file", "ekm_file_sep", "max_mem_usage"), ""),
    "Config": {},
}
EMPTY = {
    **{name: {} for name in ("output_bck", "algorithm", "Config", "input_format")},
    "input_bck": {"name": "in", "provider": "", "namespace": {}},
    "output_format": "d-{0..9}",
    "output_shard_size": "10KB",
}
GONE = {"name": "gone", "provider": "ais"}
STORE = {"name": "gone", "provider": "aws"}
OLD, NEW = "OLD", "NEW"
"""Stand for the ids of a job that ended and of one that waits."""


@dataclass(frozen=True)
class Recorded:
    """One request and its answer. ``body``: JSON. ``answer``: the JSON it is, or a pattern that its
    text matches, or whether it is right, or None for an empty one."""

    what: str
    request: str
    body: Any = None
    status: int = 200
    answer: Any = None


def about(**value: Any) -> dict[str, Any]:
    """What is asked of jobs, with all the fields that the command sends."""
    return {"id": "", "kind": "", "bck": NO_BUCKET, **value}


def stop(**value: str) -> dict[str, Any]:
    return {"action": "stop", "name": "", "value": {"ID": "", "Kind": "dsort", **value}}


def snaps(*ids: str) -> Any:
    """Whether an answer of ``qryxstats`` is about these jobs."""

    def check(said: dict[str, list[dict[str, Any]]]) -> bool:
        found = [snap for each in said.values() for snap in each]
        kinds, named = ({snap[name] for snap in found} for name in ("kind", "id"))
        return (kinds, named) == ({"dsort"}, set(ids))

    return check


def is_new(said: dict[str, dict[str, Any]]) -> bool:
    return [each["id"] for each in said.values()] == [f"srt-{NEW}"]


def has_begun(said: dict[str, dict[str, Any]]) -> bool:
    """Whether a job that waits has a start, and its first phase the same: without one, the command
    says that it has run for 292 years."""
    (job,) = said.values()
    first = job["Metrics"]["local_extraction"]
    return bool(first["started_time"] == job["started_time"] > "2026")


def was_aborted(said: dict[str, Any]) -> bool:
    return bool(said["aborted"] and said["end_time"] > 1.7e18 and "aborted" in said["err"])


XSTATS, STATE = "GET /v1/cluster?what=qryxstats", "GET /v1/cluster?what=status"
RUNNING = "GET /v1/cluster?what=running_all"
STATUS = {"kind": "dsort", "uuid": f"srt-{NEW}", "err": "", "end_time": 0, "aborted": False}
STARTED = [
    Recorded("every optional field is sent, empty", "POST /v1/sort", SPEC, 200, r"srt-[\w-]{9,28}"),
    Recorded(
        "an output bucket that is an empty object is the input's",
        *("POST /v1/sort", SPEC | {"output_bck": {}, "output_format": "b-{0..9}"}, 200, "srt-.*"),
    ),
    Recorded(
        "an input bucket that is not there",
        *("POST /v1/sort", SPEC | {"input_bck": GONE}, 404, 'bucket "gone" does not exist'),
    ),
    Recorded(
        "a bucket of an object store, which is not looked for",
        *("POST /v1/sort", SPEC | {"input_bck": STORE, "output_format": "c-{0..9}"}),
        answer="srt-.*",
    ),
    Recorded("every optional object is there, and empty", "POST /v1/sort", EMPTY, 200, "srt-.*"),
    Recorded("no input bucket", "POST /v1/sort", SPEC | {"input_bck": {}}, 400, "input_bck"),
    Recorded(
        "start a job of another kind",
        *("PUT /v1/cluster", {"action": "start", "value": {"Kind": "rebalance"}}),
        *(501, ".*no AIStore cluster"),
    ),
]
SHOWN = [
    Recorded("show job srt-...", f"GET /v1/sort?uuid=srt-{NEW}", answer=is_new),
    Recorded("by the id that the job has elsewhere", f"GET /v1/sort?uuid={NEW}", answer=is_new),
    Recorded("a job that waits", f"GET /v1/sort?uuid={NEW}", answer=has_begun),
    Recorded("downloads", "GET /v1/download", answer=[]),
    Recorded("downloads, of the Go client", "GET /v1/download", {"only_active": True}, answer=[]),
    Recorded(
        "a download",
        *("GET /v1/download", {"id": "dnl-123456789"}, 404, ".*dnl-123456789.*does not exist"),
    ),
    Recorded("jobs of another kind", XSTATS, about(kind="rebalance", show_active=True), 200, {}),
    Recorded(
        "jobs of a bucket that has none",
        *(XSTATS, about(bck={"name": "other", "provider": "ais"}), 200, {}),
    ),
    Recorded("no such job", XSTATS, about(id="srt-none"), 404, 'job "srt-none" does not exist'),
    Recorded("one, running or not", XSTATS, about(id=f"srt-{OLD}"), 200, snaps(f"srt-{OLD}")),
    Recorded(
        "the SDK's job(id): fields by their names in Go",
        *(XSTATS, {"ID": f"srt-{NEW}", "Kind": "", "DaemonID": "", "Bck": None, "Buckets": None}),
        answer=snaps(f"srt-{NEW}"),
    ),
    Recorded(
        "one that must run still, and does not",
        *(XSTATS, about(id=f"srt-{OLD}", show_active=True), 200, {}),
    ),
    Recorded(
        "running jobs",
        *(RUNNING, about(show_active=True)),
        answer=lambda said: f"dsort[srt-{NEW}]" in said and f"dsort[srt-{OLD}]" not in said,
    ),
    Recorded("running jobs of another kind", RUNNING, about(kind="lru-eviction"), 200, []),
    Recorded("wait: a job that runs has no end", STATE, about(id=f"srt-{NEW}"), 200, STATUS),
    Recorded(
        "wait: no such job",
        *(STATE, about(id="srt-none"), 404, 'dsort job "srt-none" does not exist'),
    ),
    Recorded("the cluster map", "GET /v1/cluster?what=smap", None, 501, ".*no AIStore cluster"),
]
STOPPED = [
    Recorded("of another kind", "PUT /v1/cluster", stop(Kind="rebalance"), 404, ".*rebalance"),
    Recorded("stop: no job is named", "PUT /v1/cluster", stop(), 400, "no job is named"),
    Recorded(
        "stop: an invalid value",
        *("PUT /v1/cluster", {"action": "stop", "value": "srt-none"}, 400, ".*is no object"),
    ),
    Recorded("stop by id, as a job of any kind", "PUT /v1/cluster", stop(ID=f"srt-{NEW}")),
    Recorded("wait: it was stopped", STATE, about(id=f"srt-{NEW}"), 200, was_aborted),
    Recorded("rm: one that ended", f"DELETE /v1/sort?uuid=srt-{OLD}"),
]


class Peer:
    """A service that takes jobs in and runs none, and its clients by name."""

    def __init__(self, here: ServiceHere) -> None:
        self.here = here
        (here.service.config.run.root / "in").mkdir()

    @property
    def service(self) -> Service:
        return self.here.service

    def client(self, role: str, name: str = "", buckets: tuple[str, ...] = ("*",)) -> TestClient:
        """A client with a token of this role, name (the role's, unless it is given) and buckets."""
        token = self.service.tokens.add(name or role, role, buckets, buckets)
        return TestClient(self.here.client.app, headers={"Authorization": f"Bearer {token}"})

    def row(self, job_id: str) -> JobRow:
        row = self.service.store.get(own_id(job_id))
        assert row is not None
        return row

    def update(self, job_id: str, **values: Any) -> None:
        with self.service.database.writing() as connection:
            one = update(jobs).where(jobs.c.job_id == own_id(job_id))
            connection.execute(one.values(**values))

    def end(self, job_id: str) -> None:
        """Have the job be over."""
        self.update(job_id, state="finished", started_at=time.time(), ended_at=time.time())


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    with service_here(tmp_path, no_auth=False) as here:
        yield Peer(here)


@pytest.fixture
def ann(peer: Peer) -> TestClient:
    return peer.client("submitter", "ann")


def started(client: TestClient, **fields: Any) -> str:
    """The id of a job that was just started, as AIStore's clients have it."""
    answer = client.post("/v1/sort", json={**SPEC, **fields})
    assert answer.status_code == 200, answer.text
    return str(answer.text)


def own_id(job_id: str) -> str:
    """The id that the job has elsewhere."""
    return job_id.removeprefix("srt-")


def test_a_recorded_request_has_its_answer(tmp_path: Path) -> None:
    with service_here(tmp_path, allow=("s3://gone",)) as here:
        peer = Peer(here)
        client = TestClient(here.client.app, base_url="http://127.0.0.1")
        made = {}
        for name in (OLD, NEW):
            made[name] = own_id(started(client, output_format=name + "-{0..9}"))
        peer.update(made[OLD], state="finished", ended_at=2e9)

        def with_ids(text: str) -> str:
            return text.replace(OLD, made[OLD]).replace(NEW, made[NEW])

        for row in (*STARTED, *SHOWN, *STOPPED):
            method, path = row.request.split(" ")
            content = None if row.body is None else with_ids(json.dumps(row.body))
            headers = {} if row.body is None else {"Content-Type": "application/json"}
            answer = client.request(method, with_ids(path), content=content, headers=headers)
            assert answer.status_code == row.status, (row.what, answer.text)
            said = answer.text.replace(made[OLD], OLD).replace(made[NEW], NEW)
            if row.answer is None:
                assert answer.content == b"", row.what
            elif callable(row.answer):
                assert row.answer(json.loads(said)), (row.what, said)
            elif isinstance(row.answer, str):
                assert re.match(row.answer, said), (row.what, said)
            else:
                assert json.loads(said) == row.answer, row.what


@pytest.mark.whole
@pytest.mark.parametrize("kind", [ConflictError, JobConflictError, NamesTakenError])
def test_no_conflict_is_reported_by_409(kind: type[DsortError]) -> None:
    """Which AIStore's SDK takes for a bucket that exists."""
    assert kind.http_status == 409
    assert error_response(kind("it does not go")).status_code == 400


def test_a_job_is_started_looked_at_aborted_and_removed(peer: Peer, ann: TestClient) -> None:
    answer = ann.post("/v1/sort", json=SPEC | {"description": "by name"})
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    job_id = answer.text
    one = {"uuid": job_id}
    (target,) = ann.get("/v1/sort", params=one).json().values()
    described = (target["id"], target["archived"], target["Metrics"]["description"])
    assert (described, target["src-bck"]["name"]) == ((job_id, False, "by name"), "in")
    assert ann.get(f"/v1/jobs/{job_id}").json()["job_id"] == own_id(job_id)  # without srt-
    assert ann.get(f"/v1/jobs/srt-{job_id}").status_code == 404
    busy = ann.delete("/v1/sort", params=one)
    said = f"dsort process {job_id} still in progress and cannot be removed"
    assert (busy.status_code, busy.text) == (400, said)
    for _ in range(2):
        again = ann.delete("/v1/sort/abort", params=one)
        assert (again.status_code, again.text) == (200, "")
    (target,) = ann.get("/v1/sort", params=one).json().values()
    assert (target["aborted"], target["archived"]) == (True, True)
    assert ann.delete("/v1/sort", params=one).status_code == 200
    assert peer.service.store.get(own_id(job_id)) is None
    actions = [row.action for row in peer.service.audit.list()]
    assert actions[:3] == ["job.remove", "job.stop", "job.stop"]


def test_members_that_lead_out_of_the_archive_end_the_job_unless_the_spec_says_otherwise(
    peer: Peer, ann: TestClient
) -> None:
    given: list[tuple[dict[str, Any], str]] = [
        ({}, "abort"),
        ({"unsafe_names": "warn"}, "warn"),
        ({"Config": {"unsafe_names": "rename"}}, "rename"),
        ({"Config": {"missing_shards": "warn"}}, "abort"),
    ]
    for fields, expected in given:
        spec = dict(peer.row(started(ann, **fields)).spec)
        assert parse_spec(spec).spec.config.unsafe_names == expected, fields


def test_a_job_that_was_asked_to_stop_lets_its_output_names_go(peer: Peer, ann: TestClient) -> None:
    first = started(ann)
    peer.update(first, state="running", attempt=1)
    refused = ann.post("/v1/sort", json=SPEC)
    assert (refused.status_code, own_id(first) in refused.text) == (400, True)
    assert ann.delete("/v1/sort/abort", params={"uuid": first}).status_code == 200
    assert started(ann) != first  # the queue begins it once the first has ended


def test_an_id_of_no_job_is_an_error(peer: Peer) -> None:
    ada = peer.client("admin")
    for method, path in (("GET", ""), ("DELETE", ""), ("DELETE", "/abort")):
        for uuid in ("srt-nothing", "a b", "ä"):
            answer = ada.request(method, f"/v1/sort{path}?uuid={uuid}")
            assert (answer.status_code, "does not exist" in answer.text) == (404, True), uuid
    for uuid in ("%00", "%ff"):
        answer = ada.get(f"/v1/sort?uuid={uuid}")
        assert (answer.status_code, "uuid" in answer.text) == (400, True), uuid
    # The SDK asks so before it has started a job: that is no list.
    answer = ada.get("/v1/sort?uuid=")
    assert (answer.status_code, answer.text.splitlines()[0]) == (400, "no job is named")


def test_lists_know_descriptions_and_activity(peer: Peer, ann: TestClient) -> None:
    first = started(ann, description="nightly 1")
    second = started(ann, description="by hand")
    third = started(ann, description="nightly 22")
    peer.end(first)

    def ids(**params: Any) -> list[str]:
        return [each["id"] for each in ann.get("/v1/sort", params=params).json()]

    assert ids() == [third, second, first]
    assert ids(only_active="true") == [third, second]
    assert ids(regex="^nightly [0-9]+$") == [third, first]
    assert ids(regex="nightly", only_active="1") == [third]
    assert ids(regex="nothing") == []
    started(ann, description="a" * 4000)
    assert ids(regex="(a*)*(a*)*b$") == []  # at once
    for regex in ("(", "a" * 1001, r"(?=a)"):
        answer = ann.get("/v1/sort", params={"regex": regex})
        assert (answer.status_code, answer.text[:7]) == (400, "regex: ")


def test_an_unknown_field_is_reported_in_json_and_in_yaml(ann: TestClient) -> None:
    wrong = SPEC | {"output_shard_sise": "1MB", "output_format": "out-"}
    for text, kind in ((json.dumps(wrong), "json"), (yaml.safe_dump(wrong), "yaml")):
        headers = {"Content-Type": f"application/{kind}"}
        answer = ann.post("/v1/sort", content=text, headers=headers)
        assert (answer.status_code, answer.headers["content-type"][:10]) == (400, "text/plain")
        assert "output_shard_sise" in answer.text
        assert "output_shard_size" in answer.text.replace("output_shard_sise", "")
        assert "output_format" in answer.text
    assert ann.post("/v1/sort", content=b"{").status_code == 400


def test_requests_without_a_token_are_refused(peer: Peer) -> None:
    client = TestClient(peer.here.client.app)
    for request in (
        *("POST /v1/sort", "GET /v1/sort", "DELETE /v1/sort?uuid=x", "GET /v1/daemon"),
        *("DELETE /v1/sort/abort?uuid=x", "PUT /v1/objects/in/ekm-file.json"),
    ):
        answer = client.request(*request.split(" "))
        assert (answer.status_code, answer.headers["content-type"][:10]) == (401, "text/plain")
        assert answer.headers["www-authenticate"].startswith("Bearer")


def test_jobs_belong_to_who_started_them(peer: Peer, ann: TestClient) -> None:
    job_id = started(ann)
    refused = peer.client("submitter", "bob").delete("/v1/sort/abort", params={"uuid": job_id})
    assert (refused.status_code, refused.text) == (403, f"job {job_id} belongs to ann")


def test_a_key_map_goes_with_the_job_that_names_it(peer: Peer, ann: TestClient) -> None:
    key_map = {"low-%d.tar": ["^0"]}
    put = ann.put("/v1/objects/in/ekm-file.json?provider=ais", json=key_map)
    assert put.status_code == 200
    url = "http://testserver/v1/objects/in/ekm-file.json?provider=ais"
    fields = {"output_format": "", "ekm_file": url, "ekm_file_sep": ""}
    row = peer.row(started(ann, **fields))
    assert (row.spec["ekm"], row.spec["ekm_file"]) == (key_map, None)
    bob = peer.client("submitter", "bob").post("/v1/sort", json={**SPEC, **fields})
    said = "ekm_file: no key map was put into in lately"
    assert (bob.status_code, bob.text.splitlines()[0]) == (400, said)
    # Over TLS, the SDK sends no body before it has been told where to.
    first = ann.put(url.replace("http:", "https:"), follow_redirects=False)
    assert first.status_code == 307
    assert ann.put(first.headers["location"], json=key_map).status_code == 200


def test_a_path_that_ends_in_a_line_break_has_no_route(ann: TestClient) -> None:
    # A key map's length is bounded by its path: as an object it could have 64 GiB.
    for path in ("objects/in/ekm-file.json%0A", "objects/in/a.tar%0A", "sort%0A", "jobs%0A"):
        method = "PUT" if path.startswith("objects") else "GET"
        answer = ann.request(method, f"/v1/{path}", content=b"{}" if method == "PUT" else None)
        not_found = (404, "urn:dsort:problem:not_found")
        assert (answer.status_code, answer.json()["type"]) == not_found, path


def test_what_only_a_cluster_has_is_declined(ann: TestClient) -> None:
    for request in (
        *("GET /v1/daemon?what=config", "PUT /v1/daemon", "GET /v1/health"),
        *("PATCH /v1/buckets/in", "POST /v1/objects/in/a/b.tar", "PATCH /v1/objects/in/a/b.tar"),
    ):
        answer = ann.request(*request.split(" "))
        assert (answer.status_code, "no AIStore cluster" in answer.text) == (501, True), request
