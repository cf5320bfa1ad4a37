"""Bytes that some rows of a table have, as columns, and columns made of others side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from dsort.data.columns import Bools, BytesColumn, Int64s, UInt8s, equal_ranges

__all__ = [
    "RowBytes",
    "column_of",
    "decimals",
    "distinct_rows",
    "row_by_row",
    "side_by_side",
    "spread",
]


class RowBytes(Mapping[int, bytes]):
    """A mapping of rows to bytes that is a column: a conversion has a literal for every member, and
    a dict of them would cost more than the rest of it. Rows of no bytes are not in it."""

    __slots__ = ("column",)

    def __init__(self, column: BytesColumn) -> None:
        self.column = column

    def __getitem__(self, row: int) -> bytes:
        value = self.column[row] if 0 <= row < len(self.column) else b""
        if not value:
            raise KeyError(row)
        return value

    def __iter__(self) -> Iterator[int]:
        return iter(np.flatnonzero(self.column.lengths).tolist())

    def __len__(self) -> int:
        return int(np.count_nonzero(self.column.lengths))


def column_of(values: Mapping[int, bytes], count: int) -> BytesColumn:
    """The column of ``count`` rows that ``values`` are; rows without one are empty."""
    if isinstance(values, RowBytes):
        return values.column
    if not values:
        return BytesColumn.empty(count)
    rows = sorted(values)
    return spread(BytesColumn.of([values[row] for row in rows]), np.array(rows, np.int64), count)


def spread(column: BytesColumn, rows: Int64s, count: int) -> BytesColumn:
    """A column of ``count`` rows: row ``rows[i]`` is row ``i`` of ``column``, all others are
    empty."""
    if len(rows) == count and bool((rows == np.arange(count)).all()):
        return column
    lengths = np.zeros(count, np.int64)
    lengths[rows] = column.lengths
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if len(rows) < 2 or bool((np.diff(rows) > 0).all()):
        return BytesColumn(offsets, column.blob)
    return BytesColumn(offsets, column.take(np.argsort(rows, kind="stable")).blob)


def side_by_side(parts: Sequence[BytesColumn | bytes], count: int) -> BytesColumn:
    """A column of ``count`` rows: row ``i`` is row ``i`` of each of ``parts``, one after the other;
    bytes are in every row. About 1 ns a byte where all rows are as long, else 5 ns."""
    widths = [len(part) if isinstance(part, bytes) else part.width for part in parts]
    total = np.zeros(count, np.int64)
    for part in parts:
        total += len(part) if isinstance(part, bytes) else part.lengths
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(total, out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    row_bytes = int(total[0]) if count else 0
    table = out.reshape(count, row_bytes) if count and bool((total == row_bytes).all()) else None
    at = offsets[:-1].copy()
    place = 0  # of the part in a row, as long as all parts before it are as wide in every row
    for part, width in zip(parts, widths, strict=True):
        if width is None:
            assert not isinstance(part, bytes)
            lengths = part.lengths
            shift = np.repeat(at - part.offsets[:-1], lengths)
            out[np.arange(len(shift)) + shift] = part.blob
            at += lengths
            table = None
            continue
        own = _bytes_of(part, count, width)
        if table is not None:
            table[:, place : place + width] = own
        else:
            for byte in range(width):
                out[at + byte] = own[:, byte]
        place += width
        at += width
    return BytesColumn(offsets, out)


def _bytes_of(
    part: BytesColumn | bytes, count: int, width: int
) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """The bytes of a part of equal rows, shape ``(count, width)``."""
    if isinstance(part, bytes):
        return np.broadcast_to(np.frombuffer(part, np.uint8), (count, width))
    return part.blob.reshape(count, width)


def decimals(numbers: Int64s, digits_min: int) -> BytesColumn:
    """The column of ``numbers`` from 0 on in decimal digits, zeros before them up to
    ``digits_min``."""
    count = len(numbers)
    digits_max = max(digits_min, len(str(int(numbers.max()))) if count else 1, 1)
    table = np.empty((count, digits_max), np.uint8)
    rest = numbers
    for place in range(digits_max - 1, -1, -1):
        rest, digit = np.divmod(rest, 10)
        table[:, place] = digit + ord("0")
    lengths = np.full(count, digits_max, np.int64)
    if digits_max > max(digits_min, 1):
        powers = 10 ** np.arange(1, digits_max, dtype=np.int64)
        digits = np.searchsorted(powers, numbers, side="right") + 1
        lengths = np.maximum(digits, digits_min).astype(np.int64)
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] == table.size:
        return BytesColumn(offsets, table.reshape(-1))
    return BytesColumn(offsets, table[np.arange(digits_max) >= (digits_max - lengths)[:, None]])


def row_by_row(
    alone: Bools, one: Callable[[int], bytes], many: Callable[[Int64s], BytesColumn]
) -> BytesColumn:
    """The column of a row for each of ``alone``, shape ``(n,)``: where it is true, of ``one`` row
    after the other; all others are made together."""
    apart, others = np.flatnonzero(alone), np.flatnonzero(~alone)
    if not len(apart):
        return many(others)
    made = BytesColumn.of([one(row) for row in apart.tolist()])
    if len(others):
        made = BytesColumn.concat([made, many(others)])
    return made.take(np.argsort(np.concatenate([apart, others]), kind="stable"))


COMPARED_MAX = 64
"""So many values are looked for in all rows at once; the rest one by one."""


def distinct_rows(blob: UInt8s, starts: Int64s, lengths: Int64s) -> tuple[Int64s, Int64s]:
    """(which value each row has, the first row of each value), of the rows
    ``blob[starts[i] : starts[i] + lengths[i]]``. Made for few values: 20 ns a row for each."""
    value_of = np.full(len(starts), -1, np.int64)
    first: list[int] = []
    left = np.arange(len(starts))
    while len(left) and len(first) < COMPARED_MAX:
        row = int(left[0])
        same = lengths[left] == lengths[row]
        near = left[same]
        same[same] = equal_ranges(
            blob, starts[near], np.full_like(near, starts[row]), lengths[near]
        )
        value_of[left[same]] = len(first)
        first.append(row)
        left = left[~same]
    values: dict[bytes, int] = {}
    for row in left.tolist():
        value = blob[starts[row] : starts[row] + lengths[row]].tobytes()
        if value not in values:
            values[value] = len(first)
            first.append(row)
        value_of[row] = values[value]
    return value_of, np.array(first, np.int64)
