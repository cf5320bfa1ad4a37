"""Whether there is room for a job: for its outputs in their bucket, and for its scratch."""

from __future__ import annotations

from fractions import Fraction

from dsort.errors import StorageFullError
from dsort.job.job import Job
from dsort.scratch.requests import FreeBytes
from dsort.sizes import format_bytes
from dsort.storage.routed import bucket_named, parted


def check_free_space(job: Job, total_bytes: int, *, dry: bool) -> None:
    """``StorageFullError`` unless there is room for scratch, and for outputs as large as the
    inputs, which have ``total_bytes``."""
    if job.attempt.before.extracted or job.attempt.before.created:
        return  # a part of the room is taken by existing files
    scratch_bytes = job.movement.sizes.scratch_bytes
    scratch_free = sum(free for free, _ in _free_scratch(job))
    if dry and not job.pipeline.measures_encoded:  # index files only
        scratch_bytes = total_bytes // 20 if job.movement.way.spills else scratch_bytes
        _need(scratch_free, scratch_bytes, "scratch")
        return
    shares_disk = not dry and _shares_disk(job)
    if not dry:
        beside = scratch_bytes if shares_disk else 0
        _need_for_outputs(job, _outputs_bytes(job, total_bytes), beside=beside)
    if not shares_disk:
        _need(scratch_free, scratch_bytes, "scratch")


def bytes_to_move(job: Job, total_bytes: int) -> int:
    """About how many bytes the records take that are output, for inputs of ``total_bytes``: never
    less than these, and the same if it is not known before a pass over the inputs."""
    there, mix = sum(shard.size_bytes for shard in job.inputs), job.pipeline.mix
    if mix is None or mix.is_counted or not there:
        return total_bytes
    pairs = zip(mix.names, mix.weights, strict=True)
    weights = {name: max(weight, Fraction(1)) for name, weight in pairs}
    weighed = sum(shard.size_bytes * weights[parted(shard.name)[0]] for shard in job.inputs)
    return int(total_bytes * weighed / there)


def check_output_space(job: Job, total_bytes: int) -> None:
    """``StorageFullError`` unless there is room for ``total_bytes`` of outputs, as planned. Hard
    links that are resolved make outputs larger than the inputs, for which room was checked."""
    if job.attempt.is_resumed or job.pipeline.encodes:
        return  # planned sizes are those before the codec
    expected = sum(shard.size_bytes for shard in job.inputs)
    if total_bytes > expected:
        # Spilled data is removed as outputs are written.
        spilled = job.movement.sizes.scratch_bytes if _shares_disk(job) else 0
        _need_for_outputs(job, total_bytes, beside=-spilled)


def _need_for_outputs(job: Job, needed: int, *, beside: int) -> None:
    """``StorageFullError`` unless each bucket has room for its share of ``needed``, as far as it is
    known, and the main bucket for ``beside`` bytes more."""
    division = job.pipeline.division
    shares = {place.name: 0.0 for place in job.buckets.output_places} if division else {"": 1.0}
    if division.fractions:
        for target, fraction in zip(job.pipeline.targets, division.fractions, strict=True):
            shares[target.place] += fraction
    elif len(shares) == 1:
        shares[""] = 1.0
    for place, share in shares.items():
        bucket = bucket_named(job.buckets.outputs, place)
        free = bucket.free_bytes()
        if free is not None:
            own = int(needed * share) + (0 if place else beside)
            _need(free, own, f"the output bucket {bucket.uri}")


def _outputs_bytes(job: Job, total_bytes: int) -> int:
    """About how many bytes the outputs take, for inputs of ``total_bytes``."""
    encoded = job.movement.sizes.encoded_inputs
    if job.pipeline.encodes:
        return total_bytes if encoded else 0  # how much plain inputs shrink is not known
    return job.movement.sizes.payload_bytes if encoded else total_bytes


def _shares_disk(job: Job) -> bool:
    """Whether scratch and the outputs are on one file system."""
    scratch = _free_scratch(job)
    output = job.buckets.outputs.local_path("x")
    device = output.parent.stat().st_dev if output is not None else None
    return len(scratch) == 1 and scratch[0][1] == device


def _free_scratch(job: Job) -> list[tuple[int, int]]:
    """(free bytes, device) of each scratch node."""
    return [job.runtime.ask(node, FreeBytes()) for node in job.runtime.scratch_nodes()]


def _need(free: int, needed: int, where: str) -> None:
    if free < needed:
        raise StorageFullError(
            f"{where} has {format_bytes(free)} free, the job needs about {format_bytes(needed)}",
            hint="make room, or put scratch on another file system: --scratch",
        )
