"""The answers of a service: the models that the service sends, as frozen values of Python.

Fields that only a newer service has are no error: ``document`` has the answer as received. A
problem document (RFC 9457) becomes the exception that the engine raised; a report becomes the
report that the engine returned.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import FrozenInstanceError
from typing import Annotated, Any, ClassVar, Self, TypeVar

from msgspec import MsgspecError, Struct, convert
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    SkipValidation,
    ValidationError,
    field_validator,
)

from dsort import errors
from dsort.errors import (
    ConflictError,
    CorruptShardError,
    DsortError,
    ForbiddenError,
    InputError,
    JobStoppedError,
    NotFoundError,
    ServiceError,
    SpecError,
    SpecProblem,
    StorageError,
    TooLargeError,
    TooManyRequestsError,
    TooSlowError,
    UnauthorizedError,
    WorkerLostError,
)
from dsort.model.access import Me, ValidationView
from dsort.model.base import Model
from dsort.model.job import JobOut, ProgressView
from dsort.model.report import PhaseView
from dsort.model.schedule import RunView, ScheduleView
from dsort.results.report import JobReport

Value = TypeVar("Value", bound=Struct)
Json = Mapping[str, Any]

ENDED = frozenset(("finished", "failed", "stopped"))


URN = "urn:dsort:problem:"
RETRY_AFTER_S = 1.0
RETRY_AFTER_S_MAX = 1e9
SIGNALS_FROM = 128


class WaitTimeoutError(ServiceError):
    """The job did not end within the time limit of the call. The job continues."""


def _kind(name: str) -> str:
    """``CorruptShardError`` is ``corrupt_shard``, as in the ``type`` of a problem document."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.removesuffix("Error")).lower()


_KINDS: Mapping[str, type[DsortError]] = {
    _kind(name): getattr(errors, name) for name in errors.__all__ if name.endswith("Error")
}
_BY_EXIT_CODE: Mapping[int, type[DsortError]] = {
    3: InputError,
    4: StorageError,
    5: WorkerLostError,
}
_BY_STATUS: Mapping[int, type[DsortError]] = {
    400: SpecError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    408: TooSlowError,
    409: ConflictError,
    413: TooLargeError,
    429: TooManyRequestsError,
}


def error_of(document: Mapping[str, Any]) -> DsortError:
    """The error that a problem document describes, as the library would have raised it.

    For a kind that only newer services send, the error has the class of the exit code or of the
    status in the document, and ``ServiceError`` if neither is known.
    """
    status = document.get("status")
    code = document.get("exit_code")
    found = _KINDS.get(str(document.get("type", "")).removeprefix(URN))
    found = found or _BY_EXIT_CODE.get(code if isinstance(code, int) else 0)
    found = found or _BY_STATUS.get(status if isinstance(status, int) else 0, ServiceError)
    message = str(document.get("detail") or document.get("title") or "the service gives no reason")
    return _made(found, message, str(document.get("hint") or ""), document)


def _made(
    kind: type[DsortError], message: str, hint: str, document: Mapping[str, Any]
) -> DsortError:
    if issubclass(kind, SpecError):
        return SpecError(_problems(document) or message, hint=hint)
    if issubclass(kind, JobStoppedError):
        number = max(_number(document, "exit_code", 0) - SIGNALS_FROM, 0)
        return JobStoppedError(message, signal_number=number or signal.SIGINT, hint=hint)
    if issubclass(kind, TooManyRequestsError):
        after_s = min(_number(document, "retry_after_s", RETRY_AFTER_S), RETRY_AFTER_S_MAX)
        return TooManyRequestsError(message, retry_after_s=after_s, hint=hint)
    # The constructors of these errors take fields that no problem document has, so a base class
    # gets the message.
    if issubclass(kind, CorruptShardError | errors.UnsupportedShardError):
        return InputError(message, hint=hint)
    if issubclass(kind, errors.ScratchLostError):
        return WorkerLostError(message, hint=hint)
    return kind(message, hint=hint)


def _problems(document: Mapping[str, Any]) -> list[SpecProblem]:
    listed = document.get("problems")
    return [
        SpecProblem(
            str(each.get("path") or ""), str(each.get("message") or ""), str(each.get("hint") or "")
        )
        for each in (listed if isinstance(listed, list) else [])
        if isinstance(each, Mapping)
    ]


def _number(document: Mapping[str, Any], name: str, default: Any) -> Any:
    value = document.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else default


# --- values --------------------------------------------------------------------------------------


def known(kind: type[Value], document: Any, /, **made: Any) -> Value:
    """A ``kind`` made of the fields of ``document`` that the class has. ``made``: fields with a
    value in place of the document's. ``ServiceError`` if a field without a default is missing, or
    of another type."""
    if not isinstance(document, Mapping):
        raise ServiceError(f"the service answered {type(document).__name__}, not {kind.__name__}")
    try:
        return convert({**document, **made}, kind, strict=False)
    except MsgspecError as error:
        raise ServiceError(
            f"the service's {kind.__name__} is not valid: {error}",
            hint="the service may be older than this client: `dsort --version` prints the client's",
        ) from error


