"""One survey of a job: how often it reads all inputs, its conclusions, and how they are kept. Two
small surveys are here, and the selection of records by their lots, which other surveys use.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Annotated, Generic, TypeVar

import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from dsort.data.columns import Int64s, UInt64s
from dsort.job.duplicates import equal_records
from dsort.job.extraction import Extraction, retry_after_lost_scratch
from dsort.job.job import Fact, Facts, Job, Value
from dsort.scratch.requests import Draws, LotSteps
from dsort.scratch.tables import check_sorted
from dsort.transforms.base import InputPositions, readings_needed
from dsort.transforms.outputs import POSITION_BITS, Borders
from dsort.workers.tasks import Stage

Found = TypeVar("Found")


class Survey(ABC, Generic[Value]):
    """Finds facts about all records, unless an earlier attempt has found them. ``readings``: how
    many passes over all inputs the survey makes."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._before = self.fact().before(job) if self.passes_needed() else ()
        self.readings = 0 if self._before else self.passes_needed()

    def find(self, known: Facts) -> Facts:
        """``known`` with what the survey finds, or an earlier attempt has found."""
        if not self.passes_needed():
            return self.facts(known, None)
        found = self._before or (self.fact().keep(self.job, self.search(known)),)
        return self.facts(known, found[0])

    def read(self, stage: Stage, known: Facts, conclude: Callable[[Extraction], Found]) -> Found:
        """Make a pass over all inputs, and return what follows from its index; again after each
        lost node."""
        survey = Extraction(self.job, stage, known)
        found = retry_after_lost_scratch(survey, lambda: conclude(survey))
        self.job.reporter.count_again()
        return found

    def passes_needed(self) -> int:
        """How many passes over all inputs the survey makes if no earlier attempt has found the
        facts."""
        return 1

    @abstractmethod
    def fact(self) -> Fact[Value]:
        """The form in which the found value is kept for later attempts."""

    @abstractmethod
    def search(self, known: Facts) -> Value:
        """Make the passes."""

    @abstractmethod
    def facts(self, known: Facts, value: Value | None) -> Facts:
        """``known`` with what was found; ``value``: None if no pass is needed."""


_Records = Annotated[int, Meta(ge=0, lt=1 << 53)]


class Positions(Survey[InputPositions]):
    """The positions of the records that come to each step that needs them. The number of the first
    record of a shard is the count of the records in the shards before it. Several steps need more
    than one pass only if a step depends on the records that an earlier step keeps.
    """

    def passes_needed(self) -> int:
        return readings_needed(self.job.pipeline.steps)

    def fact(self) -> Fact[InputPositions]:
        return Fact("positions.json", list[list[_Records]], self._of, InputPositions.rows)

    def search(self, known: Facts) -> InputPositions:
        positions = InputPositions(self.job.pipeline.steps)
        while not positions.is_complete:
            counted = self.read(Stage("count"), Facts(positions=positions), self._records)
            positions.add(counted)
        return positions

    def facts(self, known: Facts, value: InputPositions | None) -> Facts:
        return replace(known, positions=value or InputPositions())

    def _records(self, count: Extraction) -> list[int]:
        return [count.done[shard].records for shard in range(len(self.job.inputs))]

    def _of(self, rows: list[list[int]]) -> InputPositions:
        if any(len(counts) != len(self.job.inputs) for counts in rows):
            raise ValueError("it is about other shards")
        return InputPositions.of(self.job.pipeline.steps, rows)


EQUAL_FILE = "equal.col"


class EqualRecords(Survey[None]):
    """The shared file of the records that ``deduplicate`` leaves out. It is needed if inputs have
    weights, which count only the other records."""

    def fact(self) -> Fact[None]:
        check = partial(check_sorted, shards=len(self.job.inputs))
        return Fact("equal.json", None, checks={EQUAL_FILE: check})

    def search(self, known: Facts) -> None:
        found = self.read(Stage("same"), known, lambda survey: equal_records(self.job, survey))
        self.job.attempt.retain_on_nodes(EQUAL_FILE, found)

    def facts(self, known: Facts, value: None) -> Facts:
        return replace(known, left_out=EQUAL_FILE)


_STEPS_BITS = 20
"""At most 2 to the power of this many counters are used at a time, for all borders together."""
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
        low, rest = self._narrowed(open_, wanted, np.zeros(0, np.uint64), self.lot_bits)
        lot[open_[:, 0], open_[:, 1]] = low
        open_, low, rest = open_[rest > 0], low[rest > 0], rest[rest > 0]
        if len(open_):  # several records have the lot of the border
            found = self._narrowed(open_, rest, low, POSITION_BITS)[0]
            position[open_[:, 0], open_[:, 1]] = found
        return Borders(self.classes, lot, position)

    def _narrowed(
        self, open_: Int64s, wanted: Int64s, tied: UInt64s, number_bits: int
    ) -> tuple[UInt64s, Int64s]:
        """For each border: (the smallest number with ``wanted`` lots below it, how many more
        records with exactly that number are wanted). If ``tied`` has lots, only records with these
        lots count, and their positions take the place of lots."""
        low, rest = np.zeros(len(open_), np.uint64), wanted.copy()
        left, shift = np.arange(len(open_)), number_bits
        while len(left):
            if not shift:
                if not len(tied):
                    break  # ties: how many of them are wanted is in ``rest``
                raise AssertionError("two records are at one position")
            bits = min(max(_STEPS_BITS - len(left).bit_length(), 1), _STEP_BITS_MAX, shift)
            shift -= bits
            own = tied[left] if len(tied) else tied
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

    def _counts(self, open_: Int64s, low: UInt64s, shift: int, bits: int, tied: UInt64s) -> Int64s:
        searched = np.full((len(self.classes), int(open_[:, 1].max()) + 1), -1, np.int32)
        searched[open_[:, 0], open_[:, 1]] = np.arange(len(open_))
        total: NDArray[np.int64] = np.zeros((len(open_), 1 << bits), np.int64)
        for node, shards in self.survey.shard_locations().by_node():
            request = LotSteps(
                self.draws.on(shards), self.classes, searched, low, shift, bits, tied
            )
            total += self.job.runtime.ask(node, request)
        return total
