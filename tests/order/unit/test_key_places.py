"""The places of keys in another result."""

from __future__ import annotations

import numpy as np
import pytest

from dsort.errors import InputError
from tests.support.internals import BytesColumn, KeyPlaces
from tests.support.refusals import raises


def test_keys_are_found_in_their_places_and_others_nowhere() -> None:
    places = KeyPlaces.of("it", [("a", [b"x", b"y"]), ("b", []), ("c", [b"z"])])
    found = places.lookup(BytesColumn.of([b"z", b"", b"y", b"x", b"xx"]))
    assert found.tolist() == [2, -1, 1, 0, -1]
    assert [places.shard_of(at) for at in range(3)] == ["a", "a", "c"]


def test_keys_of_one_hash_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def same(texts: BytesColumn) -> np.ndarray:
        return np.ones(len(texts), np.uint64)

    monkeypatch.setattr("dsort.order.like.hash_column", same)
    places = KeyPlaces.of("it", [("a", [b"x", b"y"]), ("b", [b"z"])])
    assert places.lookup(BytesColumn.of([b"z", b"w", b"x"])).tolist() == [2, -1, 0]
    with raises(InputError, "y"):
        KeyPlaces.of("it", [("a", [b"x", b"y"]), ("b", [b"z", b"y"])])


def test_a_result_without_records_has_no_places() -> None:
    places = KeyPlaces.of("it", [("a", [])])
    assert places.lookup(BytesColumn.of([b"x"])).tolist() == [-1]
