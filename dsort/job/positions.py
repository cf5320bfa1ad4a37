"""Counting what comes to the steps that ask for numbers of records in input order.

Each shard is read for that before any is extracted, as only what the shards before it hold says
which number its first record has. Several steps need several readings only where what comes to the
second depends on what the first one left, record by record.
"""

from __future__ import annotations

from typing import Any

from dsort.job.extract import Extraction, retry_after_lost_scratch
from dsort.job.facts import Fact, json_fact
from dsort.job.job import Job
from dsort.transforms.positions import InputPositions, readings_needed
from dsort.workers.tasks import Stage

POSITIONS_FILE = "positions.json"


def readings_left(job: Job) -> int:
    """How often all inputs are read to count, as far as no earlier attempt has done it."""
    needed = readings_needed(job.pipeline.steps)
    return needed if needed and job.retained(POSITIONS_FILE) is None else 0


def count_positions(job: Job) -> InputPositions | None:
    """What comes to each step that asks for positions; None if none does."""
    if not readings_needed(job.pipeline.steps):
        return None
    return _fact(job).settle(job, lambda: _counted(job))


def _counted(job: Job) -> InputPositions:
    positions = InputPositions(job.pipeline.steps)
    while not positions.is_complete:
        count = Extraction(job, Stage("count"), positions=positions)
        retry_after_lost_scratch(count, lambda: None)
        positions.add([count.done[shard].records for shard in range(len(job.inputs))])
    return positions


def _fact(job: Job) -> Fact[InputPositions]:
    def of_rows(rows: Any) -> InputPositions:
        for counts in rows:
            if len(counts) != len(job.inputs):
                raise ValueError("it is about other shards")
            if not all(type(count) is int and 0 <= count < 1 << 53 for count in counts):
                raise ValueError("it has a count that is none")
        return InputPositions.of(job.pipeline.steps, rows)

    return json_fact(POSITIONS_FILE, lambda positions: positions.rows(), of_rows)
