"""Random jobs under random blows give what they give undisturbed, and leave nothing behind.

``CHAOS_SEEDS=200`` for more of them than usual (``make chaos``), ``CHAOS_SEED=7`` for one of them
again.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import seed as seed_of_the_run
from tests.support.chaos import Chaos
from tests.support.coordinators import Coordinators
from tests.support.surviving import assert_whole

SEEDS_USUALLY = 15


def seeds() -> list[int]:
    if "CHAOS_SEED" in os.environ:
        return [int(os.environ["CHAOS_SEED"])]
    count = int(os.environ.get("CHAOS_SEEDS", SEEDS_USUALLY))
    return random.Random(f"chaos of {seed_of_the_run()}").sample(range(1_000_000), count)


BLOWS_MIN = 10
"""So many have to be drawn before one can say how many of them miss."""


@pytest.fixture(scope="module")
def blows() -> Iterator[Counter[str]]:
    """How many blows there were to be, and were: a point that no code passes any more makes all of
    this easy. (Of three one misses: what is drawn may be a later passage than there is.)"""
    counted: Counter[str] = Counter()
    yield counted
    if counted["armed"] >= BLOWS_MIN:
        assert 4 * counted["struck"] >= counted["armed"], counted


@pytest.mark.sample(keep=3)
@pytest.mark.parametrize("number", range(len(seeds())))
def test_whatever_happens_the_result_is_the_same(
    number: int, begun: Coordinators, tmp_path: Path, blows: Counter[str]
) -> None:
    seed = seeds()[number]
    print(f"CHAOS_SEED={seed} python -m pytest tests/job/faults/test_chaos.py does this again")
    chaos = Chaos(seed, tmp_path, begun)
    try:
        expected = chaos.expected()
        chaos.run()
        assert_whole(tmp_path / "out", expected)
        assert list((tmp_path / "scratch").glob("*")) == []
    finally:
        print("\n".join(chaos.log))
        blows.update(armed=chaos.armed, struck=chaos.struck)
