"""The byte ranges of records in their source, and new names that are written over these bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dsort.data.columns import (
    Bools,
    BytesColumn,
    Int64s,
    UInt8s,
    are_all_rows,
    are_row_numbers,
    cut_rows,
    numbers_at,
    offsets_of,
    row_numbers,
    rows_of_runs,
    run_sums,
)
from dsort.data.members import MemberTable
from dsort.data.row_bytes import column_of, side_by_side

Rows = NDArray[np.integer]


class NewNames(Struct, frozen=True, eq=False):
    """Names that are written over the names in the headers of members, by record. An object without
    names fits any number of records.

    Record ``i`` has the names ``offsets[i]:offsets[i + 1]``; ``at``, shape ``(m,)``, is the offset
    in the record of the block that contains the name (see ``Overwriting``). Records keep their
    lengths and their payload.
    """

    offsets: Int64s
    at: Int64s
    names: BytesColumn

    def __len__(self) -> int:
        return len(self.at)

    def take(self, rows: NDArray[np.integer]) -> NewNames:
        """The names of the records ``rows`` in that order."""
        if not len(self):
            return self
        picked, offsets = rows_of_runs(self.offsets[:-1][rows], np.diff(self.offsets)[rows])
        return NewNames(offsets, self.at[picked], self.names.take(picked))

    def run(self, start: int, stop: int) -> NewNames:
        """The names of the records ``start:stop``; arrays are views."""
        if not len(self):
            return self
        first, last = int(self.offsets[start]), int(self.offsets[stop])
        offsets = self.offsets[start : stop + 1] - first
        return NewNames(offsets, self.at[first:last], self.names.run(first, last))

    @staticmethod
    def concat(parts: Sequence[tuple[NewNames, int]]) -> NewNames:
        """The names of the records of all parts. ``parts``: names, with the number of their
        records."""
        counts = [
            np.diff(names.offsets) if len(names) else np.zeros(records, np.int64)
            for names, records in parts
        ]
        return NewNames(
            offsets_of(np.concatenate(counts)),
            np.concatenate([names.at for names, _ in parts]),
            BytesColumn.concat([names.names for names, _ in parts]),
        )


NO_NEW_NAMES: Final = NewNames(np.zeros(1, np.int64), np.zeros(0, np.int64), BytesColumn.empty(0))


class Segments(Struct, frozen=True, eq=False):
    """The byte ranges of each record: rows ``offsets[i]:offsets[i + 1]`` of ``start``/``length``.

    A negative start ``-1 - p`` means bytes of ``literals`` from byte ``p`` on, not of the source:
    headers that replace the source's. ``offsets`` has shape ``(n + 1,)``. ``names`` are written
    over these bytes.
    """

    offsets: Int64s
    start: Int64s
    length: Int64s
    literals: UInt8s
    names: NewNames = NO_NEW_NAMES

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def are_single(self) -> bool:
        """Whether record ``i`` is just segment ``i``, for all records."""
        count = len(self.offsets) - 1
        return len(self.start) == count and are_all_rows(self.offsets, count + 1)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The columns as named arrays, for a file. Single segments need no offsets."""
        found: dict[str, NDArray[Any]] = {
            ".start": self.start,
            ".length": self.length,
            ".literals": self.literals,
        }
        if not self.are_single():
            found[".offsets"] = self.offsets
        if len(self.names):
            texts = self.names.names
            found |= {".name_offsets": self.names.offsets, ".name_at": self.names.at}
            found |= {".names.offsets": texts.offsets, ".names.blob": texts.blob}
        return found

    def take(self, rows: Rows, *, numbers: Callable[[Any], Any] | None = None) -> Segments:
        """The segments of ``rows`` in that order. ``numbers``: a function that takes the same rows
        from an array."""
        names = self.names.take(rows)
        if self.are_single():
            pair = self.start, self.length
            start, length = (numbers(x) if numbers else numbers_at(x, rows) for x in pair)
            return Segments(row_numbers(len(rows) + 1), start, length, self.literals, names)
        picked, offsets = rows_of_runs(self.offsets[:-1][rows], np.diff(self.offsets)[rows])
        return Segments(offsets, self.start[picked], self.length[picked], self.literals, names)

    def run(self, start: int, stop: int) -> Segments:
        """The segments of rows ``start:stop``; arrays are views."""
        first, last = int(self.offsets[start]), int(self.offsets[stop])
        offsets = self.offsets[start : stop + 1]
        return Segments(
            offsets - first if first else offsets,
            self.start[first:last],
            self.length[first:last],
            self.literals,
            self.names.run(start, stop),
        )

    def extents(self) -> tuple[Int64s, Int64s]:
        """For each record, its first byte in the source and the byte after its last, without
        literals; shapes ``(n,)``."""
        if not len(self):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        real = self.start >= 0
        first = np.where(real, self.start, np.iinfo(np.int64).max)
        end = np.where(real, self.start + self.length, 0)
        low = np.minimum.reduceat(first, self.offsets[:-1])
        high = np.maximum.reduceat(end, self.offsets[:-1])
        # A record of literals alone has no place: it gets 0 and 0.
        return np.minimum(low, high), high

    def trimmed(self) -> Segments:
        """The same segments, without the literals that they do not use."""
        if not len(self.literals):
            return self
        rows = np.flatnonzero(self.start < 0)
        lengths = self.length[rows]
        if int(lengths.sum()) >= len(self.literals):
            return self
        own = cut_rows(self.literals, -1 - self.start[rows], lengths)
        start = self.start.copy()
        start[rows] = -1 - own.offsets[:-1]
        return Segments(self.offsets, start, self.length, own.blob, self.names)

    @staticmethod
    def concat(
        parts: Sequence[Segments],
        *,
        numbers: Callable[[list[Int64s]], Int64s] = np.concatenate,
    ) -> Segments:
        """The rows of all parts, with new places of their literals. ``numbers``: a function that
        joins arrays."""
        offsets, starts, base, literal_base = [np.zeros(1, np.int64)], [], 0, 0
        for part in parts:
            offsets.append(part.offsets[1:] + base)
            base += int(part.offsets[-1])
            shifted = part.start
            if literal_base and len(part.literals):
                shifted = np.where(shifted < 0, shifted - literal_base, shifted)
            starts.append(shifted)
            literal_base += len(part.literals)
        empty = np.zeros(0, np.int64)
        names = NO_NEW_NAMES
        if any(len(part.names) for part in parts):
            names = NewNames.concat([(part.names, len(part)) for part in parts])
        joined = np.concatenate(offsets)
        if parts and all(are_row_numbers(part.offsets) for part in parts):
            joined = row_numbers(len(joined))  # recognised by ``are_row_numbers``
        return Segments(
            joined,
            np.concatenate([empty, *starts]),
            numbers([part.length for part in parts]) if parts else empty,
            np.concatenate([np.zeros(0, np.uint8), *(part.literals for part in parts)]),
            names,
        )


