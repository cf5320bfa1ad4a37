"""AIStore's routes answer as its clients expect: ids and errors as texts, its statuses, and the
same rules about who may do what as everywhere."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import update

from dsort.errors import ConflictError, DsortError, JobConflictError, NamesTakenError
from dsort.options import RunOptions
from dsort.service.aistore.guest import AistoreGuest
from dsort.service.aistore.routes import _error_response as error_response
from dsort.service.api.app import create_app
from dsort.service.config import ServiceConfig
from dsort.service.database.tables import jobs
from dsort.service.service import Service
from dsort.spec.load import parse_spec

SPEC = {
    "input_bck": {"name": "in", "provider": "ais"},
    "input_format": {"template": "in-{0..3..1}"},
    "input_extension": "tar",
    "output_bck": {"name": "out", "provider": "ais"},
    "output_format": "out-{0..9..1}",
    "output_extension": "tar",
    "algorithm": {"kind": "alphanumeric", "decreasing": False, "seed": ""},
    "description": "by name",
    "output_shard_size": "10KB",
}
Clients = Callable[..., TestClient]


@pytest.mark.parametrize("kind", [ConflictError, JobConflictError, NamesTakenError])
def test_no_conflict_is_reported_by_409(kind: type[DsortError]) -> None:
    """Which AIStore's SDK takes for a bucket that exists."""
    assert kind.http_status == 409
    assert error_response(kind("it does not go")).status_code == 400


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that takes jobs in and runs none."""
    root = tmp_path_factory.mktemp("peer")
    (root / "in").mkdir()
    config = ServiceConfig(
        run=RunOptions(root=root),
        state_dir=root / "state",
        database_url=f"sqlite:///{root}/service.db",
        replica="one",
    )
    with Service(config, AistoreGuest()) as service:
        yield service


@pytest.fixture(scope="module")
def app(service: Service) -> FastAPI:
    """The service over HTTP."""
    return create_app(service)


@pytest.fixture(scope="module")
def client(service: Service, app: FastAPI) -> Clients:
    """Clients with tokens of a role, a name (the role's, unless it is given) and buckets."""

    @functools.cache
    def of(role: str, name: str = "", globs: tuple[str, ...] = ("*",)) -> TestClient:
        secret = service.tokens.add(name or role, role, globs, globs)
        return TestClient(app, headers={"Authorization": f"Bearer {secret}"})

    return of


def started(client: TestClient, **fields: Any) -> str:
    """The id of a job that was just started, as AIStore's clients have it."""
    answer = client.post("/v1/sort", json={**SPEC, **fields})
    assert answer.status_code == 200, answer.text
    return str(answer.text)


def own_id(job_id: str) -> str:
    """The id that the job has elsewhere."""
    return job_id.removeprefix("srt-")


def ended(service: Service, job_id: str, **values: Any) -> None:
    """Have the job be over."""
    with service.database.writing() as connection:
        connection.execute(
            update(jobs)
            .where(jobs.c.job_id == own_id(job_id))
            .values(state="finished", started_at=time.time(), ended_at=time.time(), **values)
        )


def test_a_job_is_started_looked_at_aborted_and_removed(service: Service, client: Clients) -> None:
    ann = client("submitter")
    answer = ann.post("/v1/sort", json=SPEC)
    assert (answer.status_code, answer.headers["content-type"]) == (
        200,
        "text/plain; charset=utf-8",
    )
    job_id = answer.text
    (target,) = ann.get("/v1/sort", params={"uuid": job_id}).json().values()
    assert (target["id"], target["archived"], target["Metrics"]["description"]) == (
        job_id,
        False,
        "by name",
    )
    assert target["src-bck"]["name"] == "in"
    here = ann.get(f"/v1/jobs/{job_id}").json()  # whose id is the one without srt-
    assert (here["job_id"], here["description"]) == (own_id(job_id), "by name")
    assert ann.get(f"/v1/jobs/srt-{job_id}").status_code == 404
    busy = ann.delete("/v1/sort", params={"uuid": job_id})
    assert busy.status_code == 400
    assert busy.text == f"dsort process {job_id} still in progress and cannot be removed"
    assert ann.delete("/v1/sort/abort", params={"uuid": job_id}).status_code == 200
    (target,) = ann.get("/v1/sort", params={"uuid": job_id}).json().values()
    assert (target["aborted"], target["archived"]) == (True, True)
    again = ann.delete("/v1/sort/abort", params={"uuid": job_id})
    assert (again.status_code, again.text) == (200, "")
    assert ann.delete("/v1/sort", params={"uuid": job_id}).status_code == 200
    assert service.store.get(own_id(job_id)) is None
    assert [row.action for row in service.audit.list()][:3] == [
        "job.remove",
        "job.stop",
        "job.stop",
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "abort"),
        ({"unsafe_names": "warn"}, "warn"),
        ({"Config": {"unsafe_names": "rename"}}, "rename"),
        ({"Config": {"missing_shards": "warn"}}, "abort"),
    ],
)
def test_members_that_lead_out_of_the_archive_end_the_job_unless_the_spec_says_otherwise(
    service: Service, client: Clients, given: dict[str, Any], expected: str
) -> None:
    row = service.store.get(own_id(started(client("submitter"), **given)))
    assert row is not None
    assert parse_spec(dict(row.spec)).spec.config.unsafe_names == expected


