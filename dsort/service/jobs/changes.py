"""Changes of a job's row: one statement for all of them.

It names the state and the attempt that it is made for, so it has no effect once another attempt has
begun or the job has ended. The state itself comes from ``states.transition``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from sqlalchemy import Connection, update

from dsort.service.database.tables import jobs
from dsort.service.jobs.notices import add_job_notices
from dsort.service.jobs.rows import NewEvent, add_events
from dsort.service.jobs.states import ENDED, RUNNING, Event, Standing, transition

__all__ = ["Attempt", "change"]


class Attempt(Struct, frozen=True):
    """A job for a caller that has not read its row: its process, or the dispatcher."""

    job_id: str
    attempt: int
    state: str = RUNNING


def change(
    connection: Connection,
    job: Standing,
    event: Event,
    columns: Mapping[str, Any],
    *,
    now_s: float | None = None,
    events: Sequence[NewEvent] = (),
    reason: str = "",
) -> bool:
    """Change the row of ``job`` as ``event`` requires, as part of a transaction. False, and no
    change, if the job is no longer in the state and the attempt of ``job``.

    ``columns``: new values beside the state; with ``attempt`` if another one begins. ``events``:
    what the attempt has reported. A new state, and a new attempt, are an event, at ``now_s`` for
    ``reason``; if the job ends, the notices that call its hooks are added.
    """
    after, attempt = transition(job, event), columns.get("attempt", job.attempt)
    changed = connection.execute(
        update(jobs)
        .where(
            jobs.c.job_id == job.job_id,
            jobs.c.state == job.state,
            jobs.c.attempt == job.attempt,
        )
        .values(columns if after == job.state else {**columns, "state": after})
    )
    if not changed.rowcount:
        return False
    add_events(connection, job.job_id, events)
    if (after, attempt) == (job.state, job.attempt):
        return True
    assert now_s is not None
    data: dict[str, Any] = {"state": after, "attempt": attempt}
    data |= {"reason": reason} if reason else {}
    error = columns.get("error")
    data |= {"error": error} if error is not None else {}
    add_events(connection, job.job_id, [(now_s, "state", data)])
    if after in ENDED:
        if error is None and reason:
            error = {"detail": reason}
        add_job_notices(connection, job.job_id, after, error, now_s=now_s)
    return True
