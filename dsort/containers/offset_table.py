"""Shards that begin with a table of offsets: ``u32 n | u32 offset[n + 1]``, little-endian, counted
from the first byte of the shard. A record is a u32 size for each value of any length, and the
values. MDS and LitData shards are such shards.

They have no checksums. The only possible check is that offsets and sizes agree; so the sizes in
each record are read, 50 ns each.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator

import numpy as np

from dsort.containers.base import Need
from dsort.data.columns import Int64s
from dsort.errors import CorruptShardError

__all__ = [
    "SHARD_BYTES_MAX",
    "offset_table",
    "read_offsets",
    "read_sizes",
    "table_bytes",
]

SHARD_BYTES_MAX = (1 << 32) - 1
"""An offset has 32 bits."""
COUNT_BYTES = 4
ROWS_AT_ONCE_MAX = 1 << 16
SIZES_AT_ONCE_MAX = 1 << 18
"""The maximum number of sizes read at once. Each takes some 40 bytes while it is read, and there
may be thousands of values in a record."""
_COUNT = struct.Struct("<I")


def table_bytes(records: int) -> int:
    """The length of the table, with its count."""
    return COUNT_BYTES + 4 * (records + 1)


def offset_table(head_bytes: int, stored_bytes: Int64s) -> bytes:
    """The table of a shard whose first record begins at ``head_bytes``."""
    offsets = np.full(len(stored_bytes) + 1, head_bytes, np.int64)
    offsets[1:] += np.cumsum(stored_bytes)
    return _COUNT.pack(len(stored_bytes)) + offsets.astype("<u4").tobytes()


def read_offsets(
    shard: str, size_bytes: int, format_name: str, record_name: str, *, has_head: bool
) -> Generator[Need, memoryview, Int64s]:
    """The offsets in the table of a shard, shape ``(n + 1,)``. ``has_head``: more bytes may be
    between the table and the first record. ``CorruptShardError`` unless the records lie one after
    the other to the end of the shard."""
    if size_bytes > SHARD_BYTES_MAX:
        text = f"it is longer than 4 GiB, which no {format_name} can be"
        raise CorruptShardError(shard, 0, text)
    if size_bytes < COUNT_BYTES:
        raise CorruptShardError(shard, 0, "the shard ends here")
    (count,) = _COUNT.unpack_from((yield Need(0, COUNT_BYTES)))
    head_bytes = table_bytes(count)
    if head_bytes > size_bytes:
        text = f"its table of {count:,} {record_name} is longer than the shard"
        raise CorruptShardError(shard, 0, text)
    window = yield Need(COUNT_BYTES, head_bytes - COUNT_BYTES)
    offsets = np.frombuffer(window, "<u4", count + 1).astype(np.int64)
    del window
    if offsets[0] < head_bytes or (offsets[0] != head_bytes and not has_head):
        raise CorruptShardError(shard, COUNT_BYTES, "its first record begins in its head")
    falling = np.flatnonzero(np.diff(offsets) < 0)
    if len(falling):
        at = COUNT_BYTES + 4 * (int(falling[0]) + 1)
        raise CorruptShardError(shard, at, "a record ends before it begins")
    if offsets[-1] != size_bytes:
        text = f"its last record ends at byte {offsets[-1]:,}, the shard at {size_bytes:,}"
        raise CorruptShardError(shard, head_bytes - 4, text)
    return offsets


def read_sizes(
    shard: str,
    offsets: Int64s,
    values: int,
    fixed_bytes: int,
    record_name: str,
    take: Callable[[Int64s, Int64s], None] = lambda _starts, _sizes: None,
) -> Generator[Need, memoryview, None]:
    """Check that the sizes of the ``values`` of each record add up to its length. ``fixed_bytes``:
    of the values without a size. ``take``: called with (offsets of records, sizes in them, shape
    ``(n, values)``)."""
    row = 0
    while row < len(offsets) - 1:
        starts = offsets[row:-1][:ROWS_AT_ONCE_MAX]
        first = int(starts[0])
        sizes = _sizes_in((yield Need(first, 4 * values)), starts - first, values)
        starts = starts[: len(sizes)]
        lengths = offsets[row + 1 : row + 1 + len(sizes)] - starts
        wrong = np.flatnonzero(4 * values + fixed_bytes + sizes.sum(axis=1) != lengths)
        if len(wrong):
            text = f"the sizes in {record_name} do not add up to its length"
            raise CorruptShardError(shard, int(starts[wrong[0]]), text)
        take(starts, sizes)
        row += len(sizes)


def _sizes_in(window: memoryview, starts: Int64s, values: int) -> Int64s:
    """The sizes of as many records as ``window`` has, within bounds, shape ``(n, values)``.
    ``starts``: of the records, in the window."""
    count = int(np.searchsorted(starts, len(window) - 4 * values, side="right"))
    starts = starts[: min(count, max(SIZES_AT_ONCE_MAX // max(values, 1), 1))]
    data = np.frombuffer(window, np.uint8)
    places = starts[:, None] + np.arange(4 * values)
    sizes = np.ascontiguousarray(data[places]).view("<u4").astype(np.int64)
    return sizes.reshape(len(starts), values)
