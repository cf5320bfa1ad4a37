"""What a service answers, as frozen values. Fields that only a newer service knows are no error:
``document`` has the answer as it came."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from dsort.client.problems import SIGNALS_FROM, error_of
from dsort.errors import DsortError, JobStoppedError, ServiceError
from dsort.job.events import JobReport, PlannedShard, PlanReport, ReactionCount

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "Identity",
    "Job",
    "JobProgress",
    "PhaseTotals",
    "Schedule",
    "ScheduleRun",
    "Validation",
    "known",
    "report_of",
]

Value = TypeVar("Value", bound="DataclassInstance")
Json = Mapping[str, Any]

ENDED = frozenset(("finished", "failed", "stopped"))


def known(kind: type[Value], document: Any, /, **made: Any) -> Value:
    """The ``kind`` of what ``document`` says: the fields that the class knows, those in ``made``
    as given. ``ServiceError`` if one is missing that has no default."""
    if not isinstance(document, Mapping):
        raise ServiceError(f"the service answered {type(document).__name__}, not {kind.__name__}")
    values = {
        each.name: document[each.name] for each in fields(kind) if each.name in document
    } | made
    missing = [
        each.name
        for each in fields(kind)
        if each.name not in values and each.default is MISSING and each.default_factory is MISSING
    ]
    if missing:
        raise ServiceError(
            f"the service's {kind.__name__} lacks {', '.join(missing)}",
            hint="is it an older one? `dsort --version` tells ours",
        )
    return kind(**values)


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far a job's phase is. ``share``: of the whole job, 0 to 1; None:
    unknown. ``left_s``: what the phase still takes."""

    phase: str
    shards_done: int = 0
    shards_total: int = 0
    records_done: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    elapsed_s: float = 0.0
    share: float | None = None
    bytes_per_s: float | None = None
    left_s: float | None = None


