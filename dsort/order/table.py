"""The records of one input shard, as algorithms read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dsort.data.columns import Bools, BytesColumn, Int64s, UInt64s
from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords

__all__ = ["RecordTable"]


@dataclass(frozen=True, slots=True, eq=False)
class RecordTable:
    """The records of the shard ``shard``. ``read``: the content of a member, by table and row."""

    shard: str
    members: MemberTable
    records: FormedRecords
    read: Callable[[MemberTable, int], bytes]

    def __len__(self) -> int:
        return len(self.records)

    def keeping(self, kept: Bools) -> RecordTable:
        """The records where ``kept``, shape ``(n,)``, is true, in their order."""
        return replace(self, records=self.records.keeping(kept))

    @property
    def keys(self) -> BytesColumn:
        """The record keys."""
        return self.records.keys

    @property
    def key_hash(self) -> UInt64s:
        """The hash of each record key, strays' salted."""
        return self.records.key_hash

    @property
    def payload_bytes(self) -> Int64s:
        """The size of each record's members, without headers and padding."""
        return self.records.payload_bytes

    def rows_with(self, extension: str) -> Int64s:
        """For each record the member table row with that whole extension (the last one, if there
        are several), or -1. Vectorised."""
        wanted = np.frombuffer(extension.encode("utf-8", "surrogateescape"), np.uint8)
        members, records = self.members, self.records
        rows = records.member_rows
        lengths = members.names.lengths[rows] - records.key_bytes[rows]
        of_length = np.flatnonzero(lengths == len(wanted))
        starts = members.names.offsets[:-1][rows[of_length]] + records.key_bytes[rows[of_length]]
        span = members.names.blob[starts[:, None] + np.arange(len(wanted))]
        hits = of_length[(span == wanted).all(axis=1)]
        record_of = np.searchsorted(records.member_offsets, hits, side="right") - 1
        found = np.full(len(records), -1, np.int64)
        found[record_of] = rows[hits]
        return found

    def content(self, row: int) -> bytes:
        """The content of the member in a row of the member table."""
        return self.read(self.members, row)
