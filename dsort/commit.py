"""The phases that write: create the output shards, seal them, give them their names, commit.

Names appear last: until every output shard is stored and checked, nothing of the result can be
seen. The manifest is written after all of them; it is the commit.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

from dsort.core.manifest import (
    ManifestInput,
    ManifestOutput,
    manifest_bytes,
    manifest_name,
    wids_index_bytes,
)
from dsort.core.plan import OutputShard
from dsort.errors import ChangedInputError, InvariantError, ObjectNotFoundError, StorageError
from dsort.formats.tar import END_OF_ARCHIVE
from dsort.job import Job
from dsort.planning import Plan
from dsort.storage.base import Bucket
from dsort.workers.spill import remove_spill
from dsort.workers.tasks import (
    CreateDone,
    CreateTask,
    OutputPiece,
    SealDone,
    SealTask,
    StagedShard,
)

__all__ = [
    "commit",
    "create",
    "dsort_version",
    "file_bytes",
    "refuse_changed_inputs",
    "refuse_existing",
    "seal",
    "staged",
]

RUNS_A_WORKER = 4
SEALED_AT_ONCE_MAX = 16
INDEX_NAME = "{job_id}-index.json"


def dsort_version() -> str:
    """The version of the installed package."""
    try:
        return version("dsort")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0+source"


def staged(job_id: str) -> str:
    """The prefix of the job's staged objects."""
    return f".dsort/{job_id}/staged/"


def file_bytes(stored_bytes: int) -> int:
    """The size of an output shard whose records take ``stored_bytes``."""
    return stored_bytes + len(END_OF_ARCHIVE)


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
    existing = []
    for name in names:
        try:
            job.outputs_bucket.stat(name)
        except ObjectNotFoundError:
            continue
        existing.append(name)
    if existing:
        shown = ", ".join(existing[:3]) + (", …" if len(existing) > 3 else "")
        raise StorageError(
            f"{len(existing)} output names are taken in {job.outputs_bucket.uri}: {shown}",
            hint="remove them, use another output_bck or output_format, or allow it: --overwrite",
        )


def create(job: Job, plan: Plan, spilled_by: set[int]) -> dict[int, str]:
    """Write all output shards, staged; their checksums.

    ``spilled_by``: the workers that have spill files. A bucket's spill goes once all of its records
    are written, so that scratch shrinks as the outputs grow.
    """
    checksums: dict[int, str] = {}
    runs = _create_runs(job, plan)
    readers = Counter(bucket for run in runs for bucket in {piece.bucket for piece in run})
    workers_max = job.spec.create_concurrency_max_limit or None
    for task, done in job.runtime.run(map(CreateTask, runs), workers_max=workers_max):
        assert isinstance(done, CreateDone)
        assert isinstance(task, CreateTask)
        checksums.update(done.checksums)
        for bucket in {piece.bucket for piece in task.pieces}:
            readers[bucket] -= 1
            if not readers[bucket]:
                remove_spill(job.scratch_path, bucket, spilled_by)
        finished = sum(piece.last for piece in task.pieces)
        job.advance(shards=finished, records=done.records, bytes_done=done.bytes_written)
    return checksums


def _create_runs(job: Job, plan: Plan) -> list[tuple[OutputPiece, ...]]:
    """Output shards that one worker writes one after the other; no shard is in two runs.

    ``map``: one shard a run. ``spill``: neighbours, because they share buckets, and a bucket is
    read whole; a bucket that lies across two runs is read twice. Enough runs that all workers are
    busy to the end.
    """
    if job.moving.way == "map":
        return [tuple(_pieces(job, shard)) for shard in plan.shards]
    runs_max = job.moving.workers * RUNS_A_WORKER
    runs: list[list[OutputPiece]] = []
    written = 0
    for shard in plan.shards:
        if written * runs_max >= len(runs) * max(plan.stored_bytes, 1):
            runs.append([])
        runs[-1].extend(_pieces(job, shard))
        written += shard.stored_bytes
    return [tuple(run) for run in runs]


