"""Pax global headers: what they say is folded into the members they govern.

A global header governs every later member of its own shard. Members leave that shard one by one,
so a member that is governed by anything that matters gets a pax header of its own.
"""

from __future__ import annotations

from dsort.containers.tar.headers import PaxRecords, extension_blocks, pax_payload
from dsort.errors import CorruptShardError

__all__ = ["FOLDED_BYTES_MAX", "GlobalRecords"]

FOLDED_BYTES_MAX = 256 << 20
"""Most memory that one shard's folded headers may take: some bytes of a global header come back
with every member, so that a hostile shard could ask for far more than its own size."""

_KEYWORDS_MAX = 256  # for the same reason: every member looks at all of them

_MATTERS_NOT = frozenset({b"comment", b"GNU.volume.label"})

_NUMBERS = frozenset({b"mtime", b"atime", b"ctime", b"uid", b"gid"})


class GlobalRecords:
    """The global records in force at one point of a shard."""

    def __init__(self, shard: str) -> None:
        self._shard = shard
        self._records: dict[bytes, bytes] = {}
        self._alone: bytes | None = None
        self._folded_bytes = 0
        self.folded = 0
        self.dropped = 0

    def __bool__(self) -> bool:
        return bool(self._records)

    def update(self, at: int, records: PaxRecords) -> None:
        """Take in the global header at byte ``at``; later values win.

        An empty value deletes what the member's own header says, too, and so it is folded as any
        other. But no reader knows an empty number: that only ends what an earlier header said."""
        if any(keyword == b"GNU.volume.filename" for keyword, _ in records):
            raise CorruptShardError(self._shard, at, "multi-volume archives are not supported")
        matter = [item for item in records if item[0] not in _MATTERS_NOT]
        self.folded += bool(matter)
        self.dropped += not matter
        self._alone = None
        for keyword, value in matter:
            if value or keyword not in _NUMBERS:
                self._records[keyword] = value
            else:
                self._records.pop(keyword, None)
        if len(self._records) > _KEYWORDS_MAX:
            reason = f"global pax headers with more than {_KEYWORDS_MAX} keywords"
            raise CorruptShardError(self._shard, at, reason)

    def forget(self) -> None:
        """Another archive begins, which they do not govern."""
        self._records.clear()
        self._alone = None

    def fold(self, own: PaxRecords, *, but: frozenset[bytes] = frozenset()) -> PaxRecords:
        """``own`` with the global records that it does not override, except those named ``but``."""
        known = but.union(keyword for keyword, _ in own)
        return [item for item in self._records.items() if item[0] not in known] + own

    def header_for(self, at: int, own: PaxRecords, folded: PaxRecords) -> bytes:
        """The pax header blocks for ``folded``; shared by all members without records of their own.

        Raises ``CorruptShardError`` past ``FOLDED_BYTES_MAX`` a shard.
        """
        shared = not own and len(folded) == len(self._records)
        if shared and self._alone is not None:
            return self._alone
        blocks = extension_blocks(b"x", pax_payload(folded))
        self.charge(at, len(blocks))
        if shared:
            self._alone = blocks
        return blocks

    def charge(self, at: int, size_bytes: int) -> None:
        """Count ``size_bytes`` that a member costs because its headers have to be written anew."""
        self._folded_bytes += size_bytes
        if self._folded_bytes > FOLDED_BYTES_MAX:
            raise CorruptShardError(
                self._shard,
                at,
                "folding the shard's global pax headers into its members, or mending its headers, "
                f"takes more than {FOLDED_BYTES_MAX >> 20} MiB",
            )
