"""Order as verification sees it: values compared one by one agree with the columns that jobs are
sorted by."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.internals import (
    BytesColumn,
    SortKeys,
    SortValue,
    natural_keys,
    natural_value,
    order_rows,
)

KEYS = st.lists(st.from_regex(r"[a0-9\-/.z]{1,12}", fullmatch=True).map(str.encode), max_size=12)


@given(KEYS)
def test_natural_values_order_keys_as_natural_sort_keys_do(keys: list[bytes]) -> None:
    order = order_rows(SortKeys(len(keys), text=natural_keys(keys))).tolist()
    assert sorted(keys, key=natural_value) == [keys[row] for row in order]


def test_digits_count_as_numbers() -> None:
    keys = [b"a", b"a-", b"a0", b"a00", b"a1", b"a01", b"a9", b"a10", b"a10b", b"aa"]
    in_order = [b"a", b"a-", b"a0", b"a00", b"a01", b"a1", b"a9", b"a10", b"a10b", b"aa"]
    assert sorted(keys, key=natural_value) == in_order
    assert natural_value(b"1" * 9000) < natural_value(b"2" * 9000)


@given(st.lists(st.binary(max_size=4), max_size=8), st.booleans())
def test_nothing_that_was_sorted_comes_after_its_successor(
    keys: list[bytes], decreasing: bool
) -> None:
    order = order_rows(SortKeys(len(keys), text=BytesColumn.of(keys)), decreasing=decreasing)
    values = [SortValue(1, keys[row]) for row in order.tolist()]
    for before, after in pairwise(values):
        assert not before.comes_after(after, decreasing=decreasing)
        assert after.comes_after(before, decreasing=decreasing) == (before != after)


@pytest.mark.parametrize("decreasing", [False, True])
def test_ranks_come_before_values_whatever_the_direction(decreasing: bool) -> None:
    first, some, last = SortValue(0, None), SortValue(1, 5), SortValue(2, None)
    assert some.comes_after(first, decreasing=decreasing)
    assert last.comes_after(some, decreasing=decreasing)
    assert not first.comes_after(first, decreasing=decreasing)
    assert SortValue(1, 6).comes_after(some, decreasing=decreasing) is not decreasing
