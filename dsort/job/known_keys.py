"""The keys that a result has before a job adds records to it.

They are read from its shards, some shards per task, and stay in the scratch of the nodes that read
them, sorted by their hashes. A search for duplicates requests the keys of a few hashes at a time;
so no memory grows with the result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from dsort.job.extraction import answers
from dsort.job.job import Job
from dsort.results.manifest import ManifestOutput
from dsort.workers.tasks import KnownKeysDone, KnownKeysTask

RECORDS_A_FILE: Final = 1 << 18
"""The most keys that a worker holds at a time, unless a single shard has more."""


def compares_known_keys(job: Job) -> bool:
    """Whether the keys of the job's records are compared with the keys of the result to which they
    are added. Keys of joined records, and keys that are only numbers, are never compared."""
    pipeline = job.pipeline
    if pipeline.join:
        return False
    is_asked = pipeline.drops_same_keys or pipeline.reading.policies.duplicate_keys != "ignore"
    return is_asked and not all(form.container.numbers_records for form in pipeline.outputs)


def known_keys(job: Job) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Where the keys of the result are: (node, numbers of its files). They are read once, and again
    if a node was lost. Empty if keys are not compared."""
    if not compares_known_keys(job):
        return ()
    nodes, there = job.found.known_keys, set(job.runtime.scratch_nodes())
    parts = _parts(job, job.found.base.outputs)
    containers = tuple(form.container for form in job.pipeline.outputs)
    tasks = (
        KnownKeysTask(number, part, containers)
        for number, part in enumerate(parts)
        if nodes.get(number) not in there
    )
    for _, done in answers(job, tasks, KnownKeysDone):
        nodes[done.number] = done.node
    numbers: dict[str, list[int]] = defaultdict(list)
    for number in range(len(parts)):
        numbers[nodes[number]].append(number)
    return tuple((node, tuple(own)) for node, own in sorted(numbers.items()))


def _parts(job: Job, outputs: Sequence[ManifestOutput]) -> list[tuple[tuple[str, int], ...]]:
    """(name, ordinal of its output) of each shard whose records have keys, divided into parts."""
    numbers_records = [form.container.numbers_records for form in job.pipeline.outputs]
    names = [target.name for target in job.pipeline.targets]
    parts: list[tuple[tuple[str, int], ...]] = []
    shards: list[tuple[str, int]] = []
    records = 0
    for shard in outputs:
        output = names.index(shard.output) if shard.output else 0
        if numbers_records[output]:
            continue
        if shards and records + shard.records > RECORDS_A_FILE:
            parts.append(tuple(shards))
            shards, records = [], 0
        shards.append((shard.name, output))
        records += shard.records
    return [*parts, tuple(shards)] if shards else parts
