"""A tally counts everything and names a few of each kind."""

from __future__ import annotations

import pytest

from tests.support.internals import SAMPLES_MAX, Tally


def test_counts_add_up_and_the_first_names_are_kept() -> None:
    tally = Tally()
    tally.add("b", 2, ["x", "y"])
    tally.add("a")
    tally.add("b", 3, ["z"])
    assert list(tally) == [("a", 1, ()), ("b", 5, ("x", "y", "z"))]


@pytest.mark.parametrize("count", [0, -1])
def test_nothing_is_no_kind(count: int) -> None:
    tally = Tally()
    tally.add("a", count, ["x"])
    assert list(tally) == []


def test_no_more_names_are_taken_than_are_kept() -> None:
    names = iter(map(str, range(100)))
    tally = Tally()
    tally.add("a", 100, names)
    assert tally.samples["a"] == [*map(str, range(SAMPLES_MAX))]
    assert int(next(names)) <= SAMPLES_MAX + 1


def test_merging_is_adding() -> None:
    first, second = Tally(), Tally()
    first.add("a", 1, ["x"])
    second.add("a", 20, map(str, range(20)))
    second.add("c", 2)
    first.merge(second)
    assert list(first) == [
        ("a", 21, ("x", *map(str, range(SAMPLES_MAX - 1)))),
        ("c", 2, ()),
    ]
    assert second.counts == {"a": 20, "c": 2}
