"""The audit trail: each action with its time, client, address and target. No row is changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from sqlalchemy import Connection, insert, select

from dsort.service.database.engine import Database
from dsort.service.database.tables import audit

_INSERT: Final = insert(audit)


class AuditRow(Struct, frozen=True):
    """One action. ``at``: seconds since 1970; ``address``: the peer of the connection, empty for
    actions of the service itself and of the command line on its machine."""

    number: int
    at: float
    who: str
    address: str
    action: str  # job.submit, job.stop, schedule.add, token.remove, ...
    target: str
    details: Mapping[str, Any]


class Audit:
    """Records actions, and lists them. Safe to use from many threads."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def note(
        self,
        connection: Connection | None,
        who: str,
        address: str,
        action: str,
        target: str,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a row, as part of the transaction of ``connection``, so that both the action and its
        row are committed, or neither."""
        row = {
            "at": self._clock(),
            "who": _fitting(who, 128),
            "address": _fitting(address, 64),
            "action": action,
            "target": _fitting(target, 128),
            "details": dict(details or {}),
        }
        if connection is not None:
            connection.execute(_INSERT, row)
            return
        with self._database.writing() as own:
            own.execute(_INSERT, row)

    def list(self, *, limit: int = 100, before: int | None = None) -> Sequence[AuditRow]:
        """At most ``limit`` rows with numbers below ``before``, newest first."""
        query = select(audit).order_by(audit.c.number.desc()).limit(limit)
        if before is not None:
            query = query.where(audit.c.number < before)
        return [AuditRow(*row) for row in self._database.rows(query)]


def _fitting(text: str, characters_max: int) -> str:
    """``text`` in a form that any database accepts for a column of that width. A request may
    contain any text, so ``text`` may be any text."""
    clean = text.encode("utf-8", "replace").decode().replace("\0", "?")
    return clean if len(clean) <= characters_max else clean[: characters_max - 1] + "…"
