"""Counts the records of each shard that reach the steps that need positions (the numbers of records
in input order)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from dsort.transforms.base import Step

__all__ = ["InputPositions", "readings_needed"]


def readings_needed(steps: Sequence[Step]) -> int:
    """How many passes over the inputs it takes to count the records that reach the steps that need
    positions."""
    needed, known = 0, False
    for step in steps:
        if step.needs_positions and not known:
            needed, known = needed + 1, True
        known = known and step.count_left(0, 0) is not None
    return needed


class InputPositions:
    """For each of ``steps`` that needs positions: how many records of each shard reach it, and the
    number of the first of them; as far as they were counted."""

    def __init__(self, steps: Sequence[Step] = ()) -> None:
        self._steps = steps
        self._asking = [at for at, step in enumerate(steps) if step.needs_positions]
        self._counts: list[Sequence[int]] = []
        self._firsts: list[Sequence[int]] = []

    def __bool__(self) -> bool:
        return bool(self._asking)

    @property
    def is_complete(self) -> bool:
        """Whether all steps that need positions have their counts."""
        return len(self._counts) == len(self._asking)

    def add(self, counts: Sequence[int]) -> None:
        """Add the counts of the next step that needs positions: the number of records of each shard
        that reach it. Adds the counts of later steps as well where they follow from these."""
        at = self._asking[len(self._counts)]
        for number, step in enumerate(self._steps[at:], at):
            firsts: Sequence[int] = [0] * len(counts)
            if step.needs_positions:
                firsts = [0, *accumulate(counts)][:-1]
                self._counts.append(counts)
                self._firsts.append(firsts)
            assert number >= at
            pairs = zip(firsts, counts, strict=True)
            left = [step.count_left(first, count) for first, count in pairs]
            known = [count for count in left if count is not None]
            if len(known) < len(left) or step.count_left(0, 0) is None:
                return
            counts = known

    def firsts(self, shard: int) -> tuple[int, ...]:
        """For each step that needs positions, as far as it was counted: the number of the first
        record of a shard that reaches it."""
        return tuple(each[shard] for each in self._firsts)

    def counts(self, shard: int) -> tuple[int, ...]:
        """For each of these steps: how many records of a shard reach it."""
        return tuple(each[shard] for each in self._counts)

    def rows(self) -> list[list[int]]:
        """The counts of each step by shard, as :meth:`of` takes them."""
        return [list(each) for each in self._counts]

    @classmethod
    def of(cls, steps: Sequence[Step], rows: Sequence[Sequence[int]]) -> InputPositions:
        """Made from the result of :meth:`rows`. ``ValueError`` if it does not fit these steps."""
        found = cls(steps)
        if len(rows) != len(found._asking):
            raise ValueError("there are other steps")
        for counts in rows:
            found._counts.append(counts)
            found._firsts.append([0, *accumulate(counts)][:-1])
        return found
