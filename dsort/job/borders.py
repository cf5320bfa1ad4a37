"""Which records go to which output where their numbers are exact, in all or in each class.

It takes a pass over the inputs first (``Extraction`` of the stage ``drawn``): its index says the
class of each record and the lot that it draws. Shares of the classes are whole numbers; the record
at which the next output begins is found by counting lots in steps that get narrower, for all
classes at once, so that no memory grows with the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dsort.data.columns import Int64s, UInt64s
from dsort.data.copies import CopyRule
from dsort.data.shares import shares_in_classes
from dsort.errors import TransformError
from dsort.job.duplicates import settle_quietly
from dsort.job.extract import Extraction, retry_after_lost_scratch
from dsort.job.job import Job
from dsort.scratch.columns import ColumnFile
from dsort.scratch.lots import ClassCounts, LotSteps, borders_bytes, borders_of
from dsort.transforms.borders import BORDERS_MAX, LOT_BITS, Borders
from dsort.transforms.outputs import Division
from dsort.transforms.positions import InputPositions

__all__ = ["BORDERS_FILE", "choose_borders", "readings_for_borders"]

BORDERS_FILE = "borders.col"
_STEPS_BITS = 20
"""So many numbers are counted at a time, of all borders together."""
_STEP_BITS_MAX = 16


def readings_for_borders(job: Job) -> int:
    """How often all inputs are read to deal out exact numbers, as far as no earlier attempt has
    done it."""
    division = job.spec.division
    needed = division is not None and division.is_counted
    return int(needed and job.retained(BORDERS_FILE) is None)


def choose_borders(
    job: Job, copies: Sequence[CopyRule] | None, positions: InputPositions | None
) -> str:
    """The shared file that says where each output begins; "" where that needs no counting."""
    division = job.spec.division
    if division is None or not division.is_counted:
        return ""
    kept = job.retained(BORDERS_FILE)
    if kept is not None:
        what = f"{BORDERS_FILE} of job {job.job_id}"
        borders_of(ColumnFile(kept, what), what, len(division.names))
        job.runtime.share(BORDERS_FILE, kept)
        return BORDERS_FILE
    survey = Extraction(job, "drawn", copies=copies, positions=positions)
    found = retry_after_lost_scratch(survey, lambda: _found(job, division, survey))
    job.retain_on_nodes(BORDERS_FILE, borders_bytes(found))
    return BORDERS_FILE


def _found(job: Job, division: Division, survey: Extraction) -> Borders:
    drop = settle_quietly(job, survey)
    classes, totals = _classes(job, division, survey, drop)
    weights = [Fraction(str(each)) for each in division.fractions]
    shares = shares_in_classes(totals.tolist(), weights, exact=division.exact)
    before = np.cumsum(np.array(shares, np.int64).reshape(-1, len(weights)), axis=1)[:, :-1]
    search = _Search(job, survey, drop, classes)
    return search.borders(before, totals)


def _classes(job: Job, division: Division, survey: Extraction, drop: str) -> tuple[UInt64s, Int64s]:
    """All classes, and how many records each has."""
    known, counts = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    for node, shards in survey.shard_locations().by_node():
        found, own = job.runtime.ask(node, ClassCounts(survey.stage, shards, drop))
        known, inverse = np.unique(np.concatenate([known, found]), return_inverse=True)
        sums = np.zeros(len(known), np.int64)
        np.add.at(sums, inverse, np.concatenate([counts, own]))
        counts = sums
        if len(known) * (len(division.names) - 1) > BORDERS_MAX:
            most = BORDERS_MAX // (len(division.names) - 1)
            raise TransformError(
                f"stratify: there are more than {most:,} classes",
                hint="name something that fewer records differ in",
            )
    return known, counts


@dataclass(slots=True)
class _Search:
    """Finds the records at which the next output begins."""

    job: Job
    survey: Extraction
    drop: str
    classes: UInt64s

    def borders(self, before: Int64s, totals: Int64s) -> Borders:
        """``before``: how many records of each class go to the outputs before each border, shape
        ``(classes, borders)``."""
        lot = np.zeros(before.shape, np.uint64)
        position = np.zeros(before.shape, np.uint64)
        lot[before >= totals[:, None]] = np.uint64(1 << LOT_BITS)
        open_ = np.argwhere((before > 0) & (before < totals[:, None]))
        low, rest = self._narrowed(open_, before[open_[:, 0], open_[:, 1]], None)
        lot[open_[:, 0], open_[:, 1]] = low
        open_, low, rest = open_[rest > 0], low[rest > 0], rest[rest > 0]
        if len(open_):  # several records draw the lot at which the border is
            position[open_[:, 0], open_[:, 1]] = self._narrowed(open_, rest, low)[0]
        return Borders(self.classes, lot, position)

    def _narrowed(
        self, open_: Int64s, wanted: Int64s, tied: UInt64s | None
    ) -> tuple[UInt64s, Int64s]:
        """(the smallest number that so many lots (or positions, of the lots ``tied``) are below,
        how many more are wanted of those that are the number)."""
        low, rest = np.zeros(len(open_), np.uint64), wanted.copy()
        left, shift = np.arange(len(open_)), LOT_BITS
        while len(left):
            if not shift:
                if tied is None:
                    break  # ties: what is wanted of them is in ``rest``
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
                self.survey.stage,
                shards,
                self.drop,
                self.classes,
                searched,
                low,
                shift,
                bits,
                tied,
            )
            total += self.job.runtime.ask(node, request)
        return total
