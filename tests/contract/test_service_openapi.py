"""The OpenAPI document tells the truth: requests made from it, and mutations of them, are answered
as it says, and nothing that a client sends makes the service fail."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest
import schemathesis
from hypothesis import strategies as st
from schemathesis import checks
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.specs.openapi import checks as openapi_checks

from tests.support.service_here import ServiceHere, service_here

EXAMPLES = 12
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


def test_every_answer_is_a_documented_one(here: ServiceHere) -> None:
    schema = schemathesis.openapi.from_asgi("/openapi.json", here.client.app, headers=HEADERS)
    job_id = here.submit()["job_id"]
    wrong = [complaint(found.ok(), job_id) for found in schema.get_all_operations()]
    assert not any(wrong), "\n\n".join(filter(None, wrong))


def complaint(operation: schemathesis.APIOperation, job_id: str) -> str:
    """What is wrong with the answers of an operation; ``job_id``: a job that there is."""
    # That it is not ready is no failure of a service that was not started.
    passed = CHECKS[1:] if operation.path == "/readyz" else CHECKS

    @hypothesis.given(case=operation.as_strategy(), real=st.booleans())
    @hypothesis.settings(
        max_examples=EXAMPLES,
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
