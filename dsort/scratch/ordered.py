"""One partition in output order, as the orderer stores it and creators take it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsort.data.columns import BytesColumn, Int32s, Int64s, UInt64s
from dsort.data.entries import entries_bytes
from dsort.data.index import Origins, Segments

__all__ = ["LineageRows", "OrderedRows", "RecordColumns", "sums_of"]


def sums_of(values: NDArray[np.integer], offsets: Int64s) -> Int64s:
    """The sum of each run ``values[offsets[i]:offsets[i + 1]]``; no run is empty."""
    if len(offsets) < 2:
        return np.zeros(0, np.int64)
    return np.add.reduceat(values, offsets[:-1], dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class RecordColumns:
    """What is counted of records in output order, shape ``(n,)``. ``shard``: of a joined record,
    that of its first piece."""

    shard: Int32s
    group: Int32s | None
    members: Int32s
    payload_bytes: Int64s
    stored_bytes: Int64s
    entries_bytes: Int64s | None


@dataclass(frozen=True, slots=True, eq=False)
class OrderedRows:
    """One partition in output order, a row a record, or a piece of one: see ``record_offsets``.
    ``source``: the input shard's ordinal (map) or 0 (spill: all
    offsets are in the partition's spill blocks, read one after the other)."""

    source: Int32s
    shard: Int32s
    ordinal: Int64s
    group: Int32s | None
    members: Int32s
    payload_bytes: Int64s
    stored_bytes: Int64s
    segments: Segments
    content_hash: UInt64s | None
    block_shard: Int64s  # spill blocks: of which shard, in whose file, where in it, how long
    block_worker: Int64s
    block_start: Int64s
    block_bytes: Int64s
    entries: BytesColumn | None = None  # packed (see ``data.entries``)
    block_rows: Int64s | None = None  # of tables: how many rows each block has; segments count rows
    origins: Origins | None = None  # read back by ``IndexStore.lineage_rows`` alone
    record_offsets: Int64s | None = None
    """Where records were joined, which rows each is: record ``i`` those at
    ``record_offsets[i]:record_offsets[i + 1]``. None: each row is a record."""
    version: int = 1
    """Of the locations that its blocks were found by. See ``moved_blocks``."""

    def rows_of(self, start: int, stop: int) -> tuple[int, int]:
        """The rows of records ``start:stop``."""
        if self.record_offsets is None:
            return start, stop
        return int(self.record_offsets[start]), int(self.record_offsets[stop])

    def by_record(self) -> RecordColumns:
        """What is counted of each record."""
        entries = None if self.entries is None else entries_bytes(self.entries, self.members)
        if self.record_offsets is None:
            return RecordColumns(
                self.shard,
                self.group,
                self.members,
                self.payload_bytes,
                self.stored_bytes,
                entries,
            )
        offsets = self.record_offsets
        first = offsets[:-1]
        return RecordColumns(
            shard=self.shard[first],
            group=None if self.group is None else self.group[first],
            members=sums_of(self.members, offsets).astype(np.int32),
            payload_bytes=sums_of(self.payload_bytes, offsets),
            stored_bytes=sums_of(self.stored_bytes, offsets),
            entries_bytes=None if entries is None else sums_of(entries, offsets),
        )

    def run(self, start: int, stop: int) -> OrderedRows:
        """Records ``start:stop``."""
        offsets = None
        if self.record_offsets is not None:
            offsets = self.record_offsets[start : stop + 1] - self.record_offsets[start]
        start, stop = self.rows_of(start, stop)
        rows = slice(start, stop)
        return OrderedRows(
            source=self.source[rows],
            shard=self.shard[rows],
            ordinal=self.ordinal[rows],
            group=None if self.group is None else self.group[rows],
            members=self.members[rows],
            payload_bytes=self.payload_bytes[rows],
            stored_bytes=self.stored_bytes[rows],
            segments=self.segments.run(start, stop),
            content_hash=None if self.content_hash is None else self.content_hash[rows],
            block_shard=self.block_shard,
            block_worker=self.block_worker,
            block_start=self.block_start,
            block_bytes=self.block_bytes,
            entries=None if self.entries is None else self.entries.run(start, stop),
            block_rows=self.block_rows,
            record_offsets=offsets,
            version=self.version,
        )


@dataclass(frozen=True, slots=True, eq=False)
class LineageRows:
    """Records in output order: of which input shard, how long in the output, and the rest."""

    shard: Int32s
    stored_bytes: Int64s
    content_hash: UInt64s
    origins: Origins
