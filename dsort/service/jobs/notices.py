"""Notices: calls of hooks that are still due, kept until they are made.

A notice is written in the transaction that ends its job, so a crash loses none. A hook may be
called twice: a replica may die between the call and the transaction that records it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct
from sqlalchemy import Connection, delete, insert, select, update

from dsort.results.hooks import TEXT_CHARS_MAX
from dsort.service.database.engine import Database
from dsort.service.database.tables import jobs, notices, schedules
from dsort.service.jobs.rows import add_events
from dsort.service.security.uris import shown_uris

__all__ = ["TRIES_MAX", "Notice", "NoticeStore", "add_job_notices", "add_notices"]

TRIES_MAX: Final = 5
HELD_S: Final = 120.0
"""Longer than any try takes. After that time a notice that was not delivered is tried again, by any
replica."""
FIRST_PAUSE_S: Final = 5.0
PAUSE_GROWTH: Final = 4.0
_HOOK_OF: Final = {"finished": "on_success", "failed": "on_failure", "stopped": "on_stop"}
"""``on_stop``: of a job that was stopped by a limit, see ``JobStore.ask_stop``."""


class Notice(Struct, frozen=True):
    """One notice that is due now. ``hook``: one of the two entries of ``Hook.called``."""

    number: int
    job_id: str | None
    hook: Mapping[str, str]
    document: Mapping[str, Any]
    tries: int


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


class NoticeStore:
    """The notices of a service. Every method is a transaction of its own."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def take(self) -> Notice | None:
        """A notice that is due now; no other caller gets it for ``HELD_S``. None if none is due."""
        now_s = self._clock()
        query = select(notices).where(notices.c.next_try_at <= now_s)
        with self._database.reading() as connection:
            found = connection.execute(query.order_by(notices.c.next_try_at).limit(1)).first()
        if found is None:
            return None
        with self._database.writing() as connection:
            taken = connection.execute(
                update(notices)
                .where(notices.c.number == found.number, notices.c.tries == found.tries)
                .values(tries=found.tries + 1, next_try_at=now_s + HELD_S)
            )
        if not taken.rowcount:
            return None
        return Notice(found.number, found.job_id, found.hook, found.document, found.tries + 1)

    def record_outcome(self, notice: Notice, failure: str) -> None:
        """Record that the notice was delivered (``failure`` is ""), or schedule another try after a
        pause that grows with each try. If the last try failed, the job gets a warning with the
        reason."""
        if failure and notice.tries < TRIES_MAX:
            pause_s = FIRST_PAUSE_S * PAUSE_GROWTH ** (notice.tries - 1)
            with self._database.writing() as connection:
                connection.execute(
                    update(notices)
                    .where(notices.c.number == notice.number, notices.c.tries == notice.tries)
                    .values(next_try_at=self._clock() + pause_s)
                )
            return
        with self._database.writing() as connection:
            connection.execute(delete(notices).where(notices.c.number == notice.number))
            if failure and notice.job_id is not None:
                self._warn(connection, notice.job_id, failure)

    def _warn(self, connection: Connection, job_id: str, failure: str) -> None:
        warned = connection.execute(
            update(jobs)
            .where(jobs.c.job_id == job_id)
            .values(warning_count=jobs.c.warning_count + 1)
        )
        if warned.rowcount:  # else the job was removed meanwhile
            data = {"kind": "hook", "text": f"a hook was not told: {failure}"}
            add_events(connection, job_id, [(self._clock(), "warning", data)])
