"""Estimates, from the plan of a job, the bytes that the job moves and its requests to stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from dsort.data.columns import Int64s
from dsort.job.create import RUNS_A_WORKER
from dsort.job.job import Job
from dsort.job.plan import Plan
from dsort.job.setup.worker_setup import output_limits
from dsort.moves.header_reads import HOP_BYTES
from dsort.moves.range import FAR_READ_BYTES_MAX
from dsort.moves.spill import RECORD_BYTES_MIN as READ_ALONE_BYTES_MIN
from dsort.results.report import Forecast, PlanEstimate, PlannedShard
from dsort.storage.request_counts import (
    requests_of_doubts,
    requests_of_lookups,
    requests_of_reads,
    requests_of_uploads,
)
from dsort.storage.routed import BucketPlace, bucket_named, input_of, place_of

HEADER_READ_BYTES = 4096
"""Bytes read of each member to find its header, if headers are far apart."""
VIEW_RECORD_BYTES = 24
"""The most bytes that a view takes for a shuffled record of 100 KB in a tar."""
OWN_REQUESTS = Counter(get=1, head=12, list=9, put=12, create=1, part=1, complete=1, delete=4)
"""Requests of every job to the store of its outputs: for lease, journal, manifest, and clean-up."""
INPUT_REQUESTS = Counter(head=2, list=1)
"""Requests to find a bucket of inputs, and the manifests in it."""


def forecast_of(job: Job, plan: Plan) -> Forecast:
    """The forecast for ``job``, from its ``plan`` and from the extraction before the plan."""
    moved, requests = Counter[str](), Counter[str]()
    _add_inputs(job, plan, moved, requests)
    _add_spill(job, plan, moved)
    _add_outputs(job, plan, moved, requests)
    names = (name for name in PlanEstimate.__struct_fields__ if name != "requests")
    estimate = PlanEstimate(**{name: moved[name] for name in names}, requests=dict(requests))
    return Forecast(
        shards=tuple(
            PlannedShard(name, shard.records, shard.payload_bytes, shard.file_bytes)
            for shard, name in zip(plan.shards, plan.names, strict=True)
        ),
        move_reason=job.found.movement.reason,
        memory_bytes=job.found.movement.sizes.needed_bytes,
        scratch_bytes=job.found.movement.sizes.scratch_bytes,
        readers=plan.readers(job.pipeline.output_names),
        estimate=estimate,
    )


def _add_inputs(job: Job, plan: Plan, moved: Counter[str], total_requests: Counter[str]) -> None:
    """Add the reads of inputs: once for each pass over them; under ``range`` once more, for
    payload. Data that one pass reads twice stays in the page cache."""
    way, passes = job.found.movement.way, _passes(job)
    if job.pipeline.reading.makes_shards:  # shards are made of files of this machine
        moved["disk_read_bytes"] += sum(shard.size_bytes for shard in job.inputs) * passes
        return
    names = [place.name for place in job.buckets.input_places]
    inputs = ((input_of(shard.name, names), shard.size_bytes) for shard in job.inputs)
    for place, sizes in _sizes_by_place(job.buckets.input_places, inputs):
        total = int(sizes.sum())
        if place.ref.is_directory and way.keeps_mappings:
            moved["disk_read_bytes"] += total
        elif place.ref.is_directory and way.reads_ranges:
            headers = plan.members * HEADER_READ_BYTES if job.found.movement.hops else total
            payload = total if way.moves_payload else 0
            moved["disk_read_bytes"] += min(headers, total) * passes + payload
        elif place.ref.is_directory:
            moved["disk_read_bytes"] += total * passes
        else:
            _add_store_inputs(job, plan, moved, total_requests, place, sizes)


def _add_store_inputs(
    job: Job,
    plan: Plan,
    moved: Counter[str],
    total_requests: Counter[str],
    place: BucketPlace,
    sizes: Int64s,
) -> None:
    """Add the reads of inputs in a store; ``sizes``: of these inputs, in bytes."""
    passes, buffer_bytes, total = _passes(job), job.found.movement.buffer_bytes, int(sizes.sum())
    share = total / max(sum(shard.size_bytes for shard in job.inputs), 1)
    reads, read_bytes = requests_of_reads(sizes, place.limits, buffer_bytes=buffer_bytes), total
    if job.found.movement.hops:
        # An upper bound: small members are found with the bytes before them.
        reads = Counter(get=len(sizes) + round(plan.members * share))
        read_bytes = min(reads["get"] * HOP_BYTES, total)
    requests = Counter(INPUT_REQUESTS)
    for _ in range(passes):
        requests.update(reads)
    requests.update(requests_of_lookups(len(sizes)))  # named at first, checked at the end
    requests.update(requests_of_lookups(len(sizes)))
    read_bytes *= passes
    way = job.found.movement.way
    if way.reads_ranges and way.moves_payload:
        # An upper bound, too: one request can read several records that are neighbours before and
        # after.
        requests.update(get=round((plan.records + plan.stored_bytes // FAR_READ_BYTES_MAX) * share))
        read_bytes += total
    elif way.moves_payload:  # stored on disk, and read again from there without a request
        moved["disk_written_bytes"] += int(sizes[sizes > buffer_bytes].sum()) * passes
    moved["store_read_bytes"] += read_bytes
    total_requests.update(requests)


def _passes(job: Job) -> int:
    """How many times the inputs were read for the plan. The job reads them as many times."""
    total = sum(shard.size_bytes for shard in job.inputs)
    return max(round(job.reporter.state.phases["extract"].bytes_total / total), 1) if total else 1


def _add_spill(job: Job, plan: Plan, moved: Counter[str]) -> None:
    nodes = job.runtime.nodes()
    if not job.found.movement.way.spills:
        return
    if nodes > 1:  # each node has only its own part of a partition
        moved["exchanged_bytes"] += plan.stored_bytes * (nodes - 1) // nodes
    if job.found.movement.to_disk:
        moved["disk_written_bytes"] += plan.stored_bytes
        moved["disk_read_bytes"] += plan.stored_bytes
        if plan.stored_bytes < READ_ALONE_BYTES_MIN * plan.records:
            runs = min(job.found.movement.workers * RUNS_A_WORKER, len(plan.shards))
            twice = min(
                max(runs - 1, 0) / job.found.movement.partitions, 1.0
            )  # partitions that two runs share
            moved["disk_read_bytes"] += int(plan.stored_bytes * twice)


def _add_outputs(job: Job, plan: Plan, moved: Counter[str], total_requests: Counter[str]) -> None:
    whole = job.found.movement.way.moves_payload
    outputs = (
        (place_of(name)[0], shard.file_bytes if whole else shard.records * VIEW_RECORD_BYTES)
        for name, shard in zip(plan.names, plan.shards, strict=True)
    )
    for place, sizes in _sizes_by_place(job.buckets.output_places, outputs):
        total = int(sizes.sum())
        if place.ref.is_directory:
            moved["disk_written_bytes"] += total
            continue
        limits = output_limits(job, place.ref, workers=job.found.movement.workers)
        requests = requests_of_uploads(sizes, limits)
        requests.update(requests_of_lookups(len(sizes)))
        # A plan makes no request that would write, so the most is counted unless a store is known
        # to publish a name by one request.
        bucket = bucket_named(job.buckets.outputs, place.name)
        if not getattr(bucket, "surely_heeds_conditions", False):
            requests.update(requests_of_doubts(len(sizes)))
        if not place.name:
            requests.update(OWN_REQUESTS)
        moved["store_written_bytes"] += total
        total_requests.update(requests)


def _sizes_by_place(
    places: Sequence[BucketPlace], found: Iterable[tuple[str, int]]
) -> Iterator[tuple[BucketPlace, Int64s]]:
    """Each bucket with the sizes of the objects in it."""
    sizes: dict[str, list[int]] = {place.name: [] for place in places}
    for name, size in found:
        sizes[name].append(size)
    for place in places:
        yield place, np.array(sizes[place.name], np.int64)
