"""The join of the rows of a partition: which pieces make a record, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from dsort.errors import StorageError
from tests.support.internals import (
    BytesColumn,
    Joined,
    JoinedKind,
    JoinRule,
    LeftOut,
    Partitioning,
    SortKeys,
    check_left_out,
    columns_bytes,
    conflicts_in,
    join_order,
    join_rows,
    pick_splitters,
)

RULE = JoinRule(("a", "b", "c"), ("none", "none", "none"))


def sort_keys(keys: Sequence[bytes], words: Sequence[int] | None = None) -> SortKeys:
    column = None if words is None else np.array(words, np.uint64)
    return SortKeys(len(keys), words=column, text=BytesColumn.of(keys))


def join(keys: Sequence[bytes], inputs: Sequence[int], rule: JoinRule = RULE) -> Joined:
    order = join_order(sort_keys(keys), decreasing=False)
    return join_rows(rule, order, BytesColumn.of(keys), np.array(inputs, np.int32))


def records(joined: Joined) -> list[list[int]]:
    bounds = joined.record_offsets.tolist()
    return [joined.rows[a:b].tolist() for a, b in pairwise(bounds)]


def test_pieces_of_one_key_are_one_record_in_the_order_of_the_inputs() -> None:
    joined = join([b"y", b"x", b"x", b"y", b"x"], [0, 0, 1, 1, 2])
    assert records(joined) == [[1, 2, 4], [0, 3]]
    assert joined.found == ()


def test_two_keys_with_one_hash_stay_two_records() -> None:
    keys = [b"x", b"y", b"x", b"y", b"z"]
    order = join_order(sort_keys(keys, [7, 7, 7, 7, 3]), decreasing=False)
    joined = join_rows(RULE, order, BytesColumn.of(keys), np.array([0, 0, 1, 1, 1], np.int32))
    assert records(joined) == [[4], [0, 2], [1, 3]]


def test_equal_hashes_of_equal_keys_are_ordered_as_they_came() -> None:
    keys = [b"x", b"y", b"x", b"y"]
    order = join_order(sort_keys(keys, [9, 2, 9, 2]), decreasing=False)
    assert order.tolist() == [1, 3, 0, 2]


def test_a_second_record_of_an_input_with_one_key_is_no_part_of_the_record() -> None:
    joined = join([b"x", b"x", b"x", b"y"], [0, 1, 1, 1])
    assert records(joined) == [[0, 1], [3]]
    ((kind, number, rows),) = joined.found
    assert (kind, number, rows.tolist()) == (JoinedKind.DUPLICATE, -1, [2])


def test_records_that_an_input_lacks_are_told_or_left_out() -> None:
    keys, inputs = [b"x", b"y", b"x", b"z"], [0, 0, 1, 2]
    joined = join(keys, inputs, JoinRule(("a", "b", "c"), ("skip", "error", "none")))
    found = {kind: (number, rows.tolist()) for kind, number, rows in joined.found}
    assert found == {JoinedKind.UNMATCHED: (1, [1]), JoinedKind.LEFT_OUT: (-1, [3])}
    assert records(joined) == [[0, 2], [1]]


def test_what_is_left_out_lacks_nothing_else() -> None:
    joined = join([b"x"], [2], JoinRule(("a", "b", "c"), ("skip", "error", "none")))
    assert [kind for kind, *_ in joined.found] == [JoinedKind.LEFT_OUT]
    assert records(joined) == []


def test_nothing_is_joined_of_no_rows() -> None:
    joined = join([], [])
    assert records(joined) == []
    assert conflicts_in(joined, BytesColumn.of([])) == []


def test_members_of_one_extension_in_two_pieces_are_found_whatever_is_between() -> None:
    joined = join([b"x", b"x", b"x", b"y", b"y"], [0, 1, 2, 0, 1])
    lists = [b".jpg\0.cls\0", b".png\0", b".cls\0.jpg\0", b".a\0", b".a.b\0"]
    assert conflicts_in(joined, BytesColumn.of(lists)) == [(2, 0, b".cls\0.jpg")]


def test_splitters_between_keys_part_no_key() -> None:
    keys = sort_keys([b"m"] * 50 + [b"a"] * 5 + [b"z"] * 5)
    count, shards = keys.count, np.repeat([0, 1, 2], 20)
    ordinals = np.tile(np.arange(20), 3)
    weights = np.ones(count, np.int64)
    splitters = pick_splitters(
        keys, shards, ordinals, weights, 6, decreasing=False, between_keys=True
    )
    partitioning = Partitioning(6, splitters=splitters)
    partitions: dict[bytes, set[int]] = {}
    for shard in range(3):
        own = np.flatnonzero(shards == shard)
        found = partitioning.assign(keys.take(own), shard, ordinals[own])
        for row, partition in zip(own.tolist(), found.tolist(), strict=True):
            assert keys.text is not None
            partitions.setdefault(keys.text[row], set()).add(partition)
    assert all(len(each) == 1 for each in partitions.values())
    assert max(partitions[b"a"]) < max(partitions[b"m"]) <= max(partitions[b"z"])


def test_what_an_earlier_attempt_says_is_left_out_is_not_believed_blindly() -> None:
    def file(**changed: object) -> bytes:
        columns: dict[str, object] = {
            "position_shard": np.array([0, 2], np.int64),
            "ordinal": np.array([5, 1], np.int64),
            "nth": np.array([LeftOut.MEMBERS, LeftOut.RECORD], np.int64),
            "keys": BytesColumn.of([b".jpg", b""]),
        }
        return columns_bytes(columns | changed)  # type: ignore[arg-type]

    check_left_out(file(), "it", shards=3)
    wrong = [
        {"position_shard": np.array([0, 3], np.int64)},
        {"position_shard": np.array([2, 0], np.int64)},
        {"ordinal": np.array([5, -1], np.int64)},
        {"nth": np.array([0, 9], np.int64)},
        {"nth": np.array([0], np.int64)},
        {"keys": None},
    ]
    for changed in wrong:
        with pytest.raises(StorageError):
            check_left_out(file(**changed), "it", shards=3)
