"""Models of what a job has made, for the OpenAPI document: manifest, report and page.

What routes may answer, for the OpenAPI document: models of what is sent, and the problems.

The body that is a job spec, for the OpenAPI document: its schema and examples.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from dsort.service.api import examples
from dsort.service.problems import PROBLEM_JSON
from dsort.spec.schema import schema as job_schema

__all__ = [
    "RETRY_AFTER",
    "SPEC_BODY",
    "SPEC_SCHEMA",
    "HealthView",
    "JobList",
    "JobView",
    "ManifestView",
    "MixingView",
    "PageView",
    "PhaseView",
    "PlanReportView",
    "Problem",
    "ProblemItem",
    "ProgressView",
    "RunReportView",
    "ValidationView",
    "WholeJobView",
    "body_like",
    "problems",
    "restore_examples",
    "shown",
    "spec_schema",
]

TIMELINE = "Rows of seconds since the attempt began, phase, bytes of it done, bytes a second."
Sample = tuple[float, str, int, float]
Way = Literal["map", "spill"]


class _View(BaseModel):
    model_config = ConfigDict(extra="allow")


class PhaseView(_View):
    """One phase that is over."""

    phase: str
    seconds: float
    shards: int
    records: int
    bytes: int


class PagePhaseView(_View):
    """One phase, as far as it is known."""

    phase: str
    seconds: float
    shards: int | None
    records: int | None
    bytes: int | None


class ReactionView(_View):
    """Something that was dropped, kept, renamed or odd."""

    kind: str = Field(examples=["duplicate_keys_dropped"])
    count: int
    samples: list[str] = Field(description="Some of the names that it was about.")


class MixingView(_View):
    """How records were mixed. A bin is neighbouring shards."""

    input_shards: int
    output_shards: int
    input_bins: int
    output_bins: int
    output_bin_shards: int = Field(description="Output shards of a bin; the last may have fewer.")
    counts: list[list[int]] = Field(
        description="Records by input bin (rows) and output bin (columns)."
    )
    before: list[list[int]] | None = Field(
        default=None, description="The same, had they been copied in input order."
    )
    chi2: float
    degrees_of_freedom: int
    p_value: float
    verdict: Literal["even", "uneven", "too_few"]
    words: str


class InputShardView(_View):
    """An input shard of a manifest."""

    name: str
    bytes: int
    mtime_ns: int
    etag: str
    records: int


class OutputShardView(_View):
    """An output shard of a manifest."""

    name: str
    records: int
    members: int
    payload_bytes: int
    file_bytes: int
    xxh3: str = Field(description="XXH3 (64 bits) of the file, as `xxhsum -H3` prints it.")


class TotalsView(_View):
    """Sums over all shards."""

    input_shards: int
    output_shards: int
    records: int
    members: int
    payload_bytes: int
    file_bytes: int


class ManifestView(_View):
    """What a job has made, of what, and how: the object `.dsort/<job_id>/manifest.json`."""

    manifest: Literal[1] = Field(description="The version of this format.")
    job_id: str
    created: str
    dsort: dict[str, str] = Field(description="Versions of dsort and of Python.")
    spec: dict[str, Any] = Field(description="With every default and the seed.")
    totals: TotalsView
    move: dict[str, Any] = Field(description="How payload moved, and why.")
    phase_seconds: dict[str, float]
    reactions: list[ReactionView]
    index: str | None = Field(description="The name of the wids index, if one was asked for.")
    mixing: MixingView | None = None
    timeline: list[Sample] = Field(default_factory=list, description=TIMELINE)
    inputs: list[InputShardView]
    outputs: list[OutputShardView]


class RunReportView(_View):
    """What a job did, or how far one came that failed or was stopped."""

    job_id: str
    state: Literal["finished", "aborted"]
    output_uri: str
    manifest_name: str | None
    move: str = Field(description="map or spill; empty if it did not come so far.")
    workers: int
    input_shards: int
    output_shards: int
    records: int
    members: int
    payload_bytes: int
    file_bytes: int
    seed: str | None
    phase_seconds: dict[str, float]
    reactions: list[ReactionView]
    warnings: list[str]
    error: str | None
    mixing: MixingView | None = None
    timeline: list[Sample] = Field(default_factory=list, description=TIMELINE)
    algorithm: str = Field(default="", description="In words.")


class PlannedShardView(_View):
    """An output shard as it would be written."""

    name: str
    records: int
    payload_bytes: int
    file_bytes: int


class PlanReportView(_View):
    """What a job would do: the report of a dry run."""

    job_id: str
    input_shards: int
    records: int
    members: int
    payload_bytes: int
    file_bytes: int
    shards: list[PlannedShardView] = Field(description="The first of them.")
    shards_total: int
    move: Way
    move_reason: str
    workers: int
    memory_bytes: int
    scratch_bytes: int
    seed: str | None
    reactions: list[ReactionView]
    warnings: list[str]
    mixing: MixingView | None = None
    algorithm: str = Field(default="", description="In words.")


class PageInputsView(_View):
    """All inputs of a job; 0 and null before they are known."""

    total: int
    bytes: int | None


class PageShardsView(_View):
    """The output shards of a job."""

    total: int
    rows: list[tuple[str, int | None, int | None]] = Field(
        description="Name, records and bytes of the first 2,000."
    )


class PageView(_View):
    """All that a job's page shows."""

    title: str
    job: dict[str, Any] = Field(description="As GET /v1/jobs/{job_id} answers it.")
    phases: list[PagePhaseView]
    timeline: list[Sample] = Field(description=TIMELINE)
    inputs: PageInputsView
    shards: PageShardsView
    warnings: list[dict[str, Any]] = Field(description="kind, and text or count and samples.")
    mixing: MixingView | None


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


SPEC_SCHEMA = {"$ref": "#/components/schemas/JobSpec"}

_SHUFFLE = {
    "input_bck": "images",
    "output_bck": "shuffled",
    "input_format": {"template": "samples-{00..18}"},
    "output_format": "shuffled-%04d",
    "output_shard_size": "100MB",
    "algorithm": {"kind": "shuffle", "seed": 42},
}
_BY_CLASS = """\
input_bck: s3://data/images
output_bck: s3://data/by-class
output_format: class-sorted-%06d
output_shard_size: 1GB
algorithm: {kind: content, extension: .cls, content_key_type: int}
"""

SPEC_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "A job spec, as `dsort start -f` takes it.",
        "content": {
            "application/json": {
                "schema": SPEC_SCHEMA,
                "examples": {"shuffle": {"summary": "A seeded shuffle", "value": _SHUFFLE}},
            },
            "application/yaml": {
                "schema": SPEC_SCHEMA,
                "examples": {"sort": {"summary": "A sort by class", "value": _BY_CLASS}},
            },
        },
    }
}


def spec_schema() -> dict[str, Any]:
    """The JSON Schema of a spec as a component: its own definitions inlined where they are used."""
    schema = dict(job_schema())
    definitions = schema.pop("$defs", {})
    for outer in ("$schema", "$id"):
        schema.pop(outer, None)
    resolved = _resolved(schema, definitions)
    assert isinstance(resolved, dict)
    return resolved


def _resolved(value: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        reference = value.get("$ref", "")
        if isinstance(reference, str) and reference.startswith("#/$defs/"):
            rest = {key: each for key, each in value.items() if key != "$ref"}
            return _resolved(
                {**definitions[reference.removeprefix("#/$defs/")], **rest}, definitions
            )
        return {key: _resolved(each, definitions) for key, each in value.items()}
    if isinstance(value, list):
        return [_resolved(each, definitions) for each in value]
    return value
