"""The byte ranges of records in their shard, made of those of their members."""

from __future__ import annotations

import numpy as np

from dsort.data.columns import Bools, BytesColumn, Int64s, UInt8s, are_all_rows, run_sums
from dsort.data.members import MemberTable
from dsort.data.row_bytes import column_of, side_by_side
from dsort.data.segments import Segments


def segments_of(members: MemberTable, rows: Int64s, member_offsets: Int64s) -> Segments:
    """The byte ranges of each record, adjacent ones joined: record ``i`` has the members in
    ``rows[member_offsets[i] : member_offsets[i + 1]]``."""
    start, length = members.range_start, members.range_length
    if not are_all_rows(rows, len(members)):
        start, length = start[rows], length[rows]
    are_alone = len(member_offsets) == len(rows) + 1  # one member a record
    if are_alone and not (members.literals or members.tails):
        return Segments(member_offsets, start, length, np.zeros(0, np.uint8))
    if are_alone and not members.tails:
        literals = column_of(members.literals, len(members)).take(rows)
        if bool((literals.lengths > 0).all()) and bool((length > 0).all()):
            return _by_turns(literals, start, length)
    begins_record = np.zeros(len(rows), np.bool_)
    begins_record[member_offsets[:-1]] = True
    blob = np.zeros(0, np.uint8)
    if not (members.literals or members.tails):
        follows = start[1:] == start[:-1] + length[:-1]
        if bool((follows | begins_record[1:]).all()):  # each record is in one piece
            first = member_offsets[:-1]
            each = np.arange(len(member_offsets))
            return Segments(each, start[first], run_sums(length, member_offsets), blob)
    else:
        start, length, begins_record, blob = _with_pieces(
            start,
            length,
            begins_record,
            column_of(members.literals, len(members)).take(rows),
            column_of(members.tails, len(members)).take(rows),
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
    """The segments of records of one member, each a literal and a range, as most are that were
    converted: 20 ns each, where the general way takes 90."""
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
    """Put a segment of its own before each member that has a literal, and one behind each that has
    a tail; leave out ranges of no bytes beside them. Columns have a row for each member."""
    has_literal, has_tail = literals.lengths > 0, tails.lengths > 0
    has_range = (length > 0) | ~(has_literal | has_tail)
    width = has_literal.astype(np.int64) + has_range + has_tail
    at = np.cumsum(width) - width  # where each member's first segment goes
    total = int(width.sum())
    new_start, new_length = np.zeros(total, np.int64), np.zeros(total, np.int64)
    new_begins = np.zeros(total, np.bool_)
    new_begins[at] = begins_record
    ranges = (at + has_literal)[has_range]
    new_start[ranges], new_length[ranges] = start[has_range], length[has_range]
    # Side by side: a tail and the next literal are one.
    pieces = side_by_side([literals, tails], len(literals)) if has_tail.any() else literals
    places, starts = at[has_literal], pieces.offsets[:-1]
    new_start[places] = -1 - starts[has_literal]
    new_length[places] = literals.lengths[has_literal]
    places = (at + has_literal + has_range)[has_tail]
    new_start[places] = -1 - (starts + literals.lengths)[has_tail]
    new_length[places] = tails.lengths[has_tail]
    return new_start, new_length, new_begins, pieces.blob
