"""Partitions: hashed keys part by their top bits, other keys at splitters, ties by position."""

from __future__ import annotations

import numpy as np

from tests.support.internals import BytesColumn, Partitioning, SortKeys, Splitters, pick_splitters


def hashed(words: list[int]) -> SortKeys:
    return SortKeys(len(words), words=np.array(words, np.uint64))


def texts(values: list[bytes]) -> SortKeys:
    return SortKeys(len(values), text=BytesColumn.of(values))


def test_hashes_part_by_their_top_bits() -> None:
    keys = hashed([0, 2**62, 2**63 - 1, 2**63, 3 * 2**62, 2**64 - 1])
    rows = np.arange(6)
    assert Partitioning(4).assign(keys, 0, rows).tolist() == [0, 1, 1, 2, 3, 3]
    assert Partitioning(4, decreasing=True).assign(keys, 0, rows).tolist() == [3, 2, 2, 1, 0, 0]
    assert Partitioning(1).assign(keys, 0, rows).tolist() == [0] * 6


def test_random_hashes_fill_partitions_evenly() -> None:
    words = np.random.default_rng(5).integers(0, 2**64, 100_000, np.uint64)
    found = Partitioning(7).assign(SortKeys(len(words), words=words), 0, np.arange(len(words)))
    counts = np.bincount(found, minlength=7)
    assert counts.min() > 0.97 * len(words) / 7
    assert counts.max() < 1.03 * len(words) / 7


def test_a_partition_begins_with_its_splitter() -> None:
    splitters = Splitters(texts([b"c", b"f"]), np.array([1, 0]), np.array([5, 0]))
    partitioning = Partitioning(3, splitters=splitters)
    keys = texts([b"a", b"c", b"d", b"f", b"g"])
    # The first splitter is record 5 of shard 1: what equals it but comes before it stays below.
    assert partitioning.assign(keys, 0, np.arange(5)).tolist() == [0, 0, 1, 2, 2]
    assert partitioning.assign(keys, 1, np.array([4, 5, 6, 7, 8])).tolist() == [0, 1, 1, 2, 2]
    assert partitioning.assign(keys, 1, np.array([3, 4, 6, 7, 8])).tolist() == [0, 0, 1, 2, 2]
    assert partitioning.assign(keys, 2, np.arange(5)).tolist() == [0, 1, 1, 2, 2]
    same, shards = texts([b"c"] * 4), np.array([0, 1, 1, 2])
    assert partitioning.assign(same, shards, np.array([5, 4, 5, 0])).tolist() == [0, 0, 1, 1]


def test_equal_keys_part_by_position_alone() -> None:
    keys = SortKeys(10)
    shard, ordinal = np.zeros(10, np.int64), np.arange(10)
    weights = np.ones(10, np.int64)
    splitters = pick_splitters(keys, shard, ordinal, weights, 5, decreasing=False)
    found = Partitioning(5, splitters=splitters).assign(keys, 0, ordinal)
    assert found.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_weights_decide_where_partitions_end() -> None:
    keys = texts([b"a", b"b", b"c", b"d"])
    weights = np.array([1, 1, 1, 97], np.int64)
    zeros = np.zeros(4, np.int64)
    splitters = pick_splitters(keys, zeros, np.arange(4), weights, 2, decreasing=False)
    assert splitters.keys.text is not None
    assert splitters.keys.text.tolist() == [b"d"]


def test_few_records_need_few_splitters() -> None:
    empty = np.zeros(0, np.int64)
    assert pick_splitters(texts([]), empty, empty, empty, 8, decreasing=False).keys.count == 0
    one = np.zeros(1, np.int64)
    found = pick_splitters(texts([b"a"]), one, one, one + 9, 8, decreasing=False)
    assert found.keys.count <= 1