def _pieces(job: Job, shard: OutputShard) -> Iterator[OutputPiece]:
    token = f"{staged(job.job_id)}{shard.ordinal}"
    size = file_bytes(shard.stored_bytes)
    for part in shard.pieces:
        yield OutputPiece(
            token=token,
            ordinal=shard.ordinal,
            shard_bytes=size,
            bucket=part.bucket,
            row_start=part.row_start,
            row_stop=part.row_stop,
            offset=part.offset,
            stored_bytes=part.stored_bytes,
            last=part is shard.pieces[-1],
        )
    if not shard.pieces:
        yield OutputPiece(token, shard.ordinal, size, -1, 0, 0, 0, 0, last=True)


def seal(job: Job, plan: Plan, checksums: dict[int, str]) -> tuple[list[ManifestOutput], list[str]]:
    """Make all staged shards durable and check them; (outputs, their MD5 if a wids index is
    asked for)."""
    check_content = job.spec.verify == "content"
    shards = [
        StagedShard(
            ordinal=shard.ordinal,
            token=f"{staged(job.job_id)}{shard.ordinal}",
            shard_bytes=file_bytes(shard.stored_bytes),
            checksum=checksums[shard.ordinal],
            pieces=tuple((p.bucket, p.row_start, p.row_stop) for p in shard.pieces)
            if check_content
            else (),
        )
        for shard in plan.shards
    ]
    step = min(max(len(shards) // job.moving.workers, 1), SEALED_AT_ONCE_MAX)
    tasks = (
        SealTask(tuple(shards[at : at + step]), want_md5=job.spec.index == "wids")
        for at in range(0, len(shards), step)
    )
    md5: dict[int, str] = {}
    for task, done in job.runtime.run(tasks):
        assert isinstance(task, SealTask)
        assert isinstance(done, SealDone)
        md5.update(done.md5)
        sealed = [plan.shards[shard.ordinal] for shard in task.shards]
        job.advance(
            shards=len(sealed),
            records=sum(shard.records for shard in sealed),
            bytes_done=sum(shard.shard_bytes for shard in task.shards),
        )
    outputs = [
        ManifestOutput(
            name=name,
            records=shard.records,
            members=shard.members,
            payload_bytes=shard.payload_bytes,
            file_bytes=file_bytes(shard.stored_bytes),
            xxh3=checksums[shard.ordinal],
        )
        for shard, name in zip(plan.shards, plan.names, strict=True)
    ]
    return outputs, [md5.get(shard.ordinal, "") for shard in plan.shards]


def commit(
    job: Job, plan: Plan, outputs: list[ManifestOutput], md5: list[str], *, overwrite: bool
) -> str:
    """Name the shards and write the manifest; returns its name. All or nothing is visible."""
    refuse_changed_inputs(job)
    if sum(shard.records for shard in outputs) != plan.records:
        raise InvariantError("the manifest would not list every record of the plan")
    bucket, prefix = job.outputs_bucket, staged(job.job_id)
    index = INDEX_NAME.format(job_id=job.job_id) if job.spec.index == "wids" else None
    names = [(f"{prefix}{s.ordinal}", n) for s, n in zip(plan.shards, plan.names, strict=True)]
    # All that needs room is stored before the first name is given: a disk that is full by now must
    # not cost the user what the names stood for.
    if index is not None:
        _stage(bucket, f"{prefix}index", wids_index_bytes(job.job_id, outputs, md5))
        names.append((f"{prefix}index", index))
    _stage(bucket, f"{prefix}manifest", _manifest(job, outputs, index))
    named: list[str] = []
    try:
        for token, name in names:
            bucket.publish(token, name, overwrite=overwrite)
            named.append(name)
        bucket.settle()
        bucket.publish(f"{prefix}manifest", manifest_name(job.job_id), overwrite=False)
        bucket.settle()
    except StorageError:
        for name in named:
            bucket.delete(name)
        raise
    return manifest_name(job.job_id)


def _stage(bucket: Bucket, token: str, data: bytes) -> None:
    with bucket.stage(token, size_bytes=len(data)) as held:
        held.write_at(0, [data])
        held.sync()


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
    for shard in job.inputs:
        try:
            info = job.inputs_bucket.stat(shard.name)
        except ObjectNotFoundError:
            info = None
        if info is None or (info.size_bytes, info.etag) != (shard.size_bytes, shard.etag):
            gone = "is gone" if info is None else "changed"
            raise ChangedInputError(
                f"input shard {shard.name} {gone} since the job began",
                hint="start the job again once nothing writes to its inputs",
            )
