"""A schedule, and its runs: each due time with its job, or with the reason why there is none."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from dsort.model.base import JobState, Model, Time, example_of

CatchUp = Literal["none", "last"]
Overlap = Literal["skip", "replace"]

_SPEC: Final = {
    "input_bck": "images",
    "output_bck": "shuffled",
    "output_format": "nightly/{{date}}/shuffled-%06d",
    "output_shard_size": "100MB",
    "algorithm": {"kind": "shuffle", "seed": "{{run_id}}"},
}


class RunView(Model):
    """The run of a due time: its job, or why there is none."""

    due_at: Time | None = Field(default=None, examples=["2026-11-20T01:00:00.000Z"])
    by_hand: bool = Field(
        default=False, description="Whether a user asked for it: run-now.", examples=[False]
    )
    fired_at: Time | None = Field(default=None, examples=["2026-11-20T01:00:00.052Z"])
    outcome: Literal["submitted", "skipped", "refused", "waiting"] = Field(
        default="submitted",
        description="waiting: until the earlier job of the schedule, which was stopped, ends.",
        examples=["submitted"],
    )
    reason: str = Field(default="", examples=[""])
    job_id: str | None = Field(default=None, examples=["20261120-010000-4f2a9c"])
    job_state: JobState | None = Field(
        default=None,
        description="The state of the job now; null if there is no job, or its row was deleted.",
        examples=["finished"],
    )
    job_error: str | None = Field(default=None, description="Why its job failed.")
    run_id: str = Field(
        default="", description="{{run_id}} of its spec.", examples=["20261120T010000Z"]
    )
    removed_at: Time | None = Field(default=None, description="When retention removed its outputs.")


class ScheduleView(Model):
    """A schedule. Times are RFC 3339, UTC."""

    sent_sometimes = frozenset(("unreadable",))

    name: str = Field(examples=["nightly-shuffle"])
    spec: dict[str, Any] = Field(default_factory=dict, examples=[_SPEC])
    cron: str | None = Field(default=None, examples=["0 2 * * *"])
    every: str | None = None
    timezone: str = Field(default="UTC", examples=["Europe/Berlin"])
    paused: bool = Field(default=False, examples=[False])
    catch_up: CatchUp = Field(default="last", examples=["last"])
    overlap: Overlap = Field(default="skip", examples=["skip"])
    start_at: Time | None = None
    end_at: Time | None = None
    retain: int | None = Field(default=None, examples=[7])
    latest: bool | str = Field(default=True, examples=[True])
    on_success: dict[str, str] | None = Field(
        default=None,
        description="Who is notified when a job has finished. The whole URL of a webhook is shown "
        "only to those who may change the schedule.",
    )
    on_failure: dict[str, str] | None = Field(
        default=None,
        description="Who is notified when a job has failed, or could not be submitted.",
        examples=[{"webhook": "https://hooks.example.com/dsort"}],
    )
    priority: int = Field(default=0, examples=[0])
    labels: tuple[str, ...] = Field(default=(), examples=[[]])
    description: str = Field(default="", examples=[""])
    owner: str = Field(default="", examples=["alice"])
    input_uri: str = Field(
        default="",
        description="As much of the input bucket as all runs share.",
        examples=["file:///data/images"],
    )
    output_uri: str = Field(default="", examples=["file:///data/shuffled"])
    created_at: Time | None = Field(
        default=None,
        description="Null if it cannot be read.",
        examples=["2026-11-19T09:30:00.000Z"],
    )
    changed_at: Time | None = Field(
        default=None,
        description="Null if it cannot be read.",
        examples=["2026-11-19T09:30:00.000Z"],
    )
    next_times: tuple[Time, ...] = Field(
        default=(),
        description="The next five due times; none while it is paused.",
        examples=[[f"2026-11-{day}T01:00:00.000Z" for day in range(21, 26)]],
    )
    due_now: bool = Field(
        default=False,
        description="Whether the schedule makes up now, by its `catch_up`, for a run that it "
        "missed while it was paused, or while no service ran.",
        examples=[False],
    )
    next_seed: str | int | None = Field(
        default=None,
        description="The seed of the job of the next due time; null if its order needs none.",
        examples=["20261121T010000Z"],
    )
    run_count: int = Field(
        default=0,
        description="The number of jobs that the schedule has made: {{epoch}} of the next job.",
        examples=[1],
    )
    last_run: RunView | None = Field(default=None, examples=[example_of(RunView)])
    warnings: tuple[str, ...] = Field(
        default=(),
        description="About the definition; only in answers to requests that make or change it.",
        examples=[[]],
    )
    unreadable: str | None = Field(
        default=None,
        description="Which part of the schedule's row cannot be read, and why. Such a schedule "
        "makes no jobs.",
    )


class NextTimes(Model):
    """When a schedule would be due."""

    timezone: str = Field(default="UTC", examples=["Europe/Berlin"])
    next_times: tuple[Time, ...] = Field(
        default=(),
        description="The next five due times.",
        examples=[[f"2026-11-{day}T01:00:00.000Z" for day in range(21, 26)]],
    )


class ScheduleList(Model):
    """All schedules that the token may see, by name."""

    schedules: list[ScheduleView]


class RunList(Model):
    """Some runs, newest first."""

    runs: list[RunView]
    next_cursor: str | None = Field(description="`cursor` of the next page; null at the end.")
