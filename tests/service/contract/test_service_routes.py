"""Laws of all routes. Of access: every route answers every caller as the table says, be what it is
about in buckets that the caller may use or not; what may not be seen is in no list; and nothing is
let in that is no token in its header. Of the OpenAPI document: requests made from it, and mutations
of them, are answered as it says, and every body, answer and parameter is described."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import hypothesis
import jsonschema_rs
import pytest
import schemathesis
import yaml
from fastapi import FastAPI
from httpx import Response
from hypothesis import strategies as st
from schemathesis import checks
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.specs.openapi import checks as openapi_checks

from dsort.service.aistore.transforms import TransformStore
from dsort.service.jobs.submit import Asked
from dsort.service.security.limits import RequestLimits
from dsort.service.security.tokens import ADMIN, SUBMITTER, VIEWER, Identity
from tests.support.access_matrix import BUCKETS, CALLERS, DECLINED, ROUTES, Row, routes_of
from tests.support.internals import manifest_name, report_name
from tests.support.service_here import SPEC, ServiceHere, service_here

OWNER = "ann"
ROLES = {"viewer": ("vera", VIEWER), "owner": (OWNER, SUBMITTER), "other": ("bob", SUBMITTER)}
BUCKETS_OF = {
    "allowed": ("images", "shuffled"),
    "input": ("hidden", "shuffled"),
    "output": ("images", "hidden"),
}
STRANGER = "dsort_" + "0" * 12 + "_" + "0" * 48

_numbers = count(1)


class Matrix:
    """A service with tokens for all callers, and what their requests are about."""

    def __init__(self, here: ServiceHere) -> None:
        self.here = here
        self.service = here.service
        self.root = here.service.config.run.root
        for name in ("images", "shuffled", "hidden"):
            (self.root / name).mkdir()
        self.service.limits = RequestLimits(10**6)
        reads, writes = ([str(self.root / name)] for name in BUCKETS_OF["allowed"])
        self.tokens = {
            caller: self.service.tokens.add(name, role, reads, writes)
            for caller, (name, role) in ROLES.items()
        }
        self.tokens["admin"] = self.service.tokens.add("ada", ADMIN)
        self.tokens["stranger"] = STRANGER
        self.lasting_job = cache(self.job)
        self.lasting_schedule = cache(self.schedule)
        self.waiting_job = cache(self.queued)

    def headers(self, caller: str) -> dict[str, str]:
        if caller == "anonymous":
            return {}
        return {"Authorization": f"Bearer {self.tokens[caller]}"}

    def spec(self, bucket: str) -> dict[str, Any]:
        reads, writes = BUCKETS_OF[bucket]
        return {**SPEC, "input_bck": reads, "output_bck": writes}

    def queued(self, bucket: str) -> str:
        """A job of the owner's that waits, so that its buckets cannot be removed."""
        submitter = self.service.submitter
        new = submitter.prepare(submitter.check(self.spec(bucket)), OWNER, Asked())
        self.service.store.submit(new)
        return new.job_id

    def job(self, bucket: str) -> str:
        """A job of the owner's that was stopped, with all that one may look at."""
        job_id = self.queued(bucket)
        self.service.store.ask_stop(job_id)
        for name in (manifest_name(job_id), report_name(job_id)):
            file = self.root / BUCKETS_OF[bucket][1] / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("{}")
        return job_id

    def definition(self, bucket: str, name: str) -> dict[str, Any]:
        return {"name": name, "every": "1d", "spec": self.spec(bucket), "overlap": "replace"}

    def schedule(self, bucket: str) -> str:
        """A schedule of the owner's, made when it was still allowed to use the buckets."""
        name = f"nightly-{next(_numbers)}"
        loaded = self.service.schedules.read(self.definition(bucket, name))
        self.service.schedules.add(loaded.definition, Identity(OWNER, SUBMITTER))
        return name

    def token(self, bucket: str) -> str:
        name = f"someone-{next(_numbers)}"
        self.service.tokens.add(name, VIEWER)
        return name

    def bucket_with_object(self, bucket: str, *, writes: bool) -> str:
        """One that callers may read, or write to, or the hidden one."""
        found = BUCKETS_OF["allowed"][writes] if bucket == "allowed" else "hidden"
        (self.root / found / "an").mkdir(exist_ok=True)
        (self.root / found / "an" / "object").write_text("content")
        return found

    def transform(self, bucket: str) -> str:
        name = f"half-{next(_numbers)}"
        fields = {"steps": [{"sample": {"fraction": 0.5}}]}
        return TransformStore(self.service.database).put(name, fields, "ada")[0].use

    def request(self, route: str, row: Row, bucket: str, caller: str) -> Response:
        """Send the request of a row, about something new if it may change it."""
        method, path = route.split(" ")
        changes = method != "GET" and caller in ("owner", "admin")
        names = {"{bucket:path}": "ais/%40%23/images"}
        query = row.query
        if row.body == "destroy-bck":
            self.waiting_job(bucket)
        if "{job_id}" in path + query or row.body == "stop":
            names["{job_id}"] = (self.job if changes else self.lasting_job)(bucket)
        if "{bucket}" in path or path.endswith("/{bucket:path}"):
            writes = row.law != "read" and method in ("PUT", "POST", "DELETE")
            found = self.bucket_with_object(bucket, writes=writes)
            names = {"{bucket}": found, "{bucket:path}": found, "{name:path}": "an/object"}
        if "{use}" in path:
            names["{use}"] = self.transform(bucket)
        if "{name}" in path:
            makers: dict[str, Callable[[str], str]] = {
                "schedules": self.schedule if changes else self.lasting_schedule,
                "tokens": self.token,
                "transforms": lambda _: f"fresh-{next(_numbers)}",
                "web": lambda _: "app.js",
            }
            names["{name}"] = makers[path.removeprefix("/v1").split("/")[1]](bucket)
        for pattern, name in names.items():
            path, query = path.replace(pattern, name), query.replace(pattern, name)
        fresh = f"fresh-{next(_numbers)}"
        bodies: dict[str, Any] = {
            "": None,
            "spec": self.spec(bucket),
            "schedule": self.definition(bucket, names.get("{name}", fresh)),
            "token": {"name": fresh, "role": VIEWER},
            "stop": {"action": "stop", "value": {"id": names.get("{job_id}")}},
            "transform": {"steps": [{"sample": {"fraction": 0.5}}]},
            **{action: {"action": action} for action in ("create-bck", "destroy-bck")},
            "delete-listrange": {"action": "delete-listrange", "value": {"objnames": ["none"]}},
        }
        answer: Response = self.here.client.request(
            method,
            path + (f"?{query}" if query else ""),
            json=bodies[row.body],
            headers=self.headers(caller),
        )
        return answer


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    directory = tmp_path_factory.mktemp("authorisation")
    with service_here(directory, no_auth=False) as here:
        yield Matrix(here)


