"""Reads an MDS shard from windows on its bytes: the table, the columns, the sizes in each sample,
and the keys if they are requested.

MDS has no checksums. The only possible check is that offsets, sizes and columns agree; so the sizes
in each sample are read, 50 ns each.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dsort.containers.mds.columns import CONFIG_BYTES_MAX, NUMBER_TYPES, Columns
from dsort.containers.offset_table import COUNT_BYTES, SHARD_BYTES_MAX, offsets_of, table_bytes
from dsort.containers.positions import joined_names, position_names
from dsort.data.columns import Int64s, UInt8s
from dsort.data.members import MemberTable
from dsort.errors import ContentKeyError, CorruptShardError

__all__ = ["EXTENSION", "KEY_ENCODINGS", "MdsScanner", "number_text"]

EXTENSION = b".mds"
"""The extension of the one member of a record, after its key."""
KEY_ENCODINGS = ("str", "bytes", "str_int", *(n for n in NUMBER_TYPES if not n.startswith("float")))
KEY_BYTES_MAX = 1 << 16
ROWS_AT_ONCE_MAX = 1 << 16
SIZES_AT_ONCE_MAX = 1 << 18
"""The maximum number of sizes read at once. Each takes some 40 bytes while it is read, and there
may be thousands of columns."""


class MdsScanner:
    """See ``containers.base.Scanner``. ``key_column``: "" if records are numbered."""

    def __init__(self, shard: str, size_bytes: int, key_column: str = "") -> None:
        self._shard = shard
        self._size = size_bytes
        self._key_column = key_column
        self._step: Callable[[memoryview, int], bool] | None = self._read_count
        self._columns = Columns()
        self._offsets: Int64s = np.zeros(1, np.int64)
        self._row = 0
        self._key_ranges: list[Int64s] = []
        self._keys: list[bytes] = []
        self.next_offset = 0
        self.window_bytes_min = 0
        if size_bytes > SHARD_BYTES_MAX:
            raise self._corrupt(0, "it is longer than 4 GiB, which no MDS shard can be")
        self._want(0, COUNT_BYTES)

    @property
    def done(self) -> bool:
        return self._step is None

    def feed(self, window: memoryview | bytes | UInt8s, offset: int) -> None:
        view = memoryview(window).cast("B")  # type: ignore[arg-type]
        while self._step is not None:
            first = self.next_offset - offset
            if not 0 <= first <= len(view) - self.window_bytes_min:
                return
            if not self._step(view, offset):
                return

    def finish(self) -> MemberTable:
        if self._step is not None:
            raise self._corrupt(self.next_offset, "the shard ends here")
        count = len(self._offsets) - 1
        if self._key_column:
            names, key_bytes = joined_names(self._keys, EXTENSION)
        else:
            names, key_bytes = position_names(self._shard, count, EXTENSION)
        starts, lengths = self._offsets[:-1], np.diff(self._offsets)
        return MemberTable(
            names=names,
            kind=np.zeros(count, np.uint8),
            payload_start=starts,
            payload_bytes=lengths,
            range_start=starts,
            range_length=lengths,
            key_bytes=key_bytes,
            record_of=np.arange(count, dtype=np.int64),
            schema=self._columns.schema,
        )

    # -- steps: each takes the window from ``next_offset`` on; False: it needs another -------------

    def _read_count(self, view: memoryview, base: int) -> bool:
        (count,) = struct.unpack_from("<I", view, self.next_offset - base)
        if table_bytes(count) > self._size:
            raise self._corrupt(0, f"its table of {count:,} samples is longer than the shard")
        self._step = self._read_table
        self._want(COUNT_BYTES, table_bytes(count) - COUNT_BYTES)
        return True

    def _read_table(self, view: memoryview, base: int) -> bool:
        first = self.next_offset - base
        table = bytes(view[first : first + self.window_bytes_min])
        self._offsets = offsets_of(self._shard, self._size, table)
        config_bytes = int(self._offsets[0]) - COUNT_BYTES - len(table)
        if config_bytes > CONFIG_BYTES_MAX:
            raise self._corrupt(COUNT_BYTES, f"its config has more than {CONFIG_BYTES_MAX:,} bytes")
        self._step = self._read_config
        self._want(COUNT_BYTES + len(table), config_bytes)
        return True

    def _read_config(self, view: memoryview, base: int) -> bool:
        first = self.next_offset - base
        try:
            columns = Columns.of_config(bytes(view[first : first + self.window_bytes_min]))
        except ValueError as error:
            raise self._corrupt(self.next_offset, str(error)) from None
        self._columns = columns
        least = 4 * columns.variable + columns.fixed_bytes
        count = len(self._offsets) - 1
        if count and not columns.names:
            raise self._corrupt(self.next_offset, "it has samples, but no columns")
        if self._key_column:
            self._check_key_column(columns)
        short = np.flatnonzero(np.diff(self._offsets) < least)
        if len(short):
            at = int(self._offsets[int(short[0])])
            raise self._corrupt(at, "a sample is shorter than its columns")
        self._step = self._read_sizes
        self._want_sizes()
        return True

    def _check_key_column(self, columns: Columns) -> None:
        if self._key_column not in columns.names:
            raise ContentKeyError(
                f"shard {self._shard} has no column {self._key_column}",
                hint=f"key_field is one of {', '.join(columns.names)}; without it records are "
                "numbered",
            )
        encoding = columns.encodings[columns.names.index(self._key_column)]
        if encoding not in KEY_ENCODINGS:
            raise ContentKeyError(
                f"column {self._key_column} of shard {self._shard} is {encoding}, which is no key",
                hint=f"a key is one of {', '.join(KEY_ENCODINGS)}",
            )

    def _want_sizes(self) -> None:
        """Continue with the sizes of the next sample, if there is one."""
        count = len(self._offsets) - 1
        if self._row < count:
            self._want(int(self._offsets[self._row]), 4 * self._columns.variable)
        elif self._key_column and count:
            self._row = 0
            self._step = self._read_keys
            self._want_key()
        else:
            self._end()

    def _read_sizes(self, view: memoryview, base: int) -> bool:
        """Read the sizes of as many samples as ``view`` has, within bounds."""
        variable, row = self._columns.variable, self._row
        starts = self._offsets[row:-1]
        last = int(np.searchsorted(starts, base + len(view) - 4 * variable, side="right"))
        some = max(SIZES_AT_ONCE_MAX // max(variable, 1), 1)
        starts = starts[: min(last, some, ROWS_AT_ONCE_MAX)]
        lengths = self._offsets[row + 1 : row + 1 + len(starts)] - starts
        data = np.frombuffer(view, np.uint8)
        places = (starts - base)[:, None] + np.arange(4 * variable)
        sizes = np.ascontiguousarray(data[places]).view("<u4").astype(np.int64)
        sizes = sizes.reshape(len(starts), variable)
        total = 4 * variable + self._columns.fixed_bytes + sizes.sum(axis=1)
        wrong = np.flatnonzero(total != lengths)
        if len(wrong):
            at = int(starts[int(wrong[0])])
            text = "the sizes in a sample do not add up to its length"
            raise self._corrupt(at, text)
        if self._key_column:
            self._key_ranges.append(self._key_range(starts, sizes))
        self._row += len(starts)
        self._want_sizes()
        return True

    def _key_range(self, starts: Int64s, sizes: NDArray[np.int64]) -> Int64s:
        """(where the key of each sample begins, its length), shape (2, n)."""
        at = starts + 4 * self._columns.variable
        variable = 0
        for name, size in zip(self._columns.names, self._columns.sizes, strict=True):
            own = sizes[:, variable] if size is None else np.full(len(starts), size, np.int64)
            if name == self._key_column:
                return np.stack([at, own])
            at = at + own
            variable += size is None
        raise AssertionError(self._key_column)

    def _want_key(self) -> None:
        ranges = np.concatenate(self._key_ranges, axis=1)
        self._key_ranges = [ranges]
        wrong = np.flatnonzero((ranges[1] == 0) | (ranges[1] > KEY_BYTES_MAX))
        if len(wrong):
            raise ContentKeyError(
                f"sample {int(wrong[0])} of shard {self._shard} has no key in {self._key_column}, "
                f"or one of more than {KEY_BYTES_MAX:,} bytes",
                hint="choose another key_field, or leave it out: then records are numbered",
            )
        self._want(int(ranges[0, self._row]), int(ranges[1, self._row]))

    def _read_keys(self, view: memoryview, base: int) -> bool:
        starts, lengths = self._key_ranges[0]
        encoding = self._columns.encodings[self._columns.names.index(self._key_column)]
        ends = starts + lengths
        stop = int(np.searchsorted(ends, base + len(view), side="right"))
        row, self._row = self._row, stop
        pairs = zip(
            (starts[row:stop] - base).tolist(), (ends[row:stop] - base).tolist(), strict=True
        )
        keys = [bytes(view[first:last]) for first, last in pairs]
        if encoding in NUMBER_TYPES:
            keys = [number_text(encoding, key) for key in keys]
        self._keys += keys
        if stop == len(starts):
            self._end()
        else:
            self._want(int(starts[stop]), int(lengths[stop]))
        return True

    # -- where it stands ---------------------------------------------------------------------------

    def _want(self, offset: int, size_bytes: int) -> None:
        if offset + size_bytes > self._size:
            raise self._corrupt(min(offset, self._size), "the shard ends here")
        self.next_offset, self.window_bytes_min = offset, size_bytes

    def _end(self) -> None:
        self._step = None
        self.next_offset, self.window_bytes_min = self._size, 0

    def _corrupt(self, offset: int, reason: str) -> CorruptShardError:
        return CorruptShardError(self._shard, offset, reason)


def number_text(encoding: str, value: bytes) -> bytes:
    """The number in ``value`` as decimal text: the shortest text that is read as the same
    number."""
    number = np.frombuffer(value, NUMBER_TYPES[encoding])[0]
    return str(number).encode()
