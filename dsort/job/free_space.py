"""Whether there is room for a job: for its outputs in their bucket, and for its scratch."""

from __future__ import annotations

from dsort.errors import StorageFullError
from dsort.job.job import Job
from dsort.scratch.requests import FreeBytes
from dsort.sizes import format_bytes

__all__ = ["check_free_space", "check_output_space"]


def check_free_space(job: Job, total_bytes: int, *, dry: bool) -> None:
    """``StorageFullError`` unless there is room for scratch, and for outputs as large as the
    inputs, which have ``total_bytes``."""
    if job.before is not None and (job.before.extracted or job.before.created):
        return  # part of it is taken by what is there already
    scratch_bytes = job.movement.scratch_bytes
    scratch_free = sum(free for free, _ in _free_scratch(job))
    if dry and not job.spec.measures_encoded:  # index files only
        scratch_bytes = total_bytes // 20 if job.movement.kind == "spill" else scratch_bytes
        _need(scratch_free, scratch_bytes, "scratch")
        return
    output_free = job.outputs_bucket.free_bytes() if not dry else None
    shares_disk = not dry and _shares_disk(job)
    if output_free is not None:
        needed = _outputs_bytes(job, total_bytes) + (scratch_bytes if shares_disk else 0)
        _need(output_free, needed, f"the output bucket {job.outputs_bucket.uri}")
    if not shares_disk:
        _need(scratch_free, scratch_bytes, "scratch")


def check_output_space(job: Job, total_bytes: int) -> None:
    """``StorageFullError`` unless there is room for ``total_bytes`` of outputs, as planned: hard
    links that are resolved make them larger than the inputs that room was checked for."""
    if job.before is not None or job.spec.output_codec is not None:
        return  # planned sizes are those before the codec
    free = job.outputs_bucket.free_bytes()
    expected = sum(shard.size_bytes for shard in job.inputs)
    if free is not None and total_bytes > expected:
        spilled = job.movement.scratch_bytes if _shares_disk(job) else 0  # goes as outputs come
        _need(free + spilled, total_bytes, f"the output bucket {job.outputs_bucket.uri}")


def _outputs_bytes(job: Job, total_bytes: int) -> int:
    """About how much the outputs come to, of inputs of ``total_bytes``."""
    encoded = job.movement.encoded_inputs
    if job.spec.output_codec is not None:
        return total_bytes if encoded else 0  # how much plain inputs shrink is not known
    return job.movement.payload_bytes if encoded else total_bytes


def _shares_disk(job: Job) -> bool:
    """Whether scratch and the outputs are on one file system."""
    scratch = _free_scratch(job)
    output = job.outputs_bucket.local_path("x")
    device = output.parent.stat().st_dev if output is not None else None
    return len(scratch) == 1 and scratch[0][1] == device


def _free_scratch(job: Job) -> list[tuple[int, int]]:
    """(bytes that are free, device) of each scratch node."""
    return [job.runtime.ask(node, FreeBytes()) for node in job.runtime.scratch_nodes()]


def _need(free: int, needed: int, where: str) -> None:
    if free < needed:
        raise StorageFullError(
            f"{where} has {format_bytes(free)} free, the job needs about {format_bytes(needed)}",
            hint="make room, or put scratch on another file system: --scratch",
        )
