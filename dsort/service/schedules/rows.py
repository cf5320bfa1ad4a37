"""Schedules and their runs as they are stored: one frozen value a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Row

from dsort.errors import ConflictError
from dsort.service.schedules.definition import ScheduleDefinition

__all__ = [
    "REFUSED",
    "SKIPPED",
    "SUBMITTED",
    "WAITING",
    "RunRow",
    "ScheduleRow",
    "run_row",
    "schedule_row",
]

SUBMITTED, SKIPPED, REFUSED, WAITING = "submitted", "skipped", "refused", "waiting"
"""How a due time came out. ``waiting``: for earlier jobs of the schedule to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRow:
    """One row of ``tables.schedules``. Times are seconds since 1970.

    ``input_uri`` and ``output_uri``: as much of the buckets as all runs share. ``next_due_at``: the
    first due time that nothing has been done about; while it is paused, the first one missed.
    ``unreadable``: why the definition that is stored is none; ``definition`` then holds the name.
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
        """``ConflictError`` if it is not known what the schedule is asked to do."""
        if self.unreadable:
            raise ConflictError(
                f"schedule {self.name} cannot be read: {self.unreadable}",
                hint="replace it (PUT), or remove it and make it again",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One row of ``tables.schedule_runs``: what came of a due time. ``job_state``, ``job_error``:
    how its job is today, where that was read along; None once the job is forgotten."""

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
    """The schedule that a row of the table is. One whose definition is none (a newer service wrote
    it, or its time zone is gone) does not keep the others from being shown and run."""
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
    """The run that a row of the table is."""
    return RunRow(**row._asdict())