def test_a_job_that_was_asked_to_stop_lets_its_output_names_go(
    service: Service, client: Clients
) -> None:
    ann = client("submitter")
    fields = {"output_format": "freed-{0..9}"}
    first = own_id(started(ann, **fields))
    with service.database.writing() as connection:
        runs = update(jobs).where(jobs.c.job_id == first)
        connection.execute(runs.values(state="running", attempt=1))
    refused = ann.post("/v1/sort", json={**SPEC, **fields})
    assert (refused.status_code, first in refused.text) == (400, True)
    assert ann.delete("/v1/sort/abort", params={"uuid": first}).status_code == 200
    assert own_id(started(ann, **fields)) != first  # the queue begins it once the first has ended
    ended(service, first)


def test_a_finished_job_may_be_aborted_and_stays_finished(
    service: Service, client: Clients
) -> None:
    ann = client("submitter")
    job_id = started(ann)
    ended(service, job_id)
    assert ann.delete("/v1/sort/abort", params={"uuid": job_id}).status_code == 200
    row = service.store.get(own_id(job_id))
    assert row is not None
    assert row.state == "finished"


@pytest.mark.parametrize("uuid", ["srt-nothing", "a b", "ä"])
@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("DELETE", ""), ("DELETE", "/abort")])
def test_there_is_no_such_job(client: Clients, method: str, path: str, uuid: str) -> None:
    answer = client("admin").request(method, f"/v1/sort{path}?uuid={uuid}")
    assert answer.status_code == 404
    assert "does not exist" in answer.text


@pytest.mark.parametrize("uuid", ["%00", "%ff"])
def test_an_id_that_is_no_text_is_refused(client: Clients, uuid: str) -> None:
    answer = client("admin").get(f"/v1/sort?uuid={uuid}")
    assert answer.status_code == 400
    assert "uuid" in answer.text


def test_a_job_without_an_id_is_no_list(client: Clients) -> None:
    """The SDK asks so before it has started anything."""
    answer = client("viewer").get("/v1/sort?uuid=")
    assert (answer.status_code, answer.text.splitlines()[0]) == (400, "no job is named")


def test_lists_know_descriptions_and_activity(service: Service, client: Clients) -> None:
    ann = client("submitter")
    first = started(ann, description="nightly 1")
    second = started(ann, description="by hand")
    third = started(ann, description="nightly 22")
    ended(service, first)

    def ids(**params: Any) -> list[str]:
        return [each["id"] for each in ann.get("/v1/sort", params=params).json()]

    assert ids()[:3] == [third, second, first]
    assert ids(only_active="true")[:2] == [third, second]
    assert ids(regex="^nightly [0-9]+$") == [third, first]
    assert ids(regex="nightly", only_active="1") == [third]
    assert ids(regex="nothing") == []


@pytest.mark.parametrize("regex", ["(", "a" * 1001, r"(?=a)"])
def test_a_regex_that_is_none_is_a_bad_request(client: Clients, regex: str) -> None:
    answer = client("viewer").get("/v1/sort", params={"regex": regex})
    assert answer.status_code == 400
    assert answer.text.startswith("regex: ")


def test_a_regex_takes_no_time_to_speak_of(client: Clients) -> None:
    ann = client("submitter")
    started(ann, description="a" * 4000)
    answer = ann.get("/v1/sort", params={"regex": "(a*)*(a*)*b$"})
    assert answer.json() == []


def test_a_wrong_spec_is_reported_in_words(client: Clients) -> None:
    wrong = {**SPEC, "algorithm": {"kind": "sideways"}, "output_format": "out-"}
    answer = client("submitter").post("/v1/sort", json=wrong)
    assert (answer.status_code, answer.headers["content-type"][:10]) == (400, "text/plain")
    assert "algorithm.kind" in answer.text
    assert "output_format: no range in template 'out-'" in answer.text
    assert client("submitter", "bob").post("/v1/sort", content=b"{").status_code == 400


