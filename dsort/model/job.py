"""A job of a service, and all that its page shows."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from dsort.model.base import JobState, Model, Time, example_of
from dsort.model.report import (
    EXAMPLE_ID,
    EXAMPLE_SPEC,
    EXAMPLE_WARNING,
    TIMELINE,
    MixingView,
    PhaseView,
    PlanReportView,
    RunReportView,
    Sample,
)


class ProgressView(Model):
    """The progress of the phase that runs now."""

    phase: str = Field(examples=["extract"])
    shards_done: int = Field(default=0, examples=[12])
    shards_total: int = Field(default=0, examples=[19])
    records_done: int = Field(default=0, examples=[12000])
    bytes_done: int = Field(default=0, examples=[1207793664])
    bytes_total: int = Field(default=0, examples=[1912340480])
    members_done: int = Field(default=0, description="Of extraction.", examples=[24000])
    payload_bytes_done: int = Field(
        default=0,
        description="Of extraction: of all members, without headers and padding.",
        examples=[1195000000],
    )
    elapsed_s: float = Field(default=0.0, examples=[2.6])
    share: float | None = Field(
        default=None, description="Of the whole job, 0 to 1.", examples=[0.2915]
    )
    bytes_per_s: float | None = Field(default=None, examples=[464536024.6])
    left_s: float | None = Field(
        default=None, description="Until the phase ends, at this rate.", examples=[1.5]
    )


class JobOut(Model):
    """A job. Times are RFC 3339, UTC. Spec, result and hooks are left out where jobs are listed."""

    sent_sometimes = frozenset(("unreadable", "spec", "result", "on_success", "on_failure"))

    job_id: str = Field(examples=[EXAMPLE_ID])
    kind: Literal["run", "plan"] = Field(
        description="plan: a dry run, which writes nothing.", examples=["run"]
    )
    state: JobState = Field(examples=["running"])
    stopping: bool = Field(
        default=False, description="The job runs, and was asked to stop.", examples=[False]
    )
    owner: str = Field(default="", examples=["alice"])
    labels: tuple[str, ...] = Field(default=(), examples=[["nightly"]])
    priority: int = Field(default=0, examples=[0])
    description: str = Field(default="", examples=["Shuffle the images"])
    input_uri: str = Field(default="", examples=["s3://data/images"])
    output_uri: str = Field(default="", examples=["s3://data/shuffled"])
    schedule: str | None = None
    due_at: Time | None = None
    created_at: Time | None = Field(
        default=None,
        description="Null if it cannot be read.",
        examples=["2026-01-31T02:00:00.000Z"],
    )
    started_at: Time | None = Field(default=None, examples=["2026-01-31T02:00:01.000Z"])
    ended_at: Time | None = None
    queue_position: int | None = Field(
        default=None, description="From 1, among the first thousand."
    )
    attempt: int = Field(
        default=0, description="How often the job was begun, resumed or taken over.", examples=[1]
    )
    phase: str | None = Field(default=None, examples=["extract"])
    progress: ProgressView | None = Field(default=None, examples=[example_of(ProgressView)])
    phases: tuple[PhaseView, ...] = ()
    warning_count: int = Field(default=0, examples=[0])
    stop_reason: str | None = None
    error: dict[str, Any] | None = Field(
        default=None, description="A problem document, if it failed."
    )
    exit_code: int | None = None
    host: str | None = Field(default=None, examples=["worker-1"])
    unreadable: str | None = Field(
        default=None, description="Which part of the job's row cannot be read, and why."
    )

    spec: dict[str, Any] = Field(
        default_factory=dict, description="Canonical, with its seed.", examples=[EXAMPLE_SPEC]
    )
    result: RunReportView | PlanReportView | None = Field(
        default=None, description="The report of the job, once it has finished."
    )
    on_success: dict[str, str] | None = Field(
        default=None,
        description="Who is notified when the job has finished; of a webhook, only the server is "
        "shown.",
    )
    on_failure: dict[str, str] | None = Field(
        default=None,
        description="Who is notified when the job has failed.",
        examples=[{"webhook": "https://hooks.example.com/…"}],
    )


class JobList(Model):
    """Some jobs, newest first."""

    jobs: list[JobOut]
    next_cursor: str | None = Field(
        description="`cursor` of the next page; null at the end.", examples=["117"]
    )


class PagePhaseView(Model):
    """One phase, as far as it is known."""

    phase: str
    seconds: float
    shards: int | None
    records: int | None
    bytes: int | None


class PageInputsView(Model):
    """All inputs of a job; 0 and null before they are known."""

    total: int = Field(examples=[19])
    bytes: int | None = Field(examples=[1912340480])


class SpreadView(Model):
    """How values are spread over shards."""

    smallest: int = Field(examples=[912186368])
    median: int = Field(examples=[1000154112])
    largest: int = Field(examples=[1000154112])
    counts: list[int] = Field(
        description="Shards in each of up to 24 equal ranges from the smallest to the largest.",
        examples=[[1, *[0] * 22, 1]],
    )


class PageShardsView(Model):
    """The output shards of a job."""

    total: int = Field(examples=[2])
    rows: list[tuple[str, int | None, int | None]] = Field(
        description="Name, records and bytes of the first 2,000.",
        examples=[
            [["shuffled-0000.tar", 9930, 1000154112], ["shuffled-0001.tar", 9070, 912186368]]
        ],
    )
    sizes: SpreadView | None = Field(
        description="Of the sizes of all shards whose size is known.",
        examples=[example_of(SpreadView)],
    )
    records: SpreadView | None = Field(
        description="Of their numbers of records.",
        examples=[{"smallest": 9070, "median": 9930, "largest": 9930, "counts": [1, *[0] * 22, 1]}],
    )


class PageView(Model):
    """All that a job's page shows."""

    title: str = Field(examples=["Shuffle the images"])
    job: dict[str, Any] = Field(
        description="As GET /v1/jobs/{job_id} answers it.",
        examples=[example_of(JobOut, result=None, on_success=None)],
    )
    phases: list[PagePhaseView] = Field(examples=[[example_of(PhaseView)]])
    timeline: list[Sample] = Field(
        description=TIMELINE, examples=RunReportView.model_fields["timeline"].examples
    )
    inputs: PageInputsView
    shards: PageShardsView
    warnings: list[dict[str, Any]] = Field(
        description="kind, and text or count and samples.",
        examples=[[{"kind": "missing_shards", "text": EXAMPLE_WARNING}]],
    )
    mixing: MixingView | None = Field(examples=[example_of(MixingView)])
