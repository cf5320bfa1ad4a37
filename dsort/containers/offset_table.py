"""Shards that begin with a table of offsets: ``u32 n | u32 offset[n + 1]``, little-endian, counted
from the first byte of the shard. MDS and LitData shards have such a table."""

from __future__ import annotations

import struct

import numpy as np

from dsort.data.columns import Int64s
from dsort.errors import CorruptShardError

__all__ = ["COUNT_BYTES", "SHARD_BYTES_MAX", "offset_table", "offsets_of", "table_bytes"]

SHARD_BYTES_MAX = (1 << 32) - 1
"""An offset has 32 bits."""
COUNT_BYTES = 4
_COUNT = struct.Struct("<I")


def table_bytes(records: int) -> int:
    """The length of the table, with its count."""
    return COUNT_BYTES + 4 * (records + 1)


def offset_table(head_bytes: int, stored_bytes: Int64s) -> bytes:
    """The table of a shard whose first record begins at ``head_bytes``."""
    offsets = np.full(len(stored_bytes) + 1, head_bytes, np.int64)
    offsets[1:] += np.cumsum(stored_bytes)
    return _COUNT.pack(len(stored_bytes)) + offsets.astype("<u4").tobytes()


def offsets_of(shard: str, size_bytes: int, data: bytes, first: int = 0) -> Int64s:
    """The offsets in a table ``data``, without its count, shape ``(n + 1,)``. ``first``: where the
    first record begins, 0 if the table is the only source of that. ``CorruptShardError`` unless the
    records lie one after the other to the end of the shard."""
    offsets = np.frombuffer(data, "<u4").astype(np.int64)
    least = first or COUNT_BYTES + len(data)
    if offsets[0] < least or (first and offsets[0] != first):
        raise CorruptShardError(shard, COUNT_BYTES, "its first record begins in its head")
    falling = np.flatnonzero(np.diff(offsets) < 0)
    if len(falling):
        at = COUNT_BYTES + 4 * (int(falling[0]) + 1)
        raise CorruptShardError(shard, at, "a record ends before it begins")
    if offsets[-1] != size_bytes:
        at = COUNT_BYTES + len(data) - 4
        text = f"its last record ends at byte {offsets[-1]:,}, the shard at {size_bytes:,}"
        raise CorruptShardError(shard, at, text)
    return offsets
