"""Entries of members travel packed by record, and come out in the order of the output shard."""

from __future__ import annotations

import numpy as np

from tests.support.internals import (
    BytesColumn,
    PlacedEntries,
    entries_bytes,
    packed_entries,
    placed_entries,
)


def test_entries_come_out_in_the_order_of_the_records_with_their_members_places() -> None:
    entries = BytesColumn.of([b"a", b"bb", b"", b"dddd"])
    stored = np.array([10, 20, 30, 40])
    rows, offsets = np.array([0, 2, 3, 1]), np.array([0, 2, 3, 4])  # records: a "", dddd, bb
    packed = packed_entries(entries, stored, rows, offsets)
    members = np.diff(offsets).astype(np.int32)
    assert entries_bytes(packed, members).tolist() == [1, 4, 2]

    order = np.array([2, 0, 1])
    record_bytes = np.array([40, 40, 20])
    placed = placed_entries(packed.take(order), members[order], record_bytes[[2, 0, 1]], 1000)
    assert list(placed) == [(1000, b"bb"), (1020, b"a"), (1030, b""), (1060, b"dddd")]


def test_entries_of_one_length_of_records_of_one_member_are_packed_alike() -> None:
    entries = BytesColumn.of([b"aa", b"bb", b"cc"])
    rows, offsets = np.array([2, 0, 1]), np.arange(4)
    packed = packed_entries(entries, np.array([10, 20, 30]), rows, offsets)
    one = np.ones(3, np.int32)
    placed = placed_entries(packed, one, np.array([30, 10, 20]), 100)
    assert list(placed) == [(100, b"cc"), (130, b"aa"), (140, b"bb")]


def test_placed_entries_of_several_pieces_are_read_as_one_sequence() -> None:
    parts = [PlacedEntries.of([(0, b"a"), (5, b"b")]), PlacedEntries.of([]), PlacedEntries.of([])]
    parts.append(PlacedEntries.of([(9, b"c")]))
    joined = PlacedEntries.concat(parts)
    assert joined[-1] == (9, b"c")
    assert joined[1:] == [(5, b"b"), (9, b"c")]
    assert list(PlacedEntries.concat([])) == []


def test_long_rows_of_a_column_are_taken_as_short_ones_are() -> None:
    values = [bytes([number]) * (number * 3) for number in range(100)]
    column, rows = BytesColumn.of(values), np.array([99, 0, 50, 50, 1])
    assert column.take(rows).tolist() == [values[row] for row in rows]
    assert column.take(rows[:0]).tolist() == []
