"""Tickets: a part of an address with which a browser's player reads one member of a shard, for some
minutes.

A player sends no header with a token, and a token in an address would end up in logs. A ticket is
valid only for that member, and no longer than its token. Its key exists only in this process:
another replica, or this one after a restart, refuses the ticket, and the page requests a new one.
"""

from __future__ import annotations

import hmac
import re
import secrets
import time
from collections.abc import Callable
from typing import Final

__all__ = ["TICKET_CHARACTERS_MAX", "TICKET_S", "MemberTickets"]

TICKET_S: Final = 600.0
TICKET_CHARACTERS_MAX: Final = 300
_TICKET: Final = re.compile(r"([0-9]{1,12})\.([0-9a-f]{64})\.([A-Za-z0-9._@+-]{1,128})")


class MemberTickets:
    """Makes tickets, and finds their holders. ``clock``: seconds since 1970."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)

    def made(self, holder: str, member: bytes) -> tuple[str, float]:
        """(a ticket for ``member`` that has the rights of ``holder``, the time when it expires)."""
        ends_at = int(self._clock() + TICKET_S)
        return f"{ends_at}.{self._sign(ends_at, holder, member)}.{holder}", float(ends_at)

    def holder(self, ticket: str, member: bytes) -> str | None:
        """The holder of a ticket for ``member``; None if the ticket is invalid or has expired."""
        found = _TICKET.fullmatch(ticket)
        if found is None:
            return None
        ends_at, holder = int(found[1]), found[3]
        is_ours = hmac.compare_digest(found[2], self._sign(ends_at, holder, member))
        return holder if is_ours and self._clock() < ends_at else None

    def _sign(self, ends_at: int, holder: str, member: bytes) -> str:
        said = b"%d\0%s\0%s" % (ends_at, holder.encode(), member)
        return hmac.new(self._key, said, "sha256").hexdigest()
