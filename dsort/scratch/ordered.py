"""One partition in output order, as the orderer stores it and creators take it."""

from __future__ import annotations

from dataclasses import dataclass

from dsort.data.columns import BytesColumn, Int32s, Int64s, UInt64s
from dsort.data.index import Origins, Segments

__all__ = ["LineageRows", "OrderedRows"]


@dataclass(frozen=True, slots=True, eq=False)
class OrderedRows:
    """One partition in output order. ``source``: the input shard's ordinal (map) or 0 (spill: all
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

    def run(self, start: int, stop: int) -> OrderedRows:
        """Rows ``start:stop``."""
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
        )


@dataclass(frozen=True, slots=True, eq=False)
class LineageRows:
    """Records in output order: of which input shard, how long in the output, and the rest."""

    shard: Int32s
    stored_bytes: Int64s
    content_hash: UInt64s
    origins: Origins