class _Value(Model):
    """A frozen model. ``document``: the service's answer as received, with all of its fields."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    document: Json = Field(default_factory=dict, repr=False, exclude=True)
    shown: ClassVar[tuple[str, ...]] = ()
    """The fields that a notebook shows. The first field is shown without its name."""

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        first, *rest = self.shown
        named = [(name, getattr(self, name)) for name in rest]
        return [(None, getattr(self, first)), *((name, value) for name, value in named if value)]

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    @classmethod
    def of(cls, document: Any) -> Self:
        """The value in an answer; ``ServiceError`` if the answer is no such value."""
        if not isinstance(document, Mapping):
            raise ServiceError(
                f"the service answered {type(document).__name__}, not {cls.__name__}"
            )
        try:
            return cls.model_validate({**document, "document": document})
        except ValidationError as error:
            raise _refusal(cls.__name__, error) from error


def _refusal(kind: str, error: ValidationError) -> ServiceError:
    wrong = [(".".join(map(str, each["loc"])), each) for each in error.errors()]
    missing = [path for path, each in wrong if each["type"] == "missing"]
    if missing:
        return ServiceError(
            f"the service's {kind} lacks {', '.join(missing)}",
            hint="the service may be older than this client: `dsort --version` prints the client's",
        )
    said = "; ".join(f"{path}: {each['msg']}" for path, each in wrong)
    return ServiceError(f"the service's {kind} is not valid: {said}")


def _error(document: Any) -> Any:
    return error_of(document) if isinstance(document, Mapping) and document else None


def _result(document: Any) -> Any:
    return report_of(document) if isinstance(document, Mapping) and document else None


_Result = Annotated[JobReport | None, SkipValidation, BeforeValidator(_result)]


class Job(JobOut, _Value):
    """A job of a service. Only answers about a single job have ``spec`` and ``result``."""

    shown = ("job_id", "state", "description", "input_uri", "output_uri", "error")

    kind: str  # type: ignore[assignment]  # a newer service may know more kinds and states
    state: str  # type: ignore[assignment]
    error: Annotated[DsortError | None, BeforeValidator(_error)] = None  # type: ignore[assignment]
    spec: Json | None = None  # type: ignore[assignment]
    result: _Result = None  # type: ignore[assignment]

    @property
    def ended(self) -> bool:
        """Whether the job has ended; its state then changes only on request."""
        return self.state in ENDED

    @property
    def words(self) -> str:
        """The state of the job for people: a running job whose stop was requested is
        ``stopping``."""
        return "stopping" if self.stopping else self.state

    @property
    def took_s(self) -> float | None:
        """The seconds from the start of the job to its end; None if the job has not begun or not
        ended."""
        if self.started_at is None or self.ended_at is None:
            return None
        return (self.ended_at - self.started_at).total_seconds()

    def raise_if_failed(self) -> None:
        """If an error ended the job, raise this error, as the engine raised it at the service."""
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
            raise ServiceError(f"job {self.job_id} failed; the service gives no reason")


class ScheduleRun(RunView, _Value):
    """A time at which a schedule was due, and the job of that time, or the reason why no job was
    made."""

    shown = ("run_id", "outcome", "job_id", "job_state")

    outcome: str = ""  # type: ignore[assignment]  # submitted | skipped | refused | waiting
    job_state: str | None = None  # type: ignore[assignment]


class Schedule(ScheduleView, _Value):
    """A schedule. ``document`` has the whole definition as the service sends it; only answers that
    make or change a schedule have ``warnings``."""

    shown = ("name", "cron", "every", "timezone", "paused")

    catch_up: str = ""  # type: ignore[assignment]
    overlap: str = ""  # type: ignore[assignment]
    last_run: ScheduleRun | None = None

    @field_validator("last_run", mode="before")
    @classmethod
    def _with_document(cls, value: Any) -> Any:
        return ScheduleRun.of(value) if isinstance(value, Mapping) and value else None


class Identity(Me, _Value):
    """The identity of the caller at a service, and the patterns of the buckets that the caller may
    use there."""

    shown = ("name", "role")

    role: str  # type: ignore[assignment]  # viewer | submitter | admin


class Validation(ValidationView, _Value):
    """A valid spec with every default written out, and the warnings for its writer."""

    shown = ("ok", "warnings")


JobProgress = ProgressView
"""The progress of a job's current phase."""
PhaseTotals = PhaseView
"""A phase that has ended."""


def report_of(document: Json) -> JobReport:
    """The report of a job, or of a plan. ``document`` has the fields of all parts of the report on
    one level."""
    plan = None
    if "move_reason" in document:
        plan, shards = document, len(document.get("shards") or ())
        document = {"state": "planned", "output_uri": "", "output_shards": shards, **document}
    return known(JobReport, document, totals=document, run=document, order=document, plan=plan)
