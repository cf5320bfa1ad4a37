"""Which records of each shard come to the steps that ask for positions, by number."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from dsort.transforms.base import Step

__all__ = ["InputPositions", "readings_needed"]


def readings_needed(steps: Sequence[Step]) -> int:
    """How often inputs have to be read to count what comes to the steps that ask for positions."""
    needed, known = 0, False
    for step in steps:
        if step.needs_positions and not known:
            needed, known = needed + 1, True
        known = known and step.count_left(0, 0) is not None
    return needed


class InputPositions:
    """How many records of each shard come to each of ``steps`` that asks for positions, and the
    number of the first of them; as far as they were counted."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._asking = [at for at, step in enumerate(steps) if step.needs_positions]
        self._counts: list[Sequence[int]] = []
        self._firsts: list[Sequence[int]] = []

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to count."""
        return len(self._counts) == len(self._asking)

    def add(self, counts: Sequence[int]) -> None:
        """The next step that asks gets so many records of each shard. Takes in what follows for
        those after it."""
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
        """For each step that asks, as far as it is known: the number of the first record of a shard
        that comes to it."""
        return tuple(each[shard] for each in self._firsts)

    def counts(self, shard: int) -> tuple[int, ...]:
        """For each of them: how many records of a shard come to it."""
        return tuple(each[shard] for each in self._counts)

    def rows(self) -> list[list[int]]:
        """All that was counted, for :meth:`of`: the counts of each step."""
        return [list(each) for each in self._counts]

    @classmethod
    def of(cls, steps: Sequence[Step], rows: Sequence[Sequence[int]]) -> InputPositions:
        """What :meth:`rows` gave. ``ValueError`` if these steps cannot have it."""
        found = cls(steps)
        if len(rows) != len(found._asking):
            raise ValueError("there are other steps")
        for counts in rows:
            found._counts.append(counts)
            found._firsts.append([0, *accumulate(counts)][:-1])
        return found