def segments_of(members: MemberTable, rows: Int64s, member_offsets: Int64s) -> Segments:
    """The byte ranges of each record, adjacent ones joined: record ``i`` has the members in
    ``rows[member_offsets[i] : member_offsets[i + 1]]``."""
    start, length = members.range_start, members.range_length
    is_all, has_pieces = are_all_rows(rows, len(members)), bool(members.literals or members.tails)
    if not is_all:
        start, length = start[rows], length[rows]
    are_alone = len(member_offsets) == len(rows) + 1  # one member a record
    if are_alone and not has_pieces:
        return Segments(member_offsets, start, length, np.zeros(0, np.uint8))
    literals, tails = BytesColumn.empty(0), BytesColumn.empty(0)
    if has_pieces:
        literals = column_of(members.literals, len(members))
        tails = column_of(members.tails, len(members))
        if not is_all:  # the literals may be all payloads of a shard: no copy without need
            literals, tails = literals.take(rows), tails.take(rows)
    is_by_turns = are_alone and not members.tails and bool((literals.lengths > 0).all())
    if is_by_turns and bool((length > 0).all()):
        return _by_turns(literals, start, length)
    begins_record = np.zeros(len(rows), np.bool_)
    begins_record[member_offsets[:-1]] = True
    blob = np.zeros(0, np.uint8)
    if not has_pieces:
        follows = start[1:] == start[:-1] + length[:-1]
        if bool((follows | begins_record[1:]).all()):  # each record is in one piece
            first = member_offsets[:-1]
            each = np.arange(len(member_offsets))
            return Segments(each, start[first], run_sums(length, member_offsets), blob)
    else:
        start, length, begins_record, blob = _with_pieces(
            start, length, begins_record, literals, tails
        )
    begins = begins_record.copy()
    if len(start) > 1:
        joined = (start[1:] == start[:-1] + length[:-1]) & (start[1:] >= 0) & (start[:-1] >= 0)
        joined |= (start[1:] == start[:-1] - length[:-1]) & (start[1:] < 0) & (start[:-1] < 0)
        begins[1:] |= ~joined
    first = np.flatnonzero(begins)
    offsets = np.append(np.searchsorted(first, np.flatnonzero(begins_record)), len(first))
    return Segments(
        offsets.astype(np.int64), start[first], run_sums(length, np.append(first, len(start))), blob
    )


def _by_turns(literals: BytesColumn, start: Int64s, length: Int64s) -> Segments:
    """The segments of records with one member each, which is a literal and a range, as in most
    converted shards. A record takes 20 ns here, and 90 in ``_with_pieces``."""
    count = len(start)
    both = np.empty((2, count, 2), np.int64)
    np.subtract(-1, literals.offsets[:-1], out=both[0, :, 0])
    both[0, :, 1], both[1, :, 0], both[1, :, 1] = start, literals.lengths, length
    offsets = np.arange(0, 2 * count + 1, 2)
    return Segments(offsets, both[0].reshape(-1), both[1].reshape(-1), literals.blob)


def _with_pieces(
    start: Int64s,
    length: Int64s,
    begins_record: Bools,
    literals: BytesColumn,
    tails: BytesColumn,
) -> tuple[Int64s, Int64s, Bools, UInt8s]:
    """Insert a segment before each member with a literal, and behind each member with a tail; leave
    out empty ranges beside these. Columns have a row for each member."""
    has_literal, has_tail = literals.lengths > 0, tails.lengths > 0
    has_range = (length > 0) | ~(has_literal | has_tail)
    width = has_literal.astype(np.int64) + has_range + has_tail
    at = np.cumsum(width) - width  # the place of each member's first segment
    total = int(width.sum())
    new_start, new_length = np.zeros(total, np.int64), np.zeros(total, np.int64)
    new_begins = np.zeros(total, np.bool_)
    new_begins[at] = begins_record
    ranges = (at + has_literal)[has_range]
    new_start[ranges], new_length[ranges] = start[has_range], length[has_range]
    # A tail and the next literal are side by side, so that they can be joined.
    pieces = side_by_side([literals, tails], len(literals)) if has_tail.any() else literals
    places, starts = at[has_literal], pieces.offsets[:-1]
    new_start[places] = -1 - starts[has_literal]
    new_length[places] = literals.lengths[has_literal]
    places = (at + has_literal + has_range)[has_tail]
    new_start[places] = -1 - (starts + literals.lengths)[has_tail]
    new_length[places] = tails.lengths[has_tail]
    return new_start, new_length, new_begins, pieces.blob
