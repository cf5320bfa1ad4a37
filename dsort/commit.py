"""The commit: staged shards get their names, and the manifest says that they are the result.

Names appear last: until every output shard is stored and checked, nothing of the result can be
seen. The manifest is written after all of them; it is the commit.
"""

from __future__ import annotations

import platform
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

from dsort.core.journal import Committing
from dsort.core.manifest import (
    ManifestInput,
    ManifestOutput,
    manifest_bytes,
    manifest_name,
    wids_index_bytes,
)
from dsort.creation import Created, file_bytes, staged
from dsort.errors import ChangedInputError, InvariantError, StorageError
from dsort.job import Job
from dsort.planning import Plan
from dsort.storage.base import Bucket

__all__ = ["commit", "dsort_version", "outputs_of", "refuse_changed_inputs", "refuse_existing"]

PUBLISHED_AT_ONCE_MAX = 16
INDEX_NAME = "{job_id}-index.json"


def dsort_version() -> str:
    """The version of the installed package."""
    try:
        return version("dsort")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0+source"


def refuse_existing(job: Job, names: list[str], *, overwrite: bool) -> None:
    """``StorageError`` if an output name is taken, unless the job may replace it."""
    for name in names:
        path = job.outputs_bucket.local_path(name)
        if path is not None and path.is_dir():
            raise StorageError(
                f"{name} in {job.outputs_bucket.uri} is a directory, no shard can have that name",
                hint="remove it, or use another output_bck or output_format",
            )
    if overwrite:
        return
    existing = sorted(job.outputs_bucket.stat_many(names))
    if existing:
        shown = ", ".join(existing[:3]) + (", …" if len(existing) > 3 else "")
        raise StorageError(
            f"{len(existing)} output names are taken in {job.outputs_bucket.uri}: {shown}",
            hint="remove them, use another output_bck or output_format, or allow it: --overwrite",
        )


def outputs_of(plan: Plan, created: Created) -> list[ManifestOutput]:
    """The output shards as the manifest lists them."""
    return [
        ManifestOutput(
            name=name,
            records=shard.records,
            members=shard.members,
            payload_bytes=shard.payload_bytes,
            file_bytes=file_bytes(shard.stored_bytes),
            xxh3=created.shards[shard.ordinal].checksum,
        )
        for shard, name in zip(plan.shards, plan.names, strict=True)
    ]


def commit(job: Job, plan: Plan, created: Created, md5: dict[int, str], *, overwrite: bool) -> str:
    """Name the shards and write the manifest; returns its name. All or nothing is visible."""
    refuse_changed_inputs(job)
    outputs = outputs_of(plan, created)
    if sum(shard.records for shard in outputs) != plan.records:
        raise InvariantError("the manifest would not list every record of the plan")
    bucket, prefix = job.outputs_bucket, staged(job.job_id)
    index = INDEX_NAME.format(job_id=job.job_id) if job.spec.index == "wids" else None
    named = [
        _Named(f"{prefix}{shard.ordinal}", name, created.shards[shard.ordinal].receipt)
        for shard, name in zip(plan.shards, plan.names, strict=True)
    ]
    # All that needs room is stored before the first name is given: a disk that is full by now must
    # not cost the user what the names stood for.
    if index is not None:
        hashes = [md5[shard.ordinal] for shard in plan.shards]
        data = wids_index_bytes(job.job_id, outputs, hashes)
        named.append(_stage(bucket, f"{prefix}index", index, data))
    job.record(Committing())
    if job.journal is not None:
        job.journal.flush()
    manifest = manifest_name(job.job_id)
    last = _stage(bucket, f"{prefix}manifest", manifest, _manifest(job, outputs, index))
    if job.lease is not None:
        job.lease.check()
    _publish(job, named, last, overwrite=overwrite)
    return manifest


@dataclass(frozen=True, slots=True)
class _Named:
    """A staged object, and the name it is about to get."""

    token: str
    name: str
    receipt: str


def _publish(job: Job, named: list[_Named], last: _Named, *, overwrite: bool) -> None:
    """Give the shards their names, then the manifest its own. If that fails, none keeps it, unless
    the job is somebody else's by now: the names may stand for what they have published."""
    bucket = job.outputs_bucket
    given: list[str] = []

    def give(each: _Named) -> None:
        bucket.publish(each.token, each.name, overwrite=overwrite, receipt=each.receipt)
        given.append(each.name)

    try:
        if bucket.seals_on_finish:
            with ThreadPoolExecutor(PUBLISHED_AT_ONCE_MAX) as threads:
                for _ in threads.map(give, named):
                    pass
        else:
            for each in named:
                give(each)
        bucket.settle()
        bucket.publish(last.token, last.name, overwrite=False, receipt=last.receipt)
        bucket.settle()
    except StorageError:
        if job.lease is not None:
            job.lease.check()
        for name in given:
            bucket.delete(name)
        raise


def _stage(bucket: Bucket, token: str, name: str, data: bytes) -> _Named:
    with bucket.stage(token, name=name, size_bytes=len(data)) as held:
        held.write_at(0, [data])
        receipt = held.finish()
        if not bucket.seals_on_finish:
            held.sync()
    return _Named(token, name, receipt)


def _manifest(job: Job, outputs: list[ManifestOutput], index: str | None) -> bytes:
    moving = job.moving
    return manifest_bytes(
        job_id=job.job_id,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={"dsort": dsort_version(), "python": platform.python_version()},
        spec=job.spec.canonical(),
        inputs=[
            ManifestInput(
                shard.name,
                shard.size_bytes,
                shard.mtime_ns,
                shard.etag,
                job.input_records.get(ordinal, 0),
            )
            for ordinal, shard in enumerate(job.inputs)
        ],
        outputs=outputs,
        move={
            "way": moving.way,
            "reason": moving.reason,
            "runtime": job.runtime.name,
            "workers": moving.workers,
            "buckets": moving.buckets,
            "memory_bytes": moving.memory_bytes,
        },
        phase_seconds=job.state.seconds(),
        reactions=[asdict(reaction) for reaction in job.reactions()],
        index=index,
    )


def refuse_changed_inputs(job: Job) -> None:
    """An input that changed while it was read may have been read half old, half new."""
    known = job.inputs_bucket.stat_many([shard.name for shard in job.inputs])
    changed = []
    for shard in job.inputs:
        info = known.get(shard.name)
        if info is None or (info.size_bytes, info.etag) != (shard.size_bytes, shard.etag):
            changed.append(f"{shard.name} {'is gone' if info is None else 'changed'}")
    if changed:
        more = f", and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise ChangedInputError(
            f"input shard {', '.join(changed[:3])}{more} since the job began",
            hint="start the job again once nothing writes to its inputs",
        )
