"""A schedule as the REST routes show it: JSON with times in RFC 3339."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

from dsort.job.hooks import redacted_hook
from dsort.service.jobs.views import read_parts, rfc3339
from dsort.service.schedules.due import due_times, run_id_of
from dsort.service.schedules.rows import RunRow, ScheduleRow

__all__ = ["run_view", "schedule_view"]

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


def schedule_view(
    row: ScheduleRow,
    last_run: RunRow | None,
    *,
    now_s: float,
    warnings: Sequence[str] = (),
    whole: bool = False,
) -> dict[str, Any]:
    """The ScheduleView of a row. ``next_times``: of a paused one there are none. ``whole``: with
    the URLs of webhooks, for who may change the schedule. ``unreadable`` says what of it cannot be
    shown."""
    definition = row.definition
    due = due_times(definition, anchor_s=row.created_at, after_s=now_s)
    rests = row.paused or bool(row.unreadable)
    parts, wrong = read_parts(
        {
            "start_at": lambda: rfc3339(definition.start_s),
            "end_at": lambda: rfc3339(definition.end_s),
            "created_at": lambda: rfc3339(row.created_at),
            "changed_at": lambda: rfc3339(row.changed_at),
            "next_times": lambda: (
                [] if rests else [rfc3339(each) for each in islice(due, NEXT_TIMES)]
            ),
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
        "input_uri": row.input_uri,
        "output_uri": row.output_uri,
        **parts,
        "run_count": row.run_count,
        "warnings": list(warnings),
        "unreadable": "; ".join([row.unreadable] * bool(row.unreadable) + wrong) or None,
    }
