"""Reads a LitData chunk from windows on its bytes: the table, and the sizes in each item."""

from __future__ import annotations

import struct

import numpy as np

from dsort.containers.offset_table import COUNT_BYTES, SHARD_BYTES_MAX, offsets_of, table_bytes
from dsort.containers.positions import position_names
from dsort.data.columns import Int64s, UInt8s
from dsort.data.members import MemberTable
from dsort.errors import CorruptShardError

__all__ = ["EXTENSION", "LitDataScanner"]

EXTENSION = b".bin"
"""The extension of the one member of a record, after its key."""
ROWS_AT_ONCE_MAX = 1 << 16
SIZES_AT_ONCE_MAX = 1 << 18
"""The maximum number of sizes read at once. Each takes some 40 bytes while it is read, and there
may be thousands of leaves."""


class LitDataScanner:
    """See ``containers.base.Scanner``. ``leaves``: the number of leaves of an item; 0: unknown."""

    def __init__(self, shard: str, size_bytes: int, leaves: int, schema: str) -> None:
        self._shard = shard
        self._size = size_bytes
        self._leaves = leaves
        self._schema = schema
        self._offsets: Int64s | None = None
        self._row = 0
        self.next_offset = 0
        self.window_bytes_min = COUNT_BYTES
        if size_bytes > SHARD_BYTES_MAX:
            raise self._corrupt(0, "it is longer than 4 GiB, which no chunk can be")
        if size_bytes < COUNT_BYTES:
            raise self._corrupt(0, "the shard ends here")

    @property
    def done(self) -> bool:
        return self.next_offset == self._size

    def feed(self, window: memoryview | bytes | UInt8s, offset: int) -> None:
        view = memoryview(window).cast("B")  # type: ignore[arg-type]
        while not self.done:
            first = self.next_offset - offset
            if not 0 <= first <= len(view) - self.window_bytes_min:
                return
            if self.next_offset == 0:
                self._read_count(view, first)
            elif self._offsets is None:
                self._read_table(bytes(view[first : first + self.window_bytes_min]))
            else:
                self._read_sizes(view, offset, self._offsets)

    def finish(self) -> MemberTable:
        if not self.done or self._offsets is None:
            raise self._corrupt(self.next_offset, "the shard ends here")
        starts, lengths = self._offsets[:-1], np.diff(self._offsets)
        count = len(starts)
        names, key_bytes = position_names(self._shard, count, EXTENSION)
        return MemberTable(
            names=names,
            kind=np.zeros(count, np.uint8),
            payload_start=starts,
            payload_bytes=lengths,
            range_start=starts,
            range_length=lengths,
            key_bytes=key_bytes,
            record_of=np.arange(count, dtype=np.int64),
            schema=self._schema,
        )

    def _read_count(self, view: memoryview, first: int) -> None:
        (count,) = struct.unpack_from("<I", view, first)
        if table_bytes(count) > self._size:
            raise self._corrupt(0, f"its table of {count:,} items is longer than the shard")
        self.next_offset = COUNT_BYTES
        self.window_bytes_min = table_bytes(count) - COUNT_BYTES

    def _read_table(self, table: bytes) -> None:
        offsets = offsets_of(self._shard, self._size, table, COUNT_BYTES + len(table))
        short = np.flatnonzero(np.diff(offsets) < max(4 * self._leaves, 1))
        if len(short):
            at = int(offsets[int(short[0])])
            raise self._corrupt(at, "an item is shorter than the sizes of its leaves")
        self._offsets = offsets
        self._want_sizes(offsets)

    def _want_sizes(self, offsets: Int64s) -> None:
        if not self._leaves or self._row == len(offsets) - 1:
            self.next_offset, self.window_bytes_min = self._size, 0
        else:
            self.next_offset, self.window_bytes_min = int(offsets[self._row]), 4 * self._leaves

    def _read_sizes(self, view: memoryview, base: int, offsets: Int64s) -> None:
        """Read the sizes of as many items as ``view`` has, within bounds."""
        starts = offsets[self._row : -1]
        last = int(np.searchsorted(starts, base + len(view) - 4 * self._leaves, side="right"))
        some = max(SIZES_AT_ONCE_MAX // max(self._leaves, 1), 1)
        starts = starts[: min(last, some, ROWS_AT_ONCE_MAX)]
        lengths = offsets[self._row + 1 : self._row + 1 + len(starts)] - starts
        places = (starts - base)[:, None] + np.arange(4 * self._leaves)
        data = np.ascontiguousarray(np.frombuffer(view, np.uint8)[places])
        sizes = data.view("<u4").astype(np.int64).reshape(len(starts), self._leaves)
        wrong = np.flatnonzero(4 * self._leaves + sizes.sum(axis=1) != lengths)
        if len(wrong):
            at = int(starts[int(wrong[0])])
            raise self._corrupt(at, "the sizes in an item do not add up to its length")
        self._row += len(starts)
        self._want_sizes(offsets)

    def _corrupt(self, offset: int, reason: str) -> CorruptShardError:
        return CorruptShardError(self._shard, offset, reason)
