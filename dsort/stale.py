"""What is left of older results under the names of a new one: their higher numbers.

A result that is replaced by one of fewer shards leaves its last ones behind, and whoever reads all
that fits the template reads old and new together. They are told, and with ``remove_stale`` removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dsort.core.manifest import manifest_name
from dsort.early_checks import existing_names, some_of
from dsort.errors import InputError, ObjectNotFoundError, StorageError
from dsort.job import Job
from dsort.planning import Plan
from dsort.replacing import each_at_once
from dsort.storage.base import INTERNAL_PREFIX, Bucket, ObjectInfo
from dsort.verification.manifest_file import StoredManifest, parse_manifest

__all__ = ["look_for_stale", "remove_stale"]

MANIFESTS_READ_MAX = 100
MANIFEST_BYTES_MAX = 256 << 20


@dataclass(frozen=True, slots=True)
class _Stale:
    """Objects that fit the output templates, and that a job does not write. ``ours``: those of them
    that are the rest of results which the job replaces."""

    names: list[str]
    ours: list[str]


def look_for_stale(job: Job, plan: Plan | None) -> None:
    """Tell what will be left of older results beside this one, and note what is to be removed.

    Told once: before there is a ``plan`` if the number of shards is known by then.
    """
    if not job.overwrite:
        return
    count = job.spec.output_shard_count if job.keymap is None else None
    if plan is None and count is not None:
        stale = _find(job, set(job.names.some(0, 0, count)), [count])
    elif plan is not None and count is None:
        used = [0] * len(job.names.templates)
        for shard in plan.shards:
            used[shard.group] = max(used[shard.group], shard.number + 1)
        stale = _find(job, set(plan.names), used)
    else:
        return
    job.stale = stale.ours if job.spec.remove_stale else []
    _warn(job, stale)


def _find(job: Job, written: set[str], used: list[int]) -> _Stale:
    """What is left beside what is ``written``, of whose templates ``used`` names are. Never an
    input.

    Ours is what a manifest in the bucket lists, with the size that it says, if the same manifest
    lists a name that is written, too: else it is of another result, which nobody replaces.
    """
    names = {name for name in existing_names(job, used) if name not in written}
    listed = {
        shard.name: shard.file_bytes
        for manifest in _manifests(job.outputs_bucket)
        if any(shard.name in written for shard in manifest.outputs)
        for shard in manifest.outputs
        if shard.name not in written
    }
    there = job.outputs_bucket.stat_many(job.names.made(listed, used))
    source, target = job.places
    inputs = {source.identity(shard.name) for shard in job.inputs} if there else set()
    ours = [
        name
        for name, info in there.items()
        if info.size_bytes == listed[name] and target.identity(name) not in inputs
    ]
    return _Stale(sorted(names.union(ours)), sorted(ours))


def _warn(job: Job, stale: _Stale) -> None:
    removed = set(job.stale)
    left = [name for name in stale.names if name not in removed]
    if not left:
        return
    objects = "objects have names" if len(left) > 1 else "object has a name"
    text = (
        f"{len(left):,} {objects} that the output template makes, and will be left beside this "
        f"result in {job.outputs_bucket.uri}: {some_of(left)}"
    )
    if not job.spec.remove_stale and stale.ours:
        text += f" ({len(stale.ours):,} of a result that is replaced: --remove-stale)"
    job.warn("stale_outputs", text)


def remove_stale(job: Job) -> None:
    """Remove the rest of the results that were replaced. For after the commit: what cannot be
    removed is told, and is no failure of the job."""
    done: list[str] = []

    def remove(name: str) -> None:
        job.outputs_bucket.delete(name)
        done.append(name)

    try:
        each_at_once(job.outputs_bucket, job.stale, remove)
    except StorageError as error:
        job.warn("stale_outputs", f"not all is removed of the results that were replaced: {error}")
    if done:
        objects = f"{len(done):,} object{'s' * (len(done) > 1)}"
        text = f"removed {objects} of results that were replaced: {some_of(sorted(done))}"
        job.warn("stale_outputs_removed", text)


def _manifests(bucket: Bucket) -> Iterator[StoredManifest]:
    """The newest manifests in the bucket, one at a time; what is none is passed over."""
    for info in sorted(_infos(bucket), key=lambda info: info.name)[: -MANIFESTS_READ_MAX - 1 : -1]:
        if info.size_bytes > MANIFEST_BYTES_MAX:
            continue
        try:
            yield parse_manifest(bucket.read(info.name))
        except (InputError, ObjectNotFoundError):
            continue


def _infos(bucket: Bucket) -> Iterator[ObjectInfo]:
    for info in bucket.list(INTERNAL_PREFIX):
        job_id = info.name.removeprefix(INTERNAL_PREFIX).partition("/")[0]
        if info.name == manifest_name(job_id):
            yield info
