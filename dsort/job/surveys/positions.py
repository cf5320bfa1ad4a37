"""Counts the records that come to the steps that need numbers of records in input order.

The number of the first record of a shard is the count of the records in the shards before it.
Several steps need several passes only if the records that come to the second depend on those that
the first left.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from dsort.job.extraction import Extraction
from dsort.job.facts import Fact, Facts
from dsort.job.surveys.survey import Survey
from dsort.transforms.positions import InputPositions, readings_needed
from dsort.workers.tasks import Stage

_Records = Annotated[int, Meta(ge=0, lt=1 << 53)]


class Positions(Survey[InputPositions]):
    """The positions of the records that come to each step that needs them."""

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
