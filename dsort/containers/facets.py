"""The facets of containers: what only some formats have. A container without one has None there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the registry is read with every spec, and works without numpy
    from dsort.data.columns import Int64s
    from dsort.data.members import MemberTable

__all__ = ["CompressedPayloads"]


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
