"""Checks that a job that is ordered as another result is has a record for each key of it."""

from __future__ import annotations

import numpy as np

from dsort.errors import KeyMapError
from dsort.job.extraction import Extraction
from dsort.job.job import Job
from dsort.naming.names import readable
from dsort.order.like import Like
from dsort.scratch.requests import Sample


def refuse_missing(job: Job, extraction: Extraction, records: int) -> None:
    """``KeyMapError`` that names the first key of the other result that no record has.
    ``records``: how many the plan has. No two have one key: duplicates are refused before."""
    algorithm = job.pipeline.algorithm
    if not isinstance(algorithm, Like) or records == len(algorithm.known):
        return
    known = algorithm.known
    is_missing = np.ones(len(known), np.bool_)
    for node, shards in extraction.shard_locations().by_node():
        for sample in job.runtime.ask(node, Sample(extraction.stage.name, shards, len(known))):
            is_missing[algorithm.places_of(sample.sort)] = False
    missing = np.flatnonzero(is_missing)
    place = int(missing[0])
    raise KeyMapError(
        f"no input of job {job.job_id} has record {readable(known.key_at(place))} of shard "
        f"{known.shard_of(place)} of {known.result}"
        + f", and {len(missing) - 1:,} more"
        * (len(missing) > 1),
        hint="add the records to the inputs, or name a result that has none but these",
    )