def served(matrix: Matrix) -> set[str]:
    app = matrix.here.client.app
    assert isinstance(app, FastAPI)
    return set(routes_of(app.routes))


def is_declined(route: str) -> bool:
    path = route.split(" ")[1].split("/")
    return path[1] == "v1" and path[2] in DECLINED and route not in ROUTES


def test_the_table_has_every_route_and_no_other(matrix: Matrix) -> None:
    found = {route for route in served(matrix) if not is_declined(route)}
    assert found == set(ROUTES)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("route", "row"),
    [
        pytest.param(route, row, id=f"{route}{'?' if row.query else ''}{row.query}")
        for route, rows in ROUTES.items()
        for row in rows
    ],
)
def test_every_route_answers_every_caller_as_the_table_says(
    matrix: Matrix, route: str, row: Row
) -> None:
    for bucket in BUCKETS if row.about_buckets else BUCKETS[:1]:
        for caller in CALLERS:
            answer = matrix.request(route, row, bucket, caller)
            expected = row.expected(bucket, caller)
            assert answer.status_code in expected, (bucket, caller, answer.text)
            if answer.status_code == 401:
                assert answer.headers["WWW-Authenticate"].startswith("Bearer")
            if answer.status_code >= 400:
                assert not [
                    token for token in matrix.tokens.values() if token in str(answer.__dict__)
                ]


