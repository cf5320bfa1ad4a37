"""The OpenAPI document tells the truth: requests made from it, and mutations of them, are answered
as it says, and nothing that a client sends makes the service fail. And it tells all: every body and
every answer has an example, which is a right one, and every parameter says what it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import jsonschema_rs
import pytest
import schemathesis
import yaml
from hypothesis import strategies as st
from schemathesis import checks
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.specs.openapi import checks as openapi_checks

from tests.support.service_here import ServiceHere, service_here

HEADERS = {"Host": "localhost"}
CHECKS = [
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceHere]:
    with service_here(tmp_path_factory.mktemp("openapi")) as service:
        yield service


def test_every_answer_is_a_documented_one(
    here: ServiceHere, rounds: Callable[[int, int], int]
) -> None:
    schema = schemathesis.openapi.from_asgi("/openapi.json", here.client.app, headers=HEADERS)
    job_id = here.submit()["job_id"]
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


def test_every_operation_says_what_it_is_for_and_how_it_fails(here: ServiceHere) -> None:
    document = here.client.get("/openapi.json").json()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            name = f"{method} {path}"
            assert operation.get("summary"), name
            assert operation.get("tags"), name
            if path.startswith("/v1/"):
                assert {"401", "429"} <= set(operation["responses"]), name
                assert "503" in operation["responses"], name  # when the database is away


def test_every_parameter_says_what_it_is(here: ServiceHere) -> None:
    document = here.client.get("/openapi.json").json()
    silent = [
        f"{name}: {parameter['name']}"
        for name, operation in operations_of(document)
        for parameter in operation.get("parameters", ())
        if not parameter.get("description")
    ]
    assert silent == []


def test_every_body_and_answer_has_examples_that_are_right(here: ServiceHere) -> None:
    document = here.client.get("/openapi.json").json()
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
