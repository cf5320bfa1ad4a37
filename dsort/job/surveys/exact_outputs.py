"""Decides which records go to which output if outputs, or outputs in classes, have exact numbers.

A pass over the inputs (the stage ``drawn``) makes an index with the class of each record and its
lot, a random number. Each output gets a whole number of records of each class, in the order of
their lots. ``Selection`` finds the lot of the record with which the next output begins.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from msgspec.structs import replace

from dsort.data.columns import Int64s, UInt64s
from dsort.errors import TransformError
from dsort.job.duplicates import settle_quietly
from dsort.job.extraction import Extraction
from dsort.job.job import Fact, Facts, Job
from dsort.job.surveys.survey import Selection, Survey
from dsort.scratch.columns import ColumnFile
from dsort.scratch.requests import DrawnClasses, IndexDraws, added_counts, borders_bytes, borders_of
from dsort.transforms.outputs import BORDERS_MAX, LOT_BITS, Borders, Division, shares_in_classes
from dsort.workers.tasks import Stage

BORDERS_FILE = "borders.col"


class ExactOutputs(Survey[None]):
    """The shared file of where each output begins in each class."""

    def fact(self) -> Fact[None]:
        outputs = len(self.job.pipeline.division.names)

        def check(data: bytes, what: str) -> Borders:
            return borders_of(ColumnFile(data, what), what, outputs)

        return Fact("borders.json", None, checks={BORDERS_FILE: check})

    def search(self, known: Facts) -> None:
        borders = self.read(Stage("drawn", left_out=known.left_out), known, self._found)
        self.job.attempt.retain_on_nodes(BORDERS_FILE, borders_bytes(borders))

    def facts(self, known: Facts, value: None) -> Facts:
        return replace(known, borders=BORDERS_FILE)

    def _found(self, survey: Extraction) -> Borders:
        job, division = self.job, self.job.pipeline.division
        draws = IndexDraws(survey.stage.name, settle_quietly(job, survey))
        classes, totals = _classes(job, division, survey, draws)
        weights = [Fraction(str(each)) for each in division.fractions]
        shares = shares_in_classes(totals.tolist(), weights, exact=division.exact)
        before = np.cumsum(np.array(shares, np.int64).reshape(-1, len(weights)), axis=1)[:, :-1]
        return Selection(job, survey, draws, classes, LOT_BITS).borders(before, totals)


def _classes(
    job: Job, division: Division, survey: Extraction, draws: IndexDraws
) -> tuple[UInt64s, Int64s]:
    """All classes, and how many records each has."""
    known, counts = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    for node, shards in survey.shard_locations().by_node():
        found = job.runtime.ask(node, DrawnClasses(draws.on(shards)))
        known, counts = added_counts((known, counts), found)
        if len(known) * (len(division.names) - 1) > BORDERS_MAX:
            most = BORDERS_MAX // (len(division.names) - 1)
            raise TransformError(
                f"stratify: there are more than {most:,} classes",
                hint="stratify by a value that has fewer different values",
            )
    return known, counts