def test_a_peers_routes_that_are_not_served_are_declined_to_holders_of_tokens(
    matrix: Matrix,
) -> None:
    routes = [route for route in served(matrix) if is_declined(route)]
    assert len(routes) > len(DECLINED)
    for route in routes:
        method, path = route.replace("{rest:path}", "a/b").split(" ")
        for caller, status in (("anonymous", 401), ("viewer", 501)):
            answer = matrix.here.client.request(method, path, headers=matrix.headers(caller))
            assert answer.status_code == status, (route, caller)


@pytest.mark.parametrize("caller", ["viewer", "owner", "other", "admin"])
def test_lists_have_what_may_be_seen_and_nothing_else(matrix: Matrix, caller: str) -> None:
    made = {bucket: (matrix.job(bucket), matrix.schedule(bucket)) for bucket in BUCKETS}
    wanted = BUCKETS if caller == "admin" else BUCKETS[:1]

    def get(path: str) -> Any:
        answer = matrix.here.client.get(path, headers=matrix.headers(caller))
        assert answer.status_code == 200
        return answer.json()

    listed = {job["job_id"] for job in get("/v1/jobs?limit=500")["jobs"]}
    peers = {job["id"].removeprefix("srt-") for job in get("/v1/sort")}
    schedules = {each["name"] for each in get("/v1/schedules")["schedules"]}
    for bucket, (job_id, schedule) in made.items():
        shown = bucket in wanted
        assert (job_id in listed, job_id in peers, schedule in schedules) == (shown,) * 3


def test_a_hidden_job_is_answered_as_a_missing_one(matrix: Matrix) -> None:
    hidden = matrix.job("output")
    absent = hidden[:-6] + "abcdef"
    for path in ("", "/log", "/events", "/manifest"):
        one, other = (
            matrix.here.client.get(f"/v1/jobs/{job_id}{path}", headers=matrix.headers("owner"))
            for job_id in (hidden, absent)
        )
        assert (one.status_code, other.status_code) == (404, 404)
        assert one.text.replace(hidden, "") == other.text.replace(absent, "")


def test_a_token_anywhere_else_than_in_its_header_is_none(matrix: Matrix) -> None:
    token = matrix.tokens["admin"]
    for query, headers in (
        (f"?token={token}", {}),
        (f"?access_token={token}", {}),
        ("", {"Authorization": f"Basic {token}"}),
        ("", {"Authorization": token}),
        ("", {"Authorization": "Bearer"}),
        ("", {"X-Auth-Token": token}),
        ("", {"Cookie": f"token={token}; Authorization={token}"}),
        ("", {"X-Forwarded-User": "ada", "X-Forwarded-For": "127.0.0.1"}),
    ):
        said = matrix.here.client.get(f"/v1/jobs{query}", headers=headers)
        assert said.status_code == 401, (query, headers)
    spaced = {"Authorization": f"Bearer {token} "}  # HTTP takes the space at the end away
    assert matrix.here.client.get("/v1/jobs", headers=spaced).status_code == 200


def test_who_one_is_and_may_do_can_be_asked(matrix: Matrix) -> None:
    whoami = matrix.here.client.get("/v1/whoami", headers=matrix.headers("viewer")).json()
    assert whoami == {
        "name": "vera",
        "role": "viewer",
        "input_buckets": [f"file://{matrix.root}/images"],
        "output_buckets": [f"file://{matrix.root}/shuffled"],
        "authenticated": True,
        "named_transforms": True,
    }


