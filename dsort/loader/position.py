"""The position of a loader in its stream, and the places that a rank reads in each step.

The records of all epochs, one epoch after the other, are cut into *steps*. A step has
``world_size * batch_size`` places that follow one another, and rank ``r`` reads those from
``r * batch_size`` on. So the progress of all ranks is one number, ``records_seen``, and any other
number of ranks can continue from there. The last records of an epoch, which do not fill a step, are
the *remainder*:

- ``drop_last``: left out;
- ``pad``: the step is filled up with the first records of the same epoch, which are marked;
- ``wrap``: the step is filled up with the first records of the next epoch, which then begins after
  them: so each record is read once an epoch, by one of the ranks.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from msgspec import Struct

from dsort.data.columns import Int64s

__all__ = ["Position", "Remainder", "Steps"]

Remainder = Literal["drop_last", "pad", "wrap"]


class Position(Struct, frozen=True):
    """How far a stream was read: ``records_seen`` records of ``epoch``, by all ranks together."""

    epoch: int
    records_seen: int


class Steps(Struct, frozen=True):
    """The steps of the rest of an epoch of ``records`` records, from ``begin`` on. ``batch_size``:
    samples of one rank and step."""

    records: int
    begin: Position
    rank: int
    world_size: int
    batch_size: int
    remainder: Remainder

    @property
    def global_batch(self) -> int:
        """The number of places of one step."""
        return self.world_size * self.batch_size

    @property
    def count(self) -> int:
        """The number of steps: the same for all ranks."""
        left = self.records - self.begin.records_seen
        if self.remainder == "drop_last":
            return left // self.global_batch
        return -(-left // self.global_batch)

    def places(self, first: int, stop: int, stride: int = 1) -> Int64s:
        """The places that this rank reads in the steps ``range(first, stop, stride)``, in order,
        shape ``(steps * batch_size,)``. Places from ``records`` on fill up the last step."""
        steps = np.arange(first, stop, stride, dtype=np.int64)
        begins = self.begin.records_seen + steps * self.global_batch + self.rank * self.batch_size
        return (begins[:, np.newaxis] + np.arange(self.batch_size)).reshape(-1)

    def after(self, steps: int) -> Position:
        """The position after ``steps`` steps."""
        seen = self.begin.records_seen + steps * self.global_batch
        if steps < self.count:
            return Position(self.begin.epoch, seen)
        if self.remainder == "wrap":
            return Position(self.begin.epoch + seen // self.records, seen % self.records)
        return Position(self.begin.epoch + 1, 0)
