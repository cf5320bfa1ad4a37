"""``ScheduleDefinition``, a schedule as users write it; and the rows of schedules and of their
runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC
from typing import Annotated, Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Struct
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
)
from sqlalchemy import Row

from dsort.durations import parse_moment
from dsort.errors import ConflictError
from dsort.model.schedule import CatchUp, Overlap
from dsort.naming.names import check_object_name, is_hidden, shortened
from dsort.results.hooks import hooks_of
from dsort.service.jobs.submit import LABEL, LABELS_MAX
from dsort.service.schedules.due import cron_in_numbers, parse_interval
from dsort.spec.outputs import Hook
from dsort.spec.part import FieldError, describe

CRON_HINT: Final = 'five fields, e.g. "0 2 * * *" (every night at two) or "30 6 * * mon-fri"'
INTERVAL_HINT: Final = 'e.g. "6h", "1d", "90m" or "P1D"'
DESCRIPTION_MAX: Final = 10_000
_YEARS: Final = range(2000, 3000)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise FieldError(
            "must be of letters, digits, '.', '_' and '-', and begin with a letter or a digit",
            'e.g. "nightly-shuffle"; at most 128 characters',
        )
    return text


def _label(text: str) -> str:
    if not LABEL.fullmatch(text):
        raise FieldError(
            f'"{text[:80]}" is no label', "letters, digits and . _ = / : @ + -, at most 63 of them"
        )
    return text


def _cron(text: str) -> str:
    try:
        cron_in_numbers(text)
    except ValueError as error:
        raise FieldError(str(error), CRON_HINT) from None
    return " ".join(text.split())


def _interval(text: str) -> str:
    try:
        parse_interval(text)
    except ValueError as error:
        raise FieldError(str(error), INTERVAL_HINT) from None
    return text.strip()


def _timezone(text: str) -> str:
    try:
        ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise FieldError(
            f'"{text[:80]}" is no time zone of this machine', 'e.g. "Europe/Berlin" or "UTC"'
        ) from None
    return text


def _moment(text: str) -> str:
    hint = 'e.g. "2026-11-20T02:00:00Z", or without an offset in the schedule\'s time zone'
    try:
        year = parse_moment(text, UTC).year
    except ValueError as error:
        raise FieldError(str(error), hint) from None
    if year not in _YEARS:
        raise FieldError(f'"{text[:80]}" is no moment', hint)
    return text


def _labels(labels: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(labels))


def _latest(value: object) -> bool | str:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise FieldError(f"must be true, false or a prefix, not {describe(value)}")
    prefix = value.strip("/")
    try:
        check_object_name(f"{prefix}/latest.json")
    except ValueError as error:
        raise FieldError(str(error), "true, false, or a prefix in the output bucket") from None
    if is_hidden(prefix):
        raise FieldError(f'"{shortened(prefix)}" is hidden: a part of it begins with a dot')
    return prefix


def _catch_up(value: object) -> object:
    if value == "all":
        raise FieldError(
            'cannot be "all"',
            '"last" makes up for the newest due time that was missed; `dsort schedule run` makes '
            "more jobs",
        )
    return value


def _overlap(value: object) -> object:
    if value == "queue":
        raise FieldError(
            'cannot be "queue"',
            '"skip" leaves out due times while an earlier job runs, "replace" stops that job',
        )
    return value


def moment_s(text: str, timezone: str) -> float:
    """The moment ``text`` in seconds since 1970; a ``text`` without an offset is in
    ``timezone``."""
    return parse_moment(text, ZoneInfo(timezone)).timestamp()


class ScheduleDefinition(BaseModel):
    """Jobs that are run again and again: the spec, the due times, and the retention of results."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Annotated[str, AfterValidator(_name)] = Field(
        description="The schedule's own name.", examples=["nightly-shuffle"]
    )
    spec: dict[str, Any] = Field(
        description="The job's spec. In its buckets, names, prefixes, seed and description, "
        "{{date}} is the date of the run in the schedule's time zone (2026-11-20), {{run_id}} its "
        "due time in UTC (20261120T020000Z) and {{epoch}} how many jobs the schedule has made "
        "before (0, 1, ...). A shuffle without a seed takes the run_id: each run has a fresh "
        "order, which can be made again."
    )
    cron: Annotated[str, AfterValidator(_cron)] | None = Field(
        default=None,
        description="When, as a cron expression of five fields: minute, hour, day of the month, "
        "month, day of the week (0 and 7 are Sunday; names are fine). This or `every`.",
        examples=["0 2 * * *"],
    )
    every: Annotated[str, AfterValidator(_interval)] | None = Field(
        default=None,
        description="How often: 90m, 6h, 1d, 2w, or ISO 8601. Whole days keep the local time "
        "when the clock is put forward or back; hours and minutes are elapsed time. Intervals "
        "count from start_at, or else from the moment when the schedule was made.",
        examples=["6h"],
    )
    timezone: Annotated[str, AfterValidator(_timezone)] = Field(
        default="UTC",
        description="The IANA time zone of cron, of whole days and of {{date}}.",
        examples=["Europe/Berlin"],
    )
    paused: bool = Field(default=False, description="Whether the schedule is paused.")
    catch_up: Annotated[CatchUp, BeforeValidator(_catch_up)] = Field(
        default="last",
        description="Which due times get a job afterwards, if the service was down or the "
        "schedule was paused: none of the missed due times, or the last of them.",
    )
    overlap: Annotated[Overlap, BeforeValidator(_overlap)] = Field(
        default="skip",
        description="What happens at a due time if an earlier job of the schedule has not "
        "ended. skip: nothing; replace: the earlier job is stopped first.",
    )
    start_at: Annotated[str, AfterValidator(_moment)] | None = Field(
        default=None,
        description="The schedule is not due before this moment.",
        examples=["2026-12-01T00:00:00Z"],
    )
    end_at: Annotated[str, AfterValidator(_moment)] | None = Field(
        default=None, description="The schedule is not due after this moment."
    )
    retain: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None,
        description="Keep so many of the schedule's newest results. The output shards of older "
        "ones are removed, by their manifests; inputs never are, nor results into which a view "
        "points.",
    )
    latest: Annotated[bool | str, BeforeValidator(_latest)] = Field(
        default=True,
        description="Whether PREFIX/latest.json in the output bucket names the newest "
        "result. A text is the prefix; true: the part of the outputs' names that all runs share.",
    )
    on_success: Hook | None = Field(
        default=None, description="The receiver of a notice when one of its jobs has finished."
    )
    on_failure: Hook | None = Field(
        default=None,
        description="The receiver of a notice when one of its jobs has failed, or could not be "
        "submitted.",
    )
    priority: Annotated[int, Field(ge=-1000, le=1000)] = Field(
        default=0, description="Priority of its jobs: higher starts first. Above 0: for admins."
    )
    labels: Annotated[
        tuple[Annotated[str, AfterValidator(_label)], ...],
        Strict(False),
        Field(max_length=LABELS_MAX),
        AfterValidator(_labels),
    ] = Field(default=(), description="Of its jobs.")
    description: str = Field(default="", max_length=DESCRIPTION_MAX, description="Free text.")

    @property
    def zone(self) -> ZoneInfo:
        """The time zone."""
        return ZoneInfo(self.timezone)

    @property
    def start_s(self) -> float | None:
        """``start_at`` in seconds since 1970."""
        return None if self.start_at is None else moment_s(self.start_at, self.timezone)

    @property
    def end_s(self) -> float | None:
        """``end_at`` in seconds since 1970."""
        return None if self.end_at is None else moment_s(self.end_at, self.timezone)

    @property
    def timing(self) -> tuple[object, ...]:
        """The fields that decide when the schedule is due."""
        return (self.cron, self.every, self.timezone, self.start_at, self.end_at)

    @property
    def hooks(self) -> dict[str, dict[str, str]]:
        """``on_success`` and ``on_failure``, if they are set, in JSON types."""
        return hooks_of(self.on_success, self.on_failure)

    def stored(self) -> dict[str, Any]:
        """The definition in JSON types. Parsing these gives an equal definition."""
        return self.model_dump(mode="json")


