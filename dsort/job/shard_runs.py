"""Runs of small input shards, each of which is one task: see ``workers.run_extractor``.

For jobs that ask of a record no more than its key, in shards of this machine's files: what looks
into payload, or changes records, is done shard by shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsort.job.job import Job
from dsort.scratch.index import RUN_SHARDS_MAX

SMALL_BYTES = 4 << 20
RUN_BYTES = 32 << 20
TASKS_A_WORKER = 8
"""So many tasks each worker is to have, for the last ones to end at about the same time."""


def can_run(job: Job) -> bool:
    """Whether a job's input shards may be extracted in runs."""
    pipeline = job.pipeline
    more_than_keys = (
        pipeline.steps,
        pipeline.keymap is not None,
        job.input_checksums,
        pipeline.division,
        pipeline.join,
        pipeline.reading.makes_shards,
        pipeline.hashes_content,
        pipeline.compared is not None,
        pipeline.has_late_outputs,
    )
    return (
        job.movement.kind in ("map", "spill")
        and all(place.ref.is_directory for place in job.input_places)
        and {*pipeline.reading.containers} == {pipeline.carrier}
        and pipeline.carrier.hop_bytes > 0
        and pipeline.algorithm.joins
        and pipeline.algorithm.placement is None
        and not any(more_than_keys)
    )


def runs_of(
    sizes: Sequence[int], shards: Sequence[int], *, workers: int, buffer_bytes: int
) -> Iterator[Sequence[int]]:
    """``shards``, ascending, in runs of those that follow one another and are small; others one by
    one. ``sizes``: of all shards, in bytes."""
    most = min(RUN_SHARDS_MAX, len(shards) // (TASKS_A_WORKER * max(workers, 1)))
    room = min(RUN_BYTES, buffer_bytes)  # under spill, all of a run is in the buffer
    run: list[int] = []
    run_bytes = 0
    for shard in shards:
        follows = run and shard == run[-1] + 1 and sizes[shard] <= SMALL_BYTES
        if run and not (follows and len(run) < most and run_bytes + sizes[shard] <= room):
            yield run
            run, run_bytes = [], 0
        run.append(shard)
        run_bytes += sizes[shard]
        if sizes[shard] > SMALL_BYTES:
            yield run
            run, run_bytes = [], 0
    if run:
        yield run
