"""Counts the records that come to the steps that need numbers of records in input order.

The number of the first record of a shard is the count of the records in the shards before it.
Several steps need several passes only if the records that come to the second depend on those that
the first left.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from dsort.job.extraction import Extraction, retry_after_lost_scratch
from dsort.job.facts import Fact, Facts, json_fact
from dsort.job.job import Job
from dsort.transforms.positions import InputPositions, readings_needed
from dsort.workers.tasks import Stage

POSITIONS_FILE = "positions.json"
_Records = Annotated[int, Meta(ge=0, lt=1 << 53)]


def readings(job: Job) -> int:
    """How many passes over all inputs it needs that no earlier attempt has made."""
    needed = readings_needed(job.pipeline.steps)
    return needed if needed and job.attempt.retained(POSITIONS_FILE) is None else 0


def find(job: Job, facts: Facts) -> Facts:
    """``facts`` with the positions of the records that come to each step that needs them."""
    if not readings_needed(job.pipeline.steps):
        return facts
    return replace(facts, positions=_fact(job).settle(job, lambda: _counted(job)))


def _counted(job: Job) -> InputPositions:
    positions = InputPositions(job.pipeline.steps)
    while not positions.is_complete:
        count = Extraction(job, Stage("count"), Facts(positions=positions))
        retry_after_lost_scratch(count, lambda: None)
        positions.add([count.done[shard].records for shard in range(len(job.inputs))])
    return positions


def _fact(job: Job) -> Fact[InputPositions]:
    def of_rows(rows: list[list[_Records]]) -> InputPositions:
        if any(len(counts) != len(job.inputs) for counts in rows):
            raise ValueError("it is about other shards")
        return InputPositions.of(job.pipeline.steps, rows)

    return json_fact(POSITIONS_FILE, list[list[_Records]], InputPositions.rows, of_rows)