@dataclass(frozen=True, slots=True)
class PhaseTotals:
    """A phase that is over."""

    phase: str
    seconds: float = 0.0
    shards: int = 0
    records: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job of a service. ``spec`` and ``result`` are only there where one job was asked for."""

    job_id: str
    kind: str  # run | plan
    state: str  # queued | running | finished | failed | stopped
    stopping: bool = False
    owner: str = ""
    labels: tuple[str, ...] = ()
    priority: int = 0
    description: str = ""
    input_uri: str = ""
    output_uri: str = ""
    schedule: str | None = None
    due_at: datetime | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    queue_position: int | None = None
    attempt: int = 0
    phase: str | None = None
    progress: JobProgress | None = None
    phases: tuple[PhaseTotals, ...] = ()
    warning_count: int = 0
    stop_reason: str | None = None
    error: DsortError | None = None
    exit_code: int | None = None
    host: str | None = None
    unreadable: str | None = None  # what of it the service cannot read, and why
    spec: Json | None = None
    result: JobReport | PlanReport | None = None
    document: Json = field(default_factory=dict, repr=False, compare=False)

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it by itself."""
        return self.state in ENDED

    @property
    def words(self) -> str:
        """Its state for people: one that runs and was asked to stop is ``stopping``."""
        return "stopping" if self.stopping else self.state

    def raise_if_failed(self) -> None:
        """Raise the error that the job ended with, if it did; as the engine raised it there."""
        if self.error is not None:
            raise self.error
        if self.state == "stopped":
            why = f": {self.stop_reason}" if self.stop_reason else ""
            number = (self.exit_code or 0) - SIGNALS_FROM
            raise JobStoppedError(
                f"job {self.job_id} was stopped{why}",
                signal_number=number if number > 0 else signal.SIGINT,
            )
        if self.state == "failed":
            raise ServiceError(f"job {self.job_id} failed; the service does not say why")

    @classmethod
    def of(cls, document: Any) -> Job:
        """The job of a JobView."""
        progress, error, result = (
            _part(document, name) for name in ("progress", "error", "result")
        )
        return known(
            cls,
            document,
            labels=tuple(_list(document, "labels")),
            progress=known(JobProgress, progress) if progress else None,
            phases=tuple(known(PhaseTotals, each) for each in _list(document, "phases")),
            error=error_of(error) if error else None,
            result=report_of(result) if result else None,
            document=document,
            **_times(document, "due_at", "created_at", "started_at", "ended_at"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule. ``document`` has all of its definition, in the words of the service; ``warnings``
    are only there where it is made or changed."""

    name: str
    owner: str = ""
    paused: bool = False
    created_at: datetime | None = None
    changed_at: datetime | None = None
    run_count: int = 0
    next_times: tuple[datetime, ...] = ()
    last_run: ScheduleRun | None = None
    warnings: tuple[str, ...] = ()
    document: Json = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, document: Any) -> Schedule:
        """The schedule of a view."""
        coming = [_time(each) for each in _list(document, "next_times")]
        last = _part(document, "last_run")
        return known(
            cls,
            document,
            next_times=tuple(each for each in coming if each is not None),
            last_run=ScheduleRun.of(last) if last else None,
            warnings=tuple(_list(document, "warnings")),
            document=document,
            **_times(document, "created_at", "changed_at"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRun:
    """A time at which a schedule was due, and what came of it."""

    due_at: datetime | None = None
    fired_at: datetime | None = None
    removed_at: datetime | None = None
    by_hand: bool = False
    outcome: str = ""  # submitted | skipped | refused | waiting
    reason: str = ""
    job_id: str | None = None
    job_state: str | None = None  # of its job now; None without one
    job_error: str | None = None
    document: Json = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, document: Any) -> ScheduleRun:
        """The run of a view."""
        times = _times(document, "due_at", "fired_at", "removed_at")
        return known(cls, document, document=document, **times)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a service takes us for, and the patterns of the buckets that we may use there."""

    name: str
    role: str  # viewer | submitter | admin
    input_buckets: tuple[str, ...] = ()
    output_buckets: tuple[str, ...] = ()
    authenticated: bool = True  # False: the service asks nobody who they are

    @classmethod
    def of(cls, document: Any) -> Identity:
        """The identity of a view."""
        names = ("input_buckets", "output_buckets")
        return known(cls, document, **{name: tuple(_list(document, name)) for name in names})


@dataclass(frozen=True, slots=True)
class Validation:
    """A spec that is in order: with every default written out, and what to tell its writer."""

    spec: Json
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, document: Any) -> Validation:
        """The answer to a spec that is in order."""
        return known(cls, document, warnings=tuple(_list(document, "warnings")))


def report_of(document: Json) -> JobReport | PlanReport:
    """The report of a job, or of a plan."""
    reactions = tuple(
        known(ReactionCount, each, samples=tuple(_list(each, "samples")))
        for each in _list(document, "reactions")
    )
    warnings = tuple(_list(document, "warnings"))
    if "move_reason" in document:
        shards = tuple(known(PlannedShard, each) for each in _list(document, "shards"))
        return known(PlanReport, document, shards=shards, reactions=reactions, warnings=warnings)
    return known(JobReport, document, reactions=reactions, warnings=warnings)


def _part(document: Any, name: str) -> Json | None:
    value = document.get(name) if isinstance(document, Mapping) else None
    return value if isinstance(value, Mapping) else None


def _list(document: Any, name: str) -> list[Any]:
    value = document.get(name) if isinstance(document, Mapping) else None
    return list(value) if isinstance(value, list | tuple) else []


def _times(document: Any, *names: str) -> dict[str, datetime | None]:
    given = document if isinstance(document, Mapping) else {}
    return {name: _time(given.get(name)) for name in names}


def _time(text: Any) -> datetime | None:
    if not isinstance(text, str):
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise ServiceError(f"the service answered {text!r} for a time") from error
