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
    JoinRule,
    LeftOut,
    Partitioning,
    SortKeys,
    check_left_out,
    columns_bytes,
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


def test_two_keys_with_one_hash_stay_two_records() -> None:
    keys = [b"x", b"y", b"x", b"y", b"z"]
    order = join_order(sort_keys(keys, [7, 7, 7, 7, 3]), decreasing=False)
    joined = join_rows(RULE, order, BytesColumn.of(keys), np.array([0, 0, 1, 1, 1], np.int32))
    assert records(joined) == [[4], [0, 2], [1, 3]]


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
        left = {name: each for name, each in (columns | changed).items() if each is not None}
        return columns_bytes(left)  # type: ignore[arg-type]

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
