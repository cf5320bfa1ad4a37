"""Finds the first records of each class by their lots (a lot is a random number of a record).

Lots are counted on the nodes in steps that get narrower, for all classes at once, so that no memory
grows with the records. Records with the same lot are decided by their positions.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dsort.data.columns import Int64s, UInt64s
from dsort.job.extraction import Extraction
from dsort.job.job import Job
from dsort.scratch.requests import Draws, LotSteps
from dsort.transforms.outputs import POSITION_BITS, Borders

_STEPS_BITS = 20
"""So many bits number the counters that are used at a time, for all borders together."""
_STEP_BITS_MAX = 16


class Selection(Struct):
    """One selection among the records of a survey. ``draws``: the class, lot and position of each
    record; ``lot_bits``: the length of a lot in bits."""

    job: Job
    survey: Extraction
    draws: Draws
    classes: UInt64s
    lot_bits: int

    def borders(self, before: Int64s, totals: Int64s) -> Borders:
        """The first record after the first ``before`` records of each class, for each border.
        ``before``: shape ``(classes, borders)``; ``totals``: how many records each class has, shape
        ``(classes,)``."""
        lot = np.zeros(before.shape, np.uint64)
        position = np.zeros(before.shape, np.uint64)
        lot[before >= totals[:, None]] = np.uint64((1 << self.lot_bits) - 1)
        position[before >= totals[:, None]] = np.uint64((1 << 64) - 1)
        open_ = np.argwhere((before > 0) & (before < totals[:, None]))
        wanted = before[open_[:, 0], open_[:, 1]]
        low, rest = self._narrowed(open_, wanted, None, self.lot_bits)
        lot[open_[:, 0], open_[:, 1]] = low
        open_, low, rest = open_[rest > 0], low[rest > 0], rest[rest > 0]
        if len(open_):  # several records have the lot of the border
            found = self._narrowed(open_, rest, low, POSITION_BITS)[0]
            position[open_[:, 0], open_[:, 1]] = found
        return Borders(self.classes, lot, position)

    def _narrowed(
        self, open_: Int64s, wanted: Int64s, tied: UInt64s | None, number_bits: int
    ) -> tuple[UInt64s, Int64s]:
        """(the smallest number that ``wanted`` lots are below (or positions, of records with the
        lots ``tied``), how many of the records with that number are still wanted), for each
        border."""
        low, rest = np.zeros(len(open_), np.uint64), wanted.copy()
        left, shift = np.arange(len(open_)), number_bits
        while len(left):
            if not shift:
                if tied is None:
                    break  # ties: how many of them are wanted is in ``rest``
                raise AssertionError("two records are at one position")
            bits = min(max(_STEPS_BITS - len(left).bit_length(), 1), _STEP_BITS_MAX, shift)
            shift -= bits
            own = None if tied is None else tied[left]
            counts = self._counts(open_[left], low[left], shift, bits, own)
            reached = np.cumsum(counts, axis=1)
            step = (reached < rest[left, None]).sum(axis=1)
            rows = np.arange(len(left))
            assert (step < 1 << bits).all(), "fewer records than were counted"
            is_even = reached[rows, step] == rest[left]
            low[left] += step.astype(np.uint64) << np.uint64(shift)
            rest[left] -= reached[rows, step] - counts[rows, step]
            done = left[is_even]
            low[done] += np.uint64(1 << shift)
            rest[done] = 0
            left = left[~is_even]
        return low, rest

    def _counts(
        self, open_: Int64s, low: UInt64s, shift: int, bits: int, tied: UInt64s | None
    ) -> Int64s:
        searched = np.full((len(self.classes), int(open_[:, 1].max()) + 1), -1, np.int32)
        searched[open_[:, 0], open_[:, 1]] = np.arange(len(open_))
        total: NDArray[np.int64] = np.zeros((len(open_), 1 << bits), np.int64)
        for node, shards in self.survey.shard_locations().by_node():
            request = LotSteps(
                self.draws.on(shards), self.classes, searched, low, shift, bits, tied
            )
            total += self.job.runtime.ask(node, request)
        return total
