"""One survey of a job: how often it reads all inputs, what it concludes, and what is kept of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from dsort.job.extraction import Extraction, retry_after_lost_scratch
from dsort.job.facts import Fact, Facts, Value
from dsort.job.job import Job
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
