"""Matching: which output record is which input record, and what is left over on either side."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from tests.support.internals import (
    InputTable,
    Int64s,
    RecordRows,
    UInt64s,
    later_duplicates,
    match_records,
    occurrences,
    sort_out,
)


def column(values: Sequence[int]) -> UInt64s:
    return np.array(values, np.uint64)


def digests(values: Sequence[int]) -> UInt64s:
    """A digest for each value, the same for the same value."""
    return np.array([(value * 7 + 1, value) for value in values], np.uint64).reshape(-1, 2)


def table(keys: Sequence[int], contents: Sequence[int], dropped: Sequence[int] = ()) -> InputTable:
    expected = np.ones(len(keys), np.bool_)
    expected[list(dropped)] = False
    return InputTable(
        shards=("in.tar",),
        rows=RecordRows(np.array([0, len(keys)])),
        key_hash=column(keys),
        digests=digests(contents),
        members=np.ones(len(keys), np.int32),
        group=np.zeros(len(keys), np.int32),
        expected=expected,
    )


def matches(inputs: InputTable, found: UInt64s, order: Sequence[int] = ()) -> Int64s:
    rows = np.array(order or range(len(inputs)), np.int64)
    return match_records(inputs, found, rows, np.zeros(len(found), np.int32))


def test_a_shuffled_copy_matches_row_by_row(rng: random.Random) -> None:
    contents = list(range(500))
    order = rng.sample(contents, len(contents))
    inputs = table(contents, contents)
    source = matches(inputs, digests(order))
    assert source.tolist() == order
    left = sort_out(inputs, column(order), digests(order), source)
    assert not any(len(getattr(left, name)) for name in left.__slots__)


def test_equal_records_are_each_matched_once(rng: random.Random) -> None:
    contents = [rng.randrange(20) for _ in range(300)]
    found = [rng.randrange(20) for _ in range(300)]
    inputs = table(contents, contents)
    source = matches(inputs, digests(found)).tolist()
    matched = [row for row in source if row >= 0]
    assert len(matched) == len(set(matched)) == (Counter(contents) & Counter(found)).total()
    assert all(contents[row] == found[at] for at, row in enumerate(source) if row >= 0)
    for content in set(contents):
        rows = [row for at, row in enumerate(source) if row >= 0 and found[at] == content]
        assert rows == sorted(rows)


def test_equal_records_are_matched_in_the_order_of_a_shuffle() -> None:
    inputs = table([1, 2, 1], [5, 6, 5])
    assert matches(inputs, digests([5, 6, 5]), [2, 1, 0]).tolist() == [2, 1, 0]


@pytest.mark.parametrize("rows", [0, 3])
def test_nothing_matches_nothing(rows: int) -> None:
    contents = list(range(rows))
    assert matches(table([], []), digests(contents)).tolist() == [-1] * rows
    assert matches(table(contents, contents), digests([])).tolist() == []


@pytest.mark.parametrize(
    ("keys", "contents", "expected"),
    [
        ([1, 2], [1, 2], {"missing": [2]}),
        ([1, 2, 3, 3], [1, 2, 3, 3], {"doubled": [3]}),
        ([1, 2, 30], [1, 2, 30], {"missing": [2], "foreign": [2]}),
        ([1, 2, 3], [1, 2, 9], {"changed": [2], "changed_from": [2]}),
        ([1, 2, 3, 3], [1, 2, 8, 9], {"split": [2, 3]}),
        ([1, 2, 3, 3], [1, 2, 3, 9], {"foreign": [3]}),
        ([1, 2, 3, 4], [1, 2, 3, 4], {"dropped": [3]}),
        ([], [], {"missing": [0, 1, 2]}),
    ],
)
def test_what_is_left_over_is_distinguished(
    keys: list[int], contents: list[int], expected: dict[str, list[int]]
) -> None:
    inputs = table([1, 2, 3, 4], [1, 2, 3, 4], dropped=[3])
    source = matches(inputs, digests(contents))
    left = sort_out(inputs, column(keys), digests(contents), source)
    found = {name: getattr(left, name).tolist() for name in left.__slots__}
    assert {name: rows for name, rows in found.items() if rows} == expected


def test_changed_records_of_one_key_have_a_partner_each() -> None:
    inputs = table([5, 5, 6, 5], [1, 2, 3, 4])
    source = matches(inputs, digests([11, 3, 12]))
    left = sort_out(inputs, column([5, 6, 5]), digests([11, 3, 12]), source)
    assert (left.changed.tolist(), left.changed_from.tolist()) == ([0, 2], [0, 1])
    assert left.missing.tolist() == [3]


def test_later_duplicates_are_counted_in_row_order(rng: random.Random) -> None:
    keys = [rng.randrange(40) for _ in range(200)]
    seen: Counter[int] = Counter()
    wanted = []
    for row, key in enumerate(keys):
        if seen[key]:
            wanted.append((row, seen[key]))
        seen[key] += 1
    rows, nth = later_duplicates(column(keys))
    assert list(zip(rows.tolist(), nth.tolist(), strict=True)) == wanted
    assert occurrences(column([3, 3, 4, 7, 7, 7])).tolist() == [0, 1, 0, 0, 1, 2]


def test_keys_that_several_records_have_are_known_with_what_they_hold() -> None:
    inputs = table([5, 6, 5, 7, 7], [1, 2, 3, 4, 5], dropped=[4])
    assert inputs.repeated.tolist() == [5]
    assert inputs.of_key(5) == {1: {(8, 1), (22, 3)}}
    assert inputs.of_key(6) == {1: {(15, 2)}}
    assert inputs.of_key(8) == {}
    assert inputs.has(digests([1, 9, 5, 4])).tolist() == [True, False, False, True]
    assert table([], []).has(digests([1])).tolist() == [False]
