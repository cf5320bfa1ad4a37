"""Changes of a job's row: one statement for all of them.

The statement names the state and the attempt for which it was made, so it has no effect once
another attempt has begun or the job has ended. The state itself comes from ``states.transition``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct
from sqlalchemy import Connection, insert, select, update

from dsort.results.hooks import TEXT_CHARS_MAX
from dsort.service.database.tables import jobs, notices, schedules, shown_uris
from dsort.service.jobs.rows import NewEvent, add_events
from dsort.service.jobs.states import ENDED, RUNNING, Event, Standing, transition


class Attempt(Struct, frozen=True):
    """The job and the attempt that a caller names without reading the row: the job's process, or
    the dispatcher."""

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

    ``columns``: new values beside the state, with ``attempt`` if a new attempt begins. ``events``:
    the events that the attempt has reported. A new state or a new attempt is also stored as an
    event, at ``now_s``, with ``reason``. If the job ends, the notices that call its hooks are
    added.
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
        # In the same transaction: a crash loses no call of a hook.
        if error is None and reason:
            error = {"detail": reason}
        add_job_notices(connection, job.job_id, after, error, now_s=now_s)
    return True


_HOOK_OF: Final = {"finished": "on_success", "failed": "on_failure", "stopped": "on_stop"}
"""``on_stop``: of a job that was stopped by a limit, see ``JobStore.ask_stop``."""


def add_notices(
    connection: Connection,
    hook: Mapping[str, str] | None,
    document: Mapping[str, Any],
    *,
    now_s: float,
    job_id: str | None = None,
) -> None:
    """Add the notices that call a hook, as part of a transaction: one for its webhook, one for its
    command."""
    for name, value in (hook or {}).items():
        row = {"job_id": job_id, "hook": {name: value}, "document": dict(document)}
        connection.execute(insert(notices).values(**row, next_try_at=now_s, tries=0))


def add_job_notices(
    connection: Connection,
    job_id: str,
    state: str,
    error: Mapping[str, Any] | None,
    *,
    now_s: float,
) -> None:
    """Add the notices that call the hooks of a job with its outcome, as part of the transaction
    that ends the job."""
    names = ("hooks", "owner", "description", "input_uri", "output_uri", "schedule_id", "result")
    query = select(*(jobs.c[name] for name in names)).where(jobs.c.job_id == job_id)
    row = connection.execute(query).one()
    hook = (row.hooks or {}).get(_HOOK_OF.get(state, ""))
    if not hook:
        return
    named = select(schedules.c.name).where(schedules.c.schedule_id == row.schedule_id)
    document: dict[str, Any] = {
        "event": f"job.{state}",
        "job_id": job_id,
        "state": state,
        "owner": row.owner,
        "schedule": connection.execute(named).scalar() if row.schedule_id else None,
        "description": row.description,
        "input": shown_uris(row.input_uri),
        "output": shown_uris(row.output_uri),
        "ended_at": datetime.fromtimestamp(now_s, UTC).isoformat(timespec="seconds"),
    }
    text = f"dsort job {job_id} {state}"
    if error is not None:
        document["error"] = {name: str(error.get(name, "")) for name in ("detail", "hint")}
        text += f": {document['error']['detail']}"
    elif row.result is not None:
        document["records"] = row.result.get("records")
        document["shards"] = row.result.get("output_shards")
        text += f": {document['records']} records to {shown_uris(row.output_uri)}"
    document["text"] = text[:TEXT_CHARS_MAX]
    add_notices(connection, hook, document, now_s=now_s, job_id=job_id)
