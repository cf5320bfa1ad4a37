"""The thread that calls hooks after jobs have ended, by the notices that are due.

A hook may be called twice: a replica may die between the call and the transaction that records it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from sqlalchemy import Connection, delete, select, update

from dsort.log_lines import logger_of
from dsort.results.hooks import call_hook
from dsort.service.database.engine import Database
from dsort.service.database.tables import jobs, notices
from dsort.service.jobs.rows import add_events
from dsort.service.threads import TurnThread
from dsort.storage.network_policy import FetchPolicy

LOOK_S: Final = 2.0
AT_ONCE_MAX: Final = 4
"""The most hooks that are called at once: a webhook that does not answer holds up no others, and
uses no more threads than these."""

TRIES_MAX: Final = 5
HELD_S: Final = 120.0
"""Longer than any try takes. After that time a notice that was not delivered is tried again, by any
replica."""
FIRST_PAUSE_S: Final = 5.0
PAUSE_GROWTH: Final = 4.0

log = logger_of("service")


class Notice(Struct, frozen=True):
    """One notice that is due now. ``hook``: one of the two entries of ``Hook.called``."""

    number: int
    job_id: str | None
    hook: Mapping[str, str]
    document: Mapping[str, Any]
    tries: int


class NoticeStore:
    """The notices of a service. Every method is a transaction of its own."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def take(self) -> Notice | None:
        """A notice that is due now; no other caller gets it for ``HELD_S``. None if no notice is
        due."""
        now_s = self._clock()
        query = select(notices).where(notices.c.next_try_at <= now_s)
        due = self._database.rows(query.order_by(notices.c.next_try_at).limit(1))
        if not due:
            return None
        (found,) = due
        with self._database.writing() as connection:
            # Several replicas may have read this row: the first to count the try gets the notice.
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
            data = {"kind": "hook", "text": f"a hook could not be called: {failure}"}
            add_events(connection, job_id, [(self._clock(), "warning", data)])


class Notifier(TurnThread):
    """Delivers the notices of a service, from ``start`` to ``close``. Each replica has one
    notifier. If a notifier closes during a delivery, the next notifier may deliver the notice
    again.

    ``commands``: the programs that hooks may run; ``policy``: the servers that webhooks may call.
    """

    def __init__(
        self,
        store: NoticeStore,
        *,
        commands: Mapping[str, Sequence[str]],
        policy: FetchPolicy,
        look_s: float = LOOK_S,
    ) -> None:
        super().__init__("dsort-notices", look_s)
        self._store = store
        self._commands = commands
        self._policy = policy
        self._room = threading.Semaphore(AT_ONCE_MAX)

    def _turn(self) -> float:
        while not self._over.is_set():
            # Wait for a free thread first, because a notice that is taken and not delivered is held
            # back for ``HELD_S``.
            if not self._room.acquire(timeout=self._look_s):
                continue
            notice = None
            try:
                notice = self._store.take()
            finally:
                if notice is None:
                    self._room.release()
            if notice is None:
                break
            # A daemon, because a service that ends does not wait for a slow hook.
            threading.Thread(target=self._give, args=(notice,), daemon=True).start()
        return self._look_s

    def _give(self, notice: Notice) -> None:
        try:
            failures = call_hook(
                notice.hook, notice.document, commands=self._commands, policy=self._policy
            )
            for failure in failures:
                log.warning("job %s, try %d: %s", notice.job_id, notice.tries, failure)
            self._store.record_outcome(notice, "; ".join(failures))
        except Exception:
            log.exception("notice %d", notice.number)
        finally:
            self._room.release()