SUBMITTED, SKIPPED, REFUSED, WAITING = "submitted", "skipped", "refused", "waiting"
"""The outcome of a due time. ``waiting``: the run waits for the end of the job that it replaces."""


class ScheduleRow(Struct, frozen=True, kw_only=True):
    """One row of ``tables.schedules``. Times are seconds since 1970.

    ``input_uri`` and ``output_uri``: the part of the bucket URIs that all runs share.
    ``next_due_at``: the first due time that has not been handled; while the schedule is paused,
    this is the first due time that it missed. ``unreadable``: why the stored definition is invalid.
    An invalid schedule has a ``definition`` with only the name.
    """

    schedule_id: str
    name: str
    owner: str
    definition: ScheduleDefinition
    input_uri: str
    output_uri: str
    paused: bool
    created_at: float
    changed_at: float
    next_due_at: float | None
    run_count: int
    unreadable: str = ""

    def check_readable(self) -> None:
        """``ConflictError`` if the stored definition cannot be read."""
        if self.unreadable:
            raise ConflictError(
                f"schedule {self.name} cannot be read: {self.unreadable}",
                hint="replace it (PUT; `dsort schedule add --replace`), or remove it and make it "
                "again",
            )


class RunRow(Struct, frozen=True, kw_only=True):
    """One row of ``tables.schedule_runs``: the outcome of a due time. ``job_state``, ``job_error``:
    the present state of the run's job, if the query reads it; None when the job is removed."""

    number: int
    schedule_id: str
    due_at: float
    by_hand: bool
    fired_at: float
    outcome: str  # submitted | skipped | refused | waiting
    reason: str
    job_id: str | None
    removed_at: float | None
    job_state: str | None = None
    job_error: Mapping[str, Any] | None = None


def schedule_row(row: Row[Any]) -> ScheduleRow:
    """The schedule in a row of the table. A schedule with an invalid definition (a newer service
    wrote it, or its time zone no longer exists) must not prevent other schedules from being shown
    and run."""
    values = row._asdict()
    stored = values["definition"]
    try:
        definition, why = ScheduleDefinition.model_validate(stored), ""
    except ValidationError as error:
        spec = stored.get("spec") if isinstance(stored, dict) else None
        definition = ScheduleDefinition.model_construct(
            name=row.name, spec=spec if isinstance(spec, dict) else {}
        )
        why = "its definition: " + "; ".join(
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()
        )
    return ScheduleRow(**values | {"definition": definition, "unreadable": why})


def run_row(row: Row[Any]) -> RunRow:
    """The run in a row of the table."""
    return RunRow(**row._asdict())
