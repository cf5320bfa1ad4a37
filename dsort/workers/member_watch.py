"""Scans an output shard while it is written, so that sidecars can say what is where in it.

Payload is passed over: of each megabyte, what the scanner asks for is copied and scanned.
"""

from __future__ import annotations

from collections.abc import Sequence

from dsort.containers.base import Container
from dsort.data.members import MemberTable
from dsort.errors import InvariantError

HELD_BYTES = 1 << 20


class MemberWatch:
    """Is fed the bytes of one output shard, from the first to the last."""

    def __init__(self, container: Container, shard: str, size_bytes: int) -> None:
        self._scanner = container.scanner(shard, size_bytes)
        self._at = 0  # of the next byte that comes
        self._held: list[memoryview | bytes] = []  # the bytes before it, from _held_at on
        self._held_at = 0
        self._held_bytes = 0

    def feed(self, slices: Sequence[memoryview]) -> None:
        """The next bytes."""
        for piece in slices:
            rest = piece
            while len(rest):
                skipped = min(len(rest), max(self._scanner.next_offset - self._at, 0))
                if skipped and not self._held_bytes:
                    self._at += skipped
                    rest = rest[skipped:]
                    continue
                taken = rest[: max(self._wanted_bytes - self._held_bytes, 1)]
                if not self._held_bytes:
                    self._held_at = self._at
                self._held.append(bytes(taken))  # the buffer that it is in is used again
                self._held_bytes += len(taken)
                self._at += len(taken)
                rest = rest[len(taken) :]
                if self._held_bytes >= self._wanted_bytes:
                    self._scan()

    def members(self) -> MemberTable:
        """The members, once all bytes have come."""
        while not self._scanner.done:
            before = self._scanner.next_offset
            self._scan()
            if self._scanner.next_offset == before and not self._scanner.done:
                raise InvariantError("an output shard cannot be scanned")
        return self._scanner.finish()

    @property
    def _wanted_bytes(self) -> int:
        return max(HELD_BYTES, self._scanner.window_bytes_min)

    def _scan(self) -> None:
        """Scan what is held, and keep what has to come again."""
        data, scanner = b"".join(self._held), self._scanner
        first = scanner.next_offset - self._held_at
        if not scanner.done:
            scanner.feed(memoryview(data)[first:], scanner.next_offset)
        rest = data[max(scanner.next_offset - self._held_at, 0) :]
        self._held = [rest] if rest else []
        self._held_bytes = len(rest)
        self._held_at = self._at - len(rest)
