"""Jobs and their events as rows, and values of rows as the models of ``dsort.model``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, TypeVar

from msgspec import Struct
from pydantic import BaseModel, ValidationError
from sqlalchemy import Connection, insert

from dsort.data.json_values import to_json
from dsort.model.base import rfc3339_text
from dsort.service.database.tables import Json, events

NewEvent: TypeAlias = tuple[float, str, Json]
"""The time of the event (seconds since 1970), its kind, its data."""
Shown = TypeVar("Shown", bound=BaseModel)

_INSERT: Final = insert(events)


class EventRow(Struct, frozen=True):
    """One event of a job. ``number`` grows over the events of all jobs."""

    number: int
    job_id: str
    at: float
    kind: str  # state | started | phase | progress | warning | log
    data: Json


def add_events(connection: Connection, job_id: str, new_events: Sequence[NewEvent]) -> None:
    """Add events of a job, as part of a transaction."""
    if new_events:
        rows = [
            {"job_id": job_id, "at": at, "kind": kind, "data": dict(data)}
            for at, kind, data in new_events
        ]
        connection.execute(_INSERT, rows)


NOT_READ = (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError)
"""Exceptions of reading an invalid value: a newer service, or another program, may have written the
row."""

PHASE_SHARES = {"resolve": 0.02, "extract": 0.43, "plan": 0.05, "create": 0.45, "commit": 0.05}
"""The assumed share of each phase in a job's time, in order of the phases, for a total that never
decreases: over jobs of 1 to 8 GiB, extracting and creating take nine tenths, about half each."""
PHASES = tuple(PHASE_SHARES)
PLAN_PHASES = ("resolve", "extract", "plan")
TELLING_S_MIN = 1.0
"""Seconds after which the remaining time of a phase can be estimated."""


def rfc3339(at_s: float | None) -> str | None:
    """Seconds since 1970 as ``2026-01-31T23:59:59.123Z``."""
    if at_s is None:
        return None
    return rfc3339_text(datetime.fromtimestamp(at_s, UTC))


def progress_view(progress: Mapping[str, Any] | None, kind: str) -> dict[str, Any] | None:
    """Progress of a job of ``kind``, with the completed share of the whole job (0 to 1) and the
    seconds left in this phase; None where no estimate is possible."""
    if progress is None:
        return None
    done, total = progress["bytes_done"], progress["bytes_total"]
    if not total:
        done, total = progress["shards_done"], progress["shards_total"]
    within = min(done / total, 1.0) if total else 0.0
    elapsed_s = progress["elapsed_s"]
    rate = progress.get("bytes_per_s")
    left_s = None
    if 0 < within < 1 and elapsed_s >= TELLING_S_MIN:
        # By the rate that is shown, if there is one: in a resumed job, ``done`` has work of earlier
        # attempts.
        left_s = elapsed_s * (1 - within) / within
        if rate and progress["bytes_total"]:
            left_s = (total - done) / rate
        left_s = round(left_s, 1)
    return {**progress, "share": _share(progress["phase"], within, kind), "left_s": left_s}


def _share(phase: str, within: float, kind: str) -> float | None:
    shares = {
        name: share for name, share in PHASE_SHARES.items() if kind == "run" or name in PLAN_PHASES
    }
    if phase not in shares:
        return None
    names = list(shares)
    before = sum(shares[name] for name in names[: names.index(phase)])
    return round((before + shares[phase] * within) / sum(shares.values()), 4)


def read_parts(parts: Mapping[str, Callable[[], Any]]) -> tuple[dict[str, Any], list[str]]:
    """The values of ``parts``, None for unreadable parts; and a list of the unreadable parts with
    the reasons. A row that cannot be shown whole must not hide other rows."""
    values: dict[str, Any] = {}
    wrong = []
    for name, read in parts.items():
        try:
            values[name] = read()
        except NOT_READ as error:
            values[name] = None
            wrong.append(f"{name} ({type(error).__name__}: {error})")
    return values, wrong


def validated(kind: type[Shown], view: Mapping[str, Any]) -> Shown:
    """The ``kind`` that ``view`` describes, or ``ValidationError``. The view goes through JSON,
    because names of files may hold lone surrogates, which no response can contain."""
    return kind.model_validate_json(to_json(view))


def as_model(kind: type[Shown], view: Mapping[str, Any]) -> Shown:
    """A ``kind`` made from ``view``, which has values of rows. A field whose value the model does
    not allow (a newer service wrote it) gets its default, and ``unreadable`` names it."""
    try:
        return kind.model_validate(view)
    except ValidationError as error:
        wrong = {str(each["loc"][0]): each["msg"] for each in error.errors()}
    notes = [str(view["unreadable"])] if view.get("unreadable") else []
    notes += [f"{name} ({message})" for name, message in wrong.items()]
    values = {**view, "unreadable": "; ".join(notes)}
    for name in wrong:
        field = kind.model_fields[name]
        if not field.is_required():
            values[name] = field.get_default(call_default_factory=True)
    try:
        return kind.model_validate(values)
    except ValidationError:  # a field without a default is shown as stored
        return kind.model_construct(**values)
