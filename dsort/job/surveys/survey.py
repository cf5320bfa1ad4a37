"""One survey of a job: how often it reads all inputs, what it concludes, and what is kept of it.
The two small ones are here as well."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Annotated, Generic, TypeVar

from msgspec import Meta
from msgspec.structs import replace

from dsort.job.duplicates import equal_records
from dsort.job.extraction import Extraction, retry_after_lost_scratch
from dsort.job.job import Fact, Facts, Job, Value
from dsort.scratch.positions import check_sorted
from dsort.transforms.positions import InputPositions, readings_needed
from dsort.workers.tasks import Stage

Found = TypeVar("Found")


class Survey(ABC, Generic[Value]):
    """Finds something about all records, unless an earlier attempt has found it. ``readings``: how
    many passes over all inputs that takes."""

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
        return retry_after_lost_scratch(survey, lambda: conclude(survey))

    def passes_needed(self) -> int:
        """How many passes over all inputs it makes if nothing was found before."""
        return 1

    @abstractmethod
    def fact(self) -> Fact[Value]:
        """How later attempts keep what was found."""

    @abstractmethod
    def search(self, known: Facts) -> Value:
        """Make the passes."""

    @abstractmethod
    def facts(self, known: Facts, value: Value | None) -> Facts:
        """``known`` with what was found; ``value``: None if no pass is needed."""


_Records = Annotated[int, Meta(ge=0, lt=1 << 53)]


class Positions(Survey[InputPositions]):
    """The positions of the records that come to each step that needs them. The number of the first
    record of a shard is the count of the records in the shards before it. Several steps need
    several passes only if the records that come to the second depend on those that the first left.
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
    """The shared file of the records that ``deduplicate`` leaves out, if inputs have weights: these
    count the other records alone."""

    def fact(self) -> Fact[None]:
        check = partial(check_sorted, shards=len(self.job.inputs))
        return Fact("equal.json", None, checks={EQUAL_FILE: check})

    def search(self, known: Facts) -> None:
        found = self.read(Stage("same"), known, lambda survey: equal_records(self.job, survey))
        self.job.attempt.retain_on_nodes(EQUAL_FILE, found)

    def facts(self, known: Facts, value: None) -> Facts:
        return replace(known, left_out=EQUAL_FILE)
