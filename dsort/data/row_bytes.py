"""Bytes for some rows of a table, stored in columns; and columns that join other columns row by
row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from dsort.data.columns import (
    Bools,
    BytesColumn,
    Int64s,
    UInt8s,
    equal_ranges,
    offsets_of,
    rows_at_each,
)


class RowBytes(Mapping[int, bytes]):
    """A mapping of rows to bytes, stored in a column. A conversion has a literal for every member;
    a dict of these would cost more than the rest of the conversion. The mapping leaves out empty
    rows."""

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
    """``values`` as a column of ``count`` rows; rows without a value are empty."""
    if isinstance(values, RowBytes):
        return values.column
    if not values:
        return BytesColumn.empty(count)
    rows = sorted(values)
    return spread(BytesColumn.of([values[row] for row in rows]), np.array(rows, np.int64), count)


def spread(column: BytesColumn, rows: Int64s, count: int) -> BytesColumn:
    """A column of ``count`` rows: row ``rows[i]`` is row ``i`` of ``column``; all others are
    empty."""
    if len(rows) == count and bool((rows == np.arange(count)).all()):
        return column
    lengths = np.zeros(count, np.int64)
    lengths[rows] = column.lengths
    offsets = offsets_of(lengths)
    if len(rows) < 2 or bool((np.diff(rows) > 0).all()):
        return BytesColumn(offsets, column.blob)
    return BytesColumn(offsets, column.take(np.argsort(rows, kind="stable")).blob)


def side_by_side(parts: Sequence[BytesColumn | bytes], count: int) -> BytesColumn:
    """A column of ``count`` rows: row ``i`` is row ``i`` of each of ``parts``, one after the other;
    a part of type bytes is in every row. Joining takes 1 to 2 ns a byte, and 5 ns if rows have too
    many different lengths for their number."""
    widths = [len(part) if isinstance(part, bytes) else part.width for part in parts]
    total = np.zeros(count, np.int64)
    for part in parts:
        total += len(part) if isinstance(part, bytes) else part.lengths
    offsets = offsets_of(total)
    out = np.empty(int(offsets[-1]), np.uint8)
    kinds = _kinds(parts, widths, count, len(out))
    for rows in kinds:
        row_bytes = int(total[rows[0]])
        if not row_bytes:
            continue
        table = _table(parts, rows, row_bytes)
        if len(rows) == count:
            return BytesColumn(offsets, table.reshape(-1))
        rows_at_each(out, row_bytes)[offsets[:-1][rows]] = table.view(f"V{row_bytes}")[:, 0]
    if kinds:
        return BytesColumn(offsets, out)
    at = offsets[:-1].copy()
    for part, width in zip(parts, widths, strict=True):
        if width is None:
            assert not isinstance(part, bytes)
            lengths = part.lengths
            shift = np.repeat(at - part.offsets[:-1], lengths)
            out[np.arange(len(shift)) + shift] = part.blob
            at += lengths
            continue
        own = _bytes_of(part, len(total), width)
        for byte in range(width):
            out[at + byte] = own[:, byte]
        at += width
    return BytesColumn(offsets, out)


def _kinds(
    parts: Sequence[BytesColumn | bytes],
    widths: Sequence[int | None],
    count: int,
    total_bytes: int,
) -> list[Int64s]:
    """The rows of each kind. Two rows are of one kind if each of ``parts`` has the same length in
    both. Empty if there are too many kinds for ``total_bytes``, the bytes of all rows."""
    if not count:
        return []
    kind, kinds = np.zeros(count, np.int64), 1
    for part, width in zip(parts, widths, strict=True):
        if width is None:
            assert not isinstance(part, bytes)
            lengths = part.lengths
            shortest = int(lengths.min())
            more = int(lengths.max()) - shortest + 1
            kinds *= more
            if kinds > _KINDS_POSSIBLE_MAX:
                return []
            kind = kind * more + (lengths - shortest)
    counts = np.bincount(kind)
    counts = counts[counts > 0]
    if len(counts) > max(_KINDS_MAX, total_bytes // _KIND_BYTES_MIN):
        return []
    order = np.argsort(kind.astype(np.uint16), kind="stable")
    return np.split(order, np.cumsum(counts)[:-1])


def _table(
    parts: Sequence[BytesColumn | bytes], rows: Int64s, row_bytes: int
) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """The ``rows`` of one kind, which have ``row_bytes`` each."""
    table = np.empty((len(rows), row_bytes), np.uint8)
    place = 0
    for part in parts:
        if isinstance(part, bytes):
            width = len(part)
            own = np.frombuffer(part, np.uint8)
        else:
            starts = part.offsets[:-1][rows]
            width = int(part.offsets[rows[0] + 1] - starts[0])
            if not width:
                continue
            if len(rows) == len(part):
                own = part.blob.reshape(-1, width)
            else:
                own = rows_at_each(part.blob, width)[starts].view(np.uint8).reshape(-1, width)
        table[:, place : place + width] = own
        place += width
    return table


def _bytes_of(
    part: BytesColumn | bytes, count: int, width: int
) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """The bytes of a part whose rows have equal lengths, shape ``(count, width)``."""
    if isinstance(part, bytes):
        return np.broadcast_to(np.frombuffer(part, np.uint8), (count, width))
    return part.blob.reshape(count, width)


def decimals(numbers: Int64s, digits_min: int) -> BytesColumn:
    """``numbers``, which are not negative, in decimal digits, with leading zeros up to
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
    offsets = offsets_of(lengths)
    if offsets[-1] == table.size:
        return BytesColumn(offsets, table.reshape(-1))
    return BytesColumn(offsets, table[np.arange(digits_max) >= (digits_max - lengths)[:, None]])


def row_by_row(
    alone: Bools, one: Callable[[int], bytes], many: Callable[[Int64s], BytesColumn]
) -> BytesColumn:
    """A column with as many rows as ``alone``, shape ``(n,)``. ``one`` makes each row for which
    ``alone`` is true; ``many`` makes all other rows in one call."""
    apart, others = np.flatnonzero(alone), np.flatnonzero(~alone)
    if not len(apart):
        return many(others)
    made = BytesColumn.of([one(row) for row in apart.tolist()])
    if len(others):
        made = BytesColumn.concat([made, many(others)])
    return made.take(np.argsort(np.concatenate([apart, others]), kind="stable"))


_KINDS_MAX, _KINDS_POSSIBLE_MAX = 16, 1 << 16
_KIND_BYTES_MIN = 4096
"""One kind takes about as long as copying this many bytes one by one."""
COMPARED_MAX = 64
"""The first values, up to this number, are each searched in all rows at once. Rows with other
values are looked up one by one."""


def distinct_rows(blob: UInt8s, starts: Int64s, lengths: Int64s) -> tuple[Int64s, Int64s]:
    """Return (the number of each row's value, the first row of each value), for the rows
    ``blob[starts[i] : starts[i] + lengths[i]]``. The function is meant for few different values,
    because each value takes 20 ns a row."""
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