def test_a_token_is_made_used_and_removed_over_rest(matrix: Matrix) -> None:
    client, admin = matrix.here.client, matrix.headers("admin")
    wanted = {"name": "carl", "role": "submitter", "input_buckets": ["s3://a*"]}
    made = client.post("/v1/tokens", json={**wanted, "expires_in_s": 60}, headers=admin)
    assert made.status_code == 201
    assert made.headers["Cache-Control"] == "no-store"
    own = {"Authorization": f"Bearer {made.json()['token']}"}
    assert client.get("/v1/whoami", headers=own).json()["input_buckets"] == ["s3://a*"]
    listed = client.get("/v1/tokens", headers=admin)
    assert [each for each in listed.json()["tokens"] if each["name"] == "carl"]
    assert made.json()["token"].rsplit("_", 1)[1] not in listed.text
    assert client.post("/v1/tokens", json=wanted, headers=admin).status_code == 409
    assert client.delete("/v1/tokens/carl", headers=admin).status_code == 204
    assert client.get("/v1/whoami", headers=own).status_code == 401
    assert client.delete("/v1/tokens/carl", headers=admin).status_code == 404


def test_the_audit_trail_has_the_caller_the_action_and_the_address(matrix: Matrix) -> None:
    client = matrix.here.client
    job_id = matrix.job("allowed")
    client.delete(f"/v1/jobs/{job_id}", headers=matrix.headers("owner"))
    first = client.get("/v1/audit?limit=1", headers=matrix.headers("admin")).json()
    (entry,) = first["entries"]
    assert (entry["who"], entry["action"], entry["target"]) == (OWNER, "job.remove", job_id)
    assert entry["address"] == "testclient"
    second = client.get(
        f"/v1/audit?limit=1&cursor={first['next_cursor']}", headers=matrix.headers("admin")
    ).json()
    assert second["entries"][0]["number"] < entry["number"]


def test_requests_of_a_token_are_limited(matrix: Matrix) -> None:
    client, before = matrix.here.client, matrix.service.limits
    matrix.service.limits = RequestLimits(3)
    try:
        statuses = [
            client.get("/v1/whoami", headers=matrix.headers("viewer")).status_code for _ in range(4)
        ]
        assert statuses == [200, 200, 200, 429]
        refused = client.get("/v1/whoami", headers=matrix.headers("viewer"))
        assert 1 <= int(refused.headers["Retry-After"]) <= 60
        # A holder does not suffer for what others try from the same address.
        for _ in range(5):
            wrong = client.get("/v1/whoami", headers=matrix.headers("stranger"))
            assert wrong.status_code == 401
        assert client.get("/v1/whoami", headers=matrix.headers("other")).status_code == 200
    finally:
        matrix.service.limits = before


def test_a_body_that_is_too_large_is_refused_before_anything_is_made_of_it(matrix: Matrix) -> None:
    size_max = matrix.service.config.body_bytes_max
    for content in (b" " * (size_max + 1), iter([b" " * size_max, b" "])):
        answer = matrix.here.client.post(
            "/v1/jobs", content=content, headers=matrix.headers("owner")
        )
        assert answer.status_code == 413
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"] == "urn:dsort:problem:too_large"


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", ["/v1/jobs/x/stop", "/v1/tokens"])
def test_strangers_cannot_have_much_kept_for_them(tmp_path: Path, path: str) -> None:
    # Of these routes the body is read before the token is checked.
    with service_here(tmp_path, no_auth=False) as here:
        for body in (b'"' + b"x" * 200_000, iter([b'"', b"x" * 200_000])):
            headers = {"Content-Type": "application/json"}
            answer = here.client.post(path, content=body, headers=headers)
            assert answer.status_code == 413, answer.text
        assert here.client.post("/v1/jobs", content=b"x" * 200_000).status_code == 401


def test_an_unknown_token_and_a_wrong_secret_get_the_same_answer(asking: ServiceHere) -> None:
    text = asking.headers("ann", "viewer")["Authorization"]
    answers = [
        asking.client.get("/v1/whoami", headers={"Authorization": each})
        for each in (f"{text[:-48]}{'0' * 48}", f"Bearer dsort_{'0' * 12}_{'0' * 48}")
    ]
    assert [each.status_code for each in answers] == [401, 401]
    assert answers[0].text == answers[1].text


# --- the OpenAPI document -------------------------------------------------------------------------

HEADERS = {"Host": "localhost"}


CHECKS = [
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
]


@pytest.fixture(scope="module")
def without_tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceHere]:
    with service_here(tmp_path_factory.mktemp("openapi")) as service:
        yield service


