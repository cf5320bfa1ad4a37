"""Places are a permutation of numbers, and each one is about as likely as any other."""

from __future__ import annotations

from collections import Counter
from math import factorial

import numpy as np
import pytest

from tests.support.internals import permuted


@pytest.mark.parametrize("total", [1, 2, 3, 4, 10, 97, 1000, 65_537])
def test_each_number_has_a_place_of_its_own(total: int) -> None:
    for seed in (0, 1, 2**64 - 1):
        seeds = np.full(total, seed, np.uint64)
        places = permuted(np.arange(total), np.full(total, total), seeds)
        assert np.array_equal(np.sort(places), np.arange(total))


def test_no_numbers_have_no_places() -> None:
    none = np.zeros(0, np.int64)
    assert len(permuted(none, none, none.astype(np.uint64))) == 0


@pytest.mark.parametrize("total", [2, 3, 5, 6])
def test_permutations_are_as_likely_as_each_other(total: int) -> None:
    drawn = 60_000
    seeds = np.repeat(np.arange(drawn).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15), total)
    numbers = np.tile(np.arange(total), drawn)
    rows = permuted(numbers, np.full(len(numbers), total), seeds).reshape(drawn, total)
    counts = Counter(map(tuple, rows.tolist()))
    expected = drawn / factorial(total)
    chi2 = sum((count - expected) ** 2 / expected for count in counts.values())
    assert len(counts) == factorial(total)
    degrees = factorial(total) - 1
    assert chi2 < degrees + 4 * (2 * degrees) ** 0.5 + 6
