"""The gate of ``benchmarks/gate.py``: what it says of ratios."""

from __future__ import annotations

import random
from math import inf

import pytest

from benchmarks.gate import upper_bound


@pytest.mark.parametrize(("pairs", "rank"), [(10, 8), (20, 14), (4, 4)])
def test_the_bound_of_a_median_is_one_of_the_ratios(pairs: int, rank: int) -> None:
    ratios = [1 + number / 100 for number in range(pairs)]
    random.Random(pairs).shuffle(ratios)
    assert upper_bound(ratios) == sorted(ratios)[rank - 1]


def test_too_few_pairs_bound_nothing() -> None:
    assert upper_bound([0.9, 0.9, 0.9]) == inf


def test_the_bound_is_over_the_median_as_often_as_it_says() -> None:
    rng = random.Random(26)
    over = sum(upper_bound([rng.gauss(1, 0.1) for _ in range(10)]) >= 1 for _ in range(2000))
    assert over >= 0.9 * 2000
