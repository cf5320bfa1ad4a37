"""What routes may answer, for the OpenAPI document: models of what is sent, and the problems."""

from __future__ import annotations

import json
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from dsort.service.api import examples
from dsort.service.api.result_views import PhaseView, PlanReportView, RunReportView
from dsort.service.problems import PROBLEM_JSON

__all__ = [
    "RETRY_AFTER",
    "HealthView",
    "JobList",
    "JobView",
    "Problem",
    "ProblemItem",
    "ProgressView",
    "ValidationView",
    "WholeJobView",
    "body_like",
    "problems",
    "restore_examples",
    "shown",
]

_AS_TEXT: Final = "as_text"
"""FastAPI drops all nulls from the document, those of examples, too; none is in a text."""
_TITLES: Final = {
    400: "The request or the spec is wrong: every problem is told.",
    401: "No token, or one that is not known.",
    403: "The token's role or buckets do not allow it.",
    404: "There is no such thing, or none that the token may see.",
    408: "The body takes too long to come.",
    409: "It does not go with the state that the thing is in.",
    413: "The body is too large.",
    422: "The data does not allow it.",
    429: "Too many requests: `Retry-After` says how long to wait.",
    501: "Not served by dsort.",
    502: "The bucket or its store fails.",
    503: "Not ready.",
}
RETRY_AFTER: Final = {
    "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}
}
"""The header of an answer that says when to ask again."""


class _View(BaseModel):
    model_config = ConfigDict(extra="allow")


class ProblemItem(_View):
    """One thing wrong with a spec."""

    path: str = Field(description="The field, dotted.", examples=["algorithm.kind"])
    message: str
    hint: str


class Problem(_View):
    """What went wrong, as RFC 9457 has it; the same words as the command line's."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [examples.PROBLEM]})

    type: str = Field(examples=["urn:dsort:problem:spec"])
    title: str
    status: int
    detail: str
    hint: str = ""
    exit_code: int | None = Field(default=None, description="Of the command line, for this.")
    problems: list[ProblemItem] = Field(default_factory=list)


class ProgressView(_View):
    """How far the phase is that runs now."""

    phase: str
    shards_done: int
    shards_total: int
    records_done: int
    bytes_done: int
    bytes_total: int
    elapsed_s: float
    share: float | None = Field(description="Of the whole job, 0 to 1.")
    bytes_per_s: float | None
    left_s: float | None = Field(description="What this phase still takes, at this rate.")


class JobView(_View):
    """A job. Times are RFC 3339, UTC."""

    job_id: str
    kind: Literal["run", "plan"] = Field(description="plan: a dry run, which writes nothing.")
    state: Literal["queued", "running", "finished", "failed", "stopped"]
    stopping: bool = Field(description="It runs, and was asked to stop.")
    owner: str
    labels: list[str]
    priority: int
    description: str
    input_uri: str
    output_uri: str
    schedule: str | None
    due_at: str | None
    created_at: str
    started_at: str | None
    ended_at: str | None
    queue_position: int | None = Field(description="From 1, among the first thousand.")
    attempt: int = Field(description="How often it was begun or taken up again.")
    phase: str | None
    progress: ProgressView | None
    phases: list[PhaseView]
    warning_count: int
    stop_reason: str | None
    error: dict[str, Any] | None = Field(description="A problem document, if it failed.")
    exit_code: int | None
    host: str | None
    unreadable: str | None = Field(
        default=None, description="What of its row cannot be read, and why."
    )


class WholeJobView(JobView):
    """A job with the spec that it runs and the report of what it did."""

    spec: dict[str, Any]
    result: RunReportView | PlanReportView | None = Field(
        description="Its report, once it has finished."
    )
    on_success: dict[str, str] | None = Field(
        description="Whom it tells when it has finished; of a webhook, only the server is shown."
    )
    on_failure: dict[str, str] | None = Field(description="Whom it tells when it has failed.")


class JobList(_View):
    """Some jobs, newest first."""

    jobs: list[JobView]
    next_cursor: str | None = Field(description="`cursor` of the next page; null at the end.")


class ValidationView(_View):
    """A spec that is right: with every default written out."""

    ok: Literal[True]
    spec: dict[str, Any]
    warnings: list[str]


class HealthView(_View):
    """The service answers."""

    status: Literal["ok"]


def body_like(example: object) -> dict[str, Any]:
    """The ``openapi_extra`` of a route that takes a JSON body like ``example``."""
    return {"requestBody": {"content": {"application/json": {"example": example}}}}


def restore_examples(operation: dict[str, Any]) -> None:
    """Make the examples of :func:`shown` in an operation of the OpenAPI document what they are."""
    for answer in operation["responses"].values():
        for media in answer.get("content", {}).values():
            example = media.get("example")
            if isinstance(example, dict) and _AS_TEXT in example:
                media["example"] = json.loads(example[_AS_TEXT])


def shown(
    status: int,
    example: object,
    *,
    media_type: str = "application/json",
    located: str = "",
    **more: object,
) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` of a route that answers ``status`` with something like ``example``.
    ``located``: what the header ``Location`` names."""
    content = {media_type: {"example": {_AS_TEXT: json.dumps(example)}}}
    answer: dict[str, Any] = {"content": content, **more}
    if located:
        answer["headers"] = {"Location": {"description": located, "schema": {"type": "string"}}}
    return {status: answer}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` of a route that may answer with problems of these statuses."""
    schema = {"$ref": "#/components/schemas/Problem"}
    found: dict[int | str, dict[str, Any]] = {
        status: {
            "description": _TITLES[status],
            "content": {PROBLEM_JSON: {"schema": schema}},
        }
        for status in statuses
    }
    if 429 in found:
        found[429]["headers"] = RETRY_AFTER
    return found
