"""Finds the records that ``deduplicate`` leaves out, if inputs have weights: these count the other
records alone."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from dsort.job.duplicates import equal_records
from dsort.job.facts import Fact, Facts
from dsort.job.surveys.survey import Survey
from dsort.scratch.positions import check_sorted
from dsort.workers.tasks import Stage

EQUAL_FILE = "equal.col"


class EqualRecords(Survey[None]):
    """The shared file of the records that are equal to others."""

    def fact(self) -> Fact[None]:
        check = partial(check_sorted, shards=len(self.job.inputs))
        return Fact("equal.json", None, checks={EQUAL_FILE: check})

    def search(self, known: Facts) -> None:
        found = self.read(Stage("same"), known, lambda survey: equal_records(self.job, survey))
        self.job.attempt.retain_on_nodes(EQUAL_FILE, found)

    def facts(self, known: Facts, value: None) -> Facts:
        return replace(known, left_out=EQUAL_FILE)
