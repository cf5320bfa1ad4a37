"""Duplicate keys: which records are the later ones, and what new keys they get."""

from __future__ import annotations

import numpy as np

from tests.support.internals import (
    STRAY_SALT,
    BytesColumn,
    find_duplicates,
    hash_keys,
    new_keys,
    repeated_hashes,
)


def found(keys: list[bytes], hashes: list[int] | None = None) -> list[tuple[int, int]]:
    key_hash = hash_keys(keys, len(keys)) if hashes is None else np.array(hashes, np.uint64)
    duplicates = find_duplicates(BytesColumn.of(keys), key_hash)
    assert len(duplicates) == len(duplicates.rows)
    return [*zip(duplicates.rows.tolist(), duplicates.nth.tolist(), strict=True)]


def renamed(keys: list[bytes], nth: list[int], taken: list[bytes]) -> list[bytes]:
    return new_keys(keys, np.array(nth), np.sort(hash_keys(taken, len(taken))))


def test_the_first_keeps_its_key() -> None:
    assert found([b"b", b"a", b"b", b"c", b"a", b"b"]) == [(2, 1), (4, 1), (5, 2)]
    assert found([b"a", b"b"]) == []
    assert found([]) == []


def test_keys_that_share_a_hash_are_no_duplicates() -> None:
    assert found([b"a", b"b", b"c"], [7, 7, 7]) == []
    assert found([b"a", b"b", b"a", b"b", b"a"], [7] * 5) == [(2, 1), (3, 1), (4, 2)]
    assert found([b"aa", b"a", b"aa"], [7, 7, 7]) == [(2, 1)]


def test_a_stray_is_no_record_of_the_same_name() -> None:
    assert found([b"a", b"a"], [7, 8]) == []
    # Not even while another key has the hash of one of them.
    assert found([b"a", b"a", b"x", b"a"], [7, 8, 7, 7]) == [(3, 1)]


def test_repeated_hashes_are_named_once() -> None:
    words = np.array([5, 3, 5, 2**64 - 1, 3, 5, 2**64 - 1, 0], np.uint64)
    assert repeated_hashes(words).tolist() == [3, 5, 2**64 - 1]
    assert repeated_hashes(words[:0]).tolist() == []


def test_new_keys_are_numbered() -> None:
    assert renamed([b"a", b"a", b"b"], [1, 2, 1], [b"a", b"b"]) == [b"a-1", b"a-2", b"b-1"]
    assert renamed([], [], []) == []


def test_numbers_that_are_taken_are_passed_over() -> None:
    assert renamed([b"a", b"a"], [1, 2], [b"a", b"a-1", b"a-2"]) == [b"a-3", b"a-4"]
    assert renamed([b"a", b"a-1"], [1, 1], [b"a", b"a-1"]) == [b"a-2", b"a-1-1"]


def test_names_of_strays_are_taken_as_well() -> None:
    stray = hash_keys([b"README-1"], 1) ^ STRAY_SALT
    taken = np.sort(np.concatenate([hash_keys([b"README"], 1) ^ STRAY_SALT, stray]))
    assert new_keys([b"README"], np.array([1]), taken) == [b"README-2"]
