"""Order: the cases that random keys rarely are."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from tests.support.internals import (
    BytesColumn,
    SortKeys,
    float_words,
    int_words,
    natural_keys,
    numbers_at,
    order_rows,
    stable_argsort,
)


def texts(values: list[bytes]) -> SortKeys:
    return SortKeys(len(values), text=BytesColumn.of(values))


def in_order(values: list[bytes], *, decreasing: bool = False) -> list[bytes]:
    return [values[row] for row in order_rows(texts(values), decreasing=decreasing).tolist()]


@pytest.mark.parametrize(
    "wanted",
    [
        [b"", b"\0", b"\0\0", b"\0a", b"a", b"a\0", b"a\0\0", b"a\0b", b"aa", b"b"],
        [b"\x7f", b"\x80", b"\xff", b"\xff\0", b"\xff\xff"],
        [b"prefix/a", b"prefix/aa", b"prefix/b"],
        [b"12345678", b"12345678\0", b"123456789", b"1234567890123456", b"1234567890123456\0"],
    ],
)
def test_byte_strings_come_in_byte_order(wanted: list[bytes]) -> None:
    for turned in (wanted, wanted[::-1], wanted[1::2] + wanted[::2]):
        assert in_order(turned) == wanted
        assert in_order(turned, decreasing=True) == wanted[::-1]


def test_ties_keep_their_order_in_both_directions() -> None:
    keys = texts([b"b", b"a", b"b", b"a", b"b"])
    assert order_rows(keys).tolist() == [1, 3, 0, 2, 4]
    assert order_rows(keys, decreasing=True).tolist() == [0, 2, 4, 1, 3]


def test_without_any_column_nothing_moves() -> None:
    assert order_rows(SortKeys(4)).tolist() == [0, 1, 2, 3]
    assert order_rows(SortKeys(4), decreasing=True).tolist() == [0, 1, 2, 3]
    assert order_rows(SortKeys(0)).tolist() == []
    assert order_rows(texts([])).tolist() == []
    assert order_rows(texts([b""])).tolist() == [0]


def test_numbers_at_their_borders() -> None:
    ints = np.array([2**63 - 1, -(2**63), 0, -1, 1], np.int64)
    assert order_rows(SortKeys(5, words=int_words(ints))).tolist() == [1, 3, 2, 4, 0]
    floats = np.array([np.inf, -np.inf, 0.0, -0.0, 5e-324, -5e-324, 1e308, -1e308])
    assert order_rows(SortKeys(8, words=float_words(floats))).tolist() == [1, 7, 5, 2, 3, 4, 6, 0]


def test_ranks_stay_where_they_are_when_the_order_turns_round() -> None:
    rank = np.array([1, 2, 1, 0], np.uint8)
    words = np.array([5, 9, 6, 9], np.uint64)
    keys = SortKeys(4, rank=rank, words=words)
    assert order_rows(keys).tolist() == [3, 0, 2, 1]
    assert order_rows(keys, decreasing=True).tolist() == [3, 2, 0, 1]


def test_digits_compare_as_numbers_of_any_length() -> None:
    wanted = [b"a", b"a0", b"a00", b"a1", b"a01", b"a2", b"a9", b"a10", b"a" + b"9" * 50,
              b"a1" + b"0" * 50, b"ab", b"b1"]  # fmt: skip
    keys = [*wanted[::2], *wanted[1::2]]
    order = order_rows(SortKeys(len(keys), text=natural_keys(keys))).tolist()
    found = [keys[row] for row in order]
    # Numbers that are equal go by their bytes.
    wanted[1:3], wanted[3:5] = sorted(wanted[1:3]), sorted(wanted[3:5])
    assert found == wanted


def test_one_long_key_does_not_make_all_of_them_long() -> None:
    values = [b"%07d" % number for number in range(20_000)]
    values[7] = b"0000007/" + b"long" * 5000
    tracemalloc.start()
    found = in_order(values)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == sorted(values)
    assert peak_bytes < 40 << 20  # 20 KB for each of 20,000 keys would be 400 MB


@pytest.mark.parametrize("count", [2, 100, 70_000])
def test_words_are_sorted_stably_wherever_they_differ(count: int) -> None:
    rng = np.random.default_rng(count)
    spread = rng.integers(0, 1 << 64, count, np.uint64)
    kinds = {
        "everywhere": spread,
        "some tie in their high bits": np.append(spread[1:], spread[0] ^ np.uint64(1)),
        "in 32 bits": spread >> np.uint64(32),
        "in 34 bits": spread >> np.uint64(30),
        "in few high bits": (spread >> np.uint64(50)) << np.uint64(40),
        "in low bits alone, beside one": np.append(spread[1:] >> np.uint64(40), spread[0]),
    }
    for name, words in kinds.items():
        assert stable_argsort(words).tolist() == np.argsort(words, kind="stable").tolist(), name


@pytest.mark.parametrize("largest", [255, 65_535, 65_536, (1 << 32) - 1, 1 << 32, 1 << 62])
def test_numbers_are_looked_up_whatever_their_size(largest: int) -> None:
    rng = np.random.default_rng(largest % 1000)
    column = rng.integers(0, largest + 1, 40_000)
    column[:2] = 0, largest
    rows = rng.permutation(len(column))
    for numbers in (column, column - 1, np.broadcast_to(np.int64(7), column.shape)):
        found = numbers_at(numbers, rows)
        assert found.dtype == np.int64
        assert np.array_equal(found, numbers[rows])