def test_every_answer_is_a_documented_one(
    without_tokens: ServiceHere, rounds: Callable[[int, int], int]
) -> None:
    schema = schemathesis.openapi.from_asgi(
        "/openapi.json", without_tokens.client.app, headers=HEADERS
    )
    job_id = without_tokens.submit()["job_id"]
    wrong = [complaint(found.ok(), job_id, rounds(3, 12)) for found in schema.get_all_operations()]
    assert not any(wrong), "\n\n".join(filter(None, wrong))


def complaint(operation: schemathesis.APIOperation, job_id: str, examples: int) -> str:
    """What is wrong with the answers of an operation to so many requests; ``job_id``: a job that
    there is."""
    # That it is not ready is no failure of a service that was not started.
    passed = CHECKS[1:] if operation.path == "/readyz" else CHECKS

    @hypothesis.given(case=operation.as_strategy(), real=st.booleans())
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    def answers_as_documented(case: schemathesis.Case, real: bool) -> None:
        # The stream of a job that waits has no end.
        if real and "job_id" in (case.path_parameters or {}) and "/events" not in operation.path:
            case.path_parameters["job_id"] = job_id
        case.call_and_validate(headers=HEADERS, checks=passed)

    try:
        answers_as_documented()
    except (Failure, FailureGroup) as bad:
        return f"{operation.label}: {bad}"
    return ""


def test_every_operation_says_what_it_is_for_and_how_it_fails(without_tokens: ServiceHere) -> None:
    document = without_tokens.client.get("/openapi.json").json()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            name = f"{method} {path}"
            assert operation.get("summary"), name
            assert operation.get("tags"), name
            if path.startswith("/v1/"):
                assert {"401", "429"} <= set(operation["responses"]), name
                assert "503" in operation["responses"], name  # when the database is away


def test_every_parameter_says_what_it_is(without_tokens: ServiceHere) -> None:
    document = without_tokens.client.get("/openapi.json").json()
    silent = [
        f"{name}: {parameter['name']}"
        for name, operation in operations_of(document)
        for parameter in operation.get("parameters", ())
        if not parameter.get("description")
    ]
    assert silent == []


def test_every_body_and_answer_has_examples_that_are_right(without_tokens: ServiceHere) -> None:
    document = without_tokens.client.get("/openapi.json").json()
    wrong, seen = [], set()
    for name, operation in operations_of(document):
        contents = [("body", operation.get("requestBody", {}).get("content", {}))]
        good = {status: each for status, each in operation["responses"].items() if status < "300"}
        contents += [(status, each.get("content", {})) for status, each in good.items()]
        for what, content in contents:
            for media_type, media in content.items():
                seen.add(media_type)
                wrong += [
                    f"{name}, {what}, {media_type}: {complaint}"
                    for complaint in mistakes(document, media_type, media)
                ]
    assert not wrong, "\n".join(wrong)
    documents = {"application/json", "application/yaml", "text/plain", "text/event-stream"}
    assert seen == documents | {"application/octet-stream"}


def operations_of(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(its method and path, an operation) of all."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield f"{method} {path}", operation


def mistakes(document: dict[str, Any], media_type: str, media: dict[str, Any]) -> Iterator[str]:
    """What is wrong with the examples of a content."""
    schema = media.get("schema") or media["itemSchema"]
    check = jsonschema_rs.validator_for({**schema, "components": document["components"]})
    given = [each["value"] for each in media.get("examples", {}).values()]
    given += [media["example"]] if "example" in media else []
    if not given:
        yield "there is no example"
    for example in given:
        for value in values_of(example, media_type):
            yield from (f"{error}" for error in check.iter_errors(value))


def values_of(example: Any, media_type: str) -> list[Any]:
    """What the schema speaks of: of a stream, each of its events."""
    if media_type == "application/yaml":
        return [yaml.safe_load(example)]
    if media_type != "text/event-stream":
        return [example]
    blocks = example.removesuffix("\n\n").split("\n\n")
    events = [dict(line.split(": ", 1) for line in block.splitlines()) for block in blocks]
    assert all(isinstance(json.loads(event["data"]), dict) for event in events)
    return events
