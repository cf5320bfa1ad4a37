"""What routes may answer, for the OpenAPI document: models of what is sent, and the problems."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dsort.service.http.problems import PROBLEM_JSON

__all__ = [
    "EXAMPLE_JOB",
    "HealthView",
    "JobList",
    "JobView",
    "PhaseView",
    "Problem",
    "ProblemItem",
    "ProgressView",
    "ValidationView",
    "WholeJobView",
    "problems",
]

_TITLES = {
    400: "The request or the spec is wrong: every problem is told.",
    401: "No token, or one that is not known.",
    403: "The token's role or buckets do not allow it.",
    404: "There is no such thing, or none that the token may see.",
    409: "It does not go with the state that the thing is in.",
    413: "The body is too large.",
    422: "The data does not allow it.",
    429: "Too many requests: `Retry-After` says how long to wait.",
    501: "Not served by dsort.",
    502: "The bucket or its store fails.",
    503: "Not ready.",
}


class _View(BaseModel):
    model_config = ConfigDict(extra="allow")


class ProblemItem(_View):
    """One thing wrong with a spec."""

    path: str = Field(description="The field, dotted.", examples=["algorithm.kind"])
    message: str
    hint: str


class Problem(_View):
    """What went wrong, as RFC 9457 has it; the same words as the command line's."""

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


class PhaseView(_View):
    """One phase that is over."""

    phase: str
    seconds: float
    shards: int
    records: int
    bytes: int


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


class WholeJobView(JobView):
    """A job with the spec that it runs and the report of what it did."""

    spec: dict[str, Any]
    result: dict[str, Any] | None


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


EXAMPLE_JOB: dict[str, Any] = {
    "job_id": "20260131-020000-4f2a9c",
    "kind": "run",
    "state": "running",
    "stopping": False,
    "owner": "alice",
    "labels": ["nightly"],
    "priority": 0,
    "description": "Shuffle the images",
    "input_uri": "s3://data/images",
    "output_uri": "s3://data/shuffled",
    "schedule": None,
    "due_at": None,
    "created_at": "2026-01-31T02:00:00.000Z",
    "started_at": "2026-01-31T02:00:01.000Z",
    "ended_at": None,
    "queue_position": None,
    "attempt": 1,
    "phase": "extract",
    "progress": {
        "phase": "extract",
        "shards_done": 12,
        "shards_total": 100,
        "records_done": 12000,
        "bytes_done": 1200000000,
        "bytes_total": 10000000000,
        "elapsed_s": 4.0,
        "share": 0.07,
        "bytes_per_s": 300000000.0,
        "left_s": 29.3,
    },
    "phases": [{"phase": "resolve", "seconds": 0.1, "shards": 100, "records": 0, "bytes": 0}],
    "warning_count": 0,
    "stop_reason": None,
    "error": None,
    "exit_code": None,
    "host": "worker-1",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` of a route that may answer with problems of these statuses."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {
            "description": _TITLES[status],
            "content": {PROBLEM_JSON: {"schema": schema}},
        }
        for status in statuses
    }
