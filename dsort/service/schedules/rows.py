"""Schedules and their runs as rows: one frozen value for each row, and its view for REST."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

from msgspec import Struct
from pydantic import ValidationError
from sqlalchemy import Row

from dsort.errors import ConflictError
from dsort.results.hooks import redacted_hook
from dsort.service.jobs.rows import read_parts, rfc3339
from dsort.service.schedules.definition import ScheduleDefinition
from dsort.service.schedules.due import due_times, next_due, run_id_of
from dsort.service.schedules.render import seed_of
from dsort.service.security.uris import main_uri, shown_uris

__all__ = [
    "REFUSED",
    "SKIPPED",
    "SUBMITTED",
    "WAITING",
    "RunRow",
    "ScheduleRow",
    "next_times",
    "run_row",
    "run_view",
    "schedule_row",
    "schedule_view",
]

SUBMITTED, SKIPPED, REFUSED, WAITING = "submitted", "skipped", "refused", "waiting"
"""The outcome of a due time. ``waiting``: for the job that it replaces to end."""


class ScheduleRow(Struct, frozen=True, kw_only=True):
    """One row of ``tables.schedules``. Times are seconds since 1970.

    ``input_uri`` and ``output_uri``: the part of the bucket URIs that all runs share.
    ``next_due_at``: the first due time that has not been handled; while the schedule is paused, the
    first one missed. ``unreadable``: why the stored definition is invalid; ``definition`` then
    holds only the name.
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
    the present state of its job, where the query included that; None once the job is removed."""

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
    """The schedule in a row of the table. If its definition is invalid (a newer service wrote it,
    or its time zone no longer exists), the other schedules can still be shown and run."""
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


NEXT_TIMES: Final = 5


def run_view(run: RunRow) -> dict[str, Any]:
    """The RunView of a run."""
    return {
        "due_at": rfc3339(run.due_at),
        "by_hand": run.by_hand,
        "fired_at": rfc3339(run.fired_at),
        "outcome": run.outcome,
        "reason": run.reason,
        "job_id": run.job_id,
        "job_state": run.job_state,
        "job_error": None if run.job_error is None else str(run.job_error.get("detail", "")),
        "run_id": run_id_of(run.due_at),
        "removed_at": rfc3339(run.removed_at),
    }


def _hook(hook: Mapping[str, str] | None, whole: bool) -> Mapping[str, str] | None:
    return hook if hook is None or whole else redacted_hook(hook)


def next_times(
    definition: ScheduleDefinition, *, anchor_s: float, now_s: float
) -> list[str | None]:
    """The next due times. ``anchor_s``: see ``due.next_due``."""
    due = due_times(definition, anchor_s=anchor_s, after_s=now_s)
    return [rfc3339(each) for each in islice(due, NEXT_TIMES)]


def _next_seed(row: ScheduleRow, now_s: float) -> str | int | None:
    definition = row.definition
    due_s = next_due(definition, anchor_s=row.created_at, after_s=now_s)
    return None if due_s is None else seed_of(definition, due_s, row.run_count)


def schedule_view(
    row: ScheduleRow,
    last_run: RunRow | None,
    *,
    now_s: float,
    warnings: Sequence[str] = (),
    whole: bool = False,
) -> dict[str, Any]:
    """The ScheduleView of a row. ``next_times``: empty if the schedule is paused. ``whole``: with
    the URLs of webhooks, for those who may change the schedule. ``unreadable`` lists what cannot be
    shown."""
    definition = row.definition
    rests = row.paused or bool(row.unreadable)
    parts, wrong = read_parts(
        {
            "start_at": lambda: rfc3339(definition.start_s),
            "end_at": lambda: rfc3339(definition.end_s),
            "created_at": lambda: rfc3339(row.created_at),
            "changed_at": lambda: rfc3339(row.changed_at),
            "next_times": lambda: (
                [] if rests else next_times(definition, anchor_s=row.created_at, now_s=now_s)
            ),
            "next_seed": lambda: None if rests else _next_seed(row, now_s),
            "last_run": lambda: None if last_run is None else run_view(last_run),
        }
    )
    return {
        "name": row.name,
        "spec": definition.spec,
        "cron": definition.cron,
        "every": definition.every,
        "timezone": definition.timezone,
        "paused": row.paused,
        "catch_up": definition.catch_up,
        "overlap": definition.overlap,
        "retain": definition.retain,
        "latest": definition.latest,
        **{name: _hook(definition.hooks.get(name), whole) for name in ("on_success", "on_failure")},
        "priority": definition.priority,
        "labels": list(definition.labels),
        "description": definition.description,
        "owner": row.owner,
        "input_uri": shown_uris(row.input_uri),
        "output_uri": main_uri(row.output_uri),
        **parts,
        "due_now": not rests and row.next_due_at is not None and row.next_due_at <= now_s,
        "run_count": row.run_count,
        "warnings": list(warnings),
        "unreadable": "; ".join([row.unreadable] * bool(row.unreadable) + wrong) or None,
    }