def test_an_unknown_field_is_reported_in_json_and_in_yaml(client: Clients) -> None:
    ann = client("submitter")
    wrong = SPEC | {"output_shard_sise": "1MB"}
    for text, kind in ((json.dumps(wrong), "json"), (yaml.safe_dump(wrong), "yaml")):
        headers = {"Content-Type": f"application/{kind}"}
        answer = ann.post("/v1/sort", content=text, headers=headers)
        assert answer.status_code == 400
        assert "output_shard_sise" in answer.text
        assert "output_shard_size" in answer.text.replace("output_shard_sise", "")


def test_nobody_without_a_token_is_let_in(app: FastAPI) -> None:
    nobody = TestClient(app)
    for method, path in [
        ("POST", "/v1/sort"),
        ("GET", "/v1/sort"),
        ("DELETE", "/v1/sort?uuid=x"),
        ("DELETE", "/v1/sort/abort?uuid=x"),
        ("PUT", "/v1/objects/in/ekm-file.json"),
        ("GET", "/v1/daemon"),
    ]:
        answer = nobody.request(method, path)
        assert (answer.status_code, answer.headers["content-type"][:10]) == (401, "text/plain")
        assert answer.headers["www-authenticate"].startswith("Bearer")


def test_viewers_look_and_change_nothing(client: Clients) -> None:
    job_id = started(client("submitter"))
    viewer = client("viewer")
    assert job_id in viewer.get("/v1/sort").text
    assert viewer.post("/v1/sort", json=SPEC).status_code == 403
    assert viewer.delete("/v1/sort/abort", params={"uuid": job_id}).status_code == 403
    assert viewer.delete("/v1/sort", params={"uuid": job_id}).status_code == 403


def test_jobs_belong_to_who_started_them(client: Clients) -> None:
    job_id = started(client("submitter", "ann"))
    bob = client("submitter", "bob")
    refused = bob.delete("/v1/sort/abort", params={"uuid": job_id})
    assert (refused.status_code, refused.text) == (403, f"job {job_id} belongs to ann")
    assert client("admin").delete("/v1/sort/abort", params={"uuid": job_id}).status_code == 200


def test_jobs_of_other_buckets_are_not_there(client: Clients) -> None:
    job_id = started(client("submitter", "ann"))
    eve = client("submitter", "eve", ("s3://eve/*",))
    assert eve.get("/v1/sort").json() == []
    assert eve.get("/v1/sort", params={"uuid": job_id}).status_code == 404
    assert eve.delete("/v1/sort/abort", params={"uuid": job_id}).status_code == 404
    assert eve.post("/v1/sort", json=SPEC).status_code == 403


def test_a_key_map_goes_with_the_job_that_names_it(service: Service, client: Clients) -> None:
    ann = client("submitter")
    put = ann.put("/v1/objects/in/ekm-file.json?provider=ais", json={"low-%d.tar": ["^0"]})
    assert put.status_code == 200
    url = "http://testserver/v1/objects/in/ekm-file.json?provider=ais"
    fields = {"output_format": "", "ekm_file": url, "ekm_file_sep": ""}
    row = service.store.get(own_id(started(ann, **fields)))
    assert row is not None
    assert (row.spec["ekm"], row.spec["ekm_file"]) == ({"low-%d.tar": ["^0"]}, None)
    bob = client("submitter", "bob").post("/v1/sort", json={**SPEC, **fields})
    assert (bob.status_code, bob.text.splitlines()[0]) == (
        400,
        "ekm_file: no key map was put into in lately",
    )


def test_over_tls_the_sdk_is_asked_to_send_the_key_map_here(client: Clients) -> None:
    """It sends no body before it has been told where to."""
    ann = client("submitter")
    url = "https://testserver/v1/objects/in/ekm-file.json?provider=ais"
    first = ann.put(url, follow_redirects=False)
    assert first.status_code == 307
    second = ann.put(first.headers["location"], json={"low-%d.tar": ["^0"]})
    assert second.status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        # A key map's length is bounded by its path: as an object it could have 64 GiB.
        ("PUT", "/v1/objects/in/ekm-file.json%0A"),
        ("PUT", "/v1/objects/in/a.tar%0A"),
        ("GET", "/v1/sort%0A"),
        ("GET", "/v1/jobs%0A"),
    ],
)
def test_a_path_that_ends_in_a_line_break_has_no_route(
    client: Clients, method: str, path: str
) -> None:
    answer = client("submitter").request(method, path, content=b"{}" if method == "PUT" else None)
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:dsort:problem:not_found")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/daemon?what=config"),
        ("PUT", "/v1/daemon"),
        ("GET", "/v1/health"),
        ("PATCH", "/v1/buckets/in"),
        ("POST", "/v1/objects/in/a/b.tar"),
        ("PATCH", "/v1/objects/in/a/b.tar"),
    ],
)
def test_what_only_a_cluster_has_is_declined(client: Clients, method: str, path: str) -> None:
    answer = client("viewer").request(method, path)
    assert answer.status_code == 501
    assert "no AIStore cluster" in answer.text
