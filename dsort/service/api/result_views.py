"""Models of what a job has made, for the OpenAPI document: manifest, report and page."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "ManifestView",
    "MixingView",
    "PageView",
    "PhaseView",
    "PlanReportView",
    "RunReportView",
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
