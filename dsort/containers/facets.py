"""The facets of containers: what only some formats have. A container without one has None there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:  # the registry is read with every spec, and works without numpy
    from dsort.data.columns import Int64s, UInt8s, UInt32s
    from dsort.data.members import MemberTable

__all__ = ["CompressedPayloads", "Hop", "Hops", "Seals"]


class CompressedPayloads(ABC):
    """Payloads that may be compressed in the shard, with CRC-32s: a payload that is taken out of
    its shard is compared with its own."""

    @abstractmethod
    def decompressed(
        self, members: MemberTable, row: int, pieces: Iterable[memoryview | bytes]
    ) -> Iterator[bytes]:
        """The payload of a row that is compressed in the shard (see ``MemberTable``), in pieces of
        bounded size. ``pieces``: the compressed bytes in the shard. ``ValueError`` with the reason
        if they are invalid, at the latest after the last piece."""

    @abstractmethod
    def checksum(self, members: MemberTable, row: int) -> int | None:
        """The CRC-32 of the payload of a row, of a shard in which it is stored unchanged; None if
        the shard does not have it."""

    @abstractmethod
    def checksums(self, members: MemberTable) -> tuple[Int64s, Int64s]:
        """(rows whose payload is stored unchanged and whose CRC-32 is in the shard, these CRC-32s),
        shape ``(rows,)`` each."""


class Seals(Struct, frozen=True):
    """The last ``size_bytes`` of each record: a checksum of all its other bytes but the first
    ``skips_bytes``. It is cheaper to make when the record is copied, because its bytes are then in
    the processor's cache.

    ``checksum``: returns the checksum after a piece of a record, given the checksum before it, at
    first 0. ``of``: the seals of records with these checksums, shape ``(n, size_bytes)``."""

    size_bytes: int
    skips_bytes: int
    checksum: Callable[[memoryview | bytes, int], int]
    of: Callable[[UInt32s], UInt8s]


class Hop(NamedTuple):
    """What one header shows to a reader that passes over payload: where the next header begins, and
    the name of the member; b"" if the header belongs to the next header."""

    next_at: int
    name: bytes


class Hops(Struct, frozen=True):
    """Headers whose first ``header_bytes`` show where the next header is. ``read``: returns what
    the header at a byte of the shard shows, from these bytes; None if no header is there. A guess
    for reading ahead, which is not checked further."""

    header_bytes: int
    read: Callable[[bytes, int], Hop | None]
