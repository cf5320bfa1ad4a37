"""Tickets: what a worker sends to have a block of spill, and how both ends know each other.

All processes of a job have one random key, which comes to them through Ray and never goes to where
blocks travel. A ticket is signed with it, and so is the answer: who listens on the network cannot
ask for anything, and who has taken a dead agent's port cannot answer. A ticket says numbers, never
the name of a file::

    ticket   32 bytes HMAC-SHA256 of the rest, then JSON:
             [nonce, scratch node, partition, [worker, ..], [start, ..], [size, ..]]
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from typing import Any

import orjson

from dsort.scratch.spill import BLOCK_BYTES, SpillBlock

KEY_BYTES = 32
MAC_BYTES = 32
NONCE_BYTES = 16
TICKET_BYTES_MAX = 16 << 20
"""Each range is a record at least. Those of short lines are many."""
OFFSET_LIMIT = 1 << 63

_ASKS, _ANSWERS = b"dsort asks ", b"dsort answers "


class TicketError(Exception):
    """A ticket that asks for what is not there, or for what no job asks for."""


class ForgedTicketError(TicketError):
    """A ticket that was not made with this job's key."""


@dataclass(frozen=True, slots=True, repr=False)
class BlockKey:
    """The key of one job. It is not shown where somebody prints what has it."""

    secret: bytes

    def __repr__(self) -> str:
        return "BlockKey(...)"

    @classmethod
    def new(cls) -> BlockKey:
        """A random one."""
        return cls(secrets.token_bytes(KEY_BYTES))

    def ticket(self, scratch_node: str, block: SpillBlock) -> bytes:
        """What asks ``scratch_node`` for ``block``; no two are the same."""
        ranges = block.workers, block.starts, block.sizes
        text = orjson.dumps(
            [secrets.token_hex(NONCE_BYTES), scratch_node, block.partition, *ranges]
        )
        return self._mac(_ASKS, text) + text

    def open(self, ticket: bytes) -> tuple[str, SpillBlock]:
        """(scratch node, block) that a ticket asks for. ``TicketError``."""
        if not MAC_BYTES < len(ticket) <= TICKET_BYTES_MAX:
            raise TicketError("it has a length that no ticket has")
        text = ticket[MAC_BYTES:]
        if not hmac.compare_digest(self._mac(_ASKS, text), ticket[:MAC_BYTES]):
            raise ForgedTicketError("it was not signed with this job's key")
        try:
            said = orjson.loads(text)
        except orjson.JSONDecodeError:
            raise TicketError("it is no JSON") from None
        return _checked(said)

    def proof(self, ticket: bytes) -> bytes:
        """What only a process of this job can answer to ``ticket``."""
        return self._mac(_ANSWERS, ticket)

    def proves(self, proof: bytes, ticket: bytes) -> bool:
        """Whether ``proof`` is the answer of such a process."""
        return hmac.compare_digest(self.proof(ticket), proof)

    def _mac(self, what: bytes, text: bytes) -> bytes:
        return hmac.digest(self.secret, what + text, "sha256")


def _checked(said: Any) -> tuple[str, SpillBlock]:
    """What a ticket says, if a block can be so."""
    match said:
        case [str(), str(scratch_node), int(partition), list(), list(), list()]:
            columns = said[3:]
        case _:
            raise TicketError("it says something else than tickets do")
    numbers = [partition, *(number for column in columns for number in column)]
    if not all(type(number) is int and 0 <= number < OFFSET_LIMIT for number in numbers):
        raise TicketError("it has numbers that are none of a range")
    workers, starts, sizes = map(tuple, columns)
    if not 0 < len(workers) == len(starts) == len(sizes) or sum(sizes) > BLOCK_BYTES:
        raise TicketError(f"it asks for other ranges than those of a block of {BLOCK_BYTES:,} B")
    return scratch_node, SpillBlock(partition, workers, starts, sizes)
