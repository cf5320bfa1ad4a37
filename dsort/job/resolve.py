"""Resolve: what the job reads, how payload moves, and everything that it needs made ready."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import xxhash

from dsort.data.tally import Tally, tally_of, tally_rows
from dsort.errors import ChangedInputError, SpecError, SpecProblem, StorageError, StorageFullError
from dsort.job.commit import refuse_changed_inputs
from dsort.job.early_checks import refuse_taken_early, refuse_unreadable
from dsort.job.events import JobStarted
from dsort.job.inputs import refuse_early_collisions, resolve_inputs
from dsort.job.job import Job
from dsort.job.journal import Journal
from dsort.job.journal_entries import InputRow, InputsResolved, JobAccepted, MovementChosen
from dsort.job.known_outputs import checksums, compare_sizes, known_outputs
from dsort.job.layout import report_name, scratch_name, staged_prefix
from dsort.job.lease import Lease
from dsort.job.memory import (
    Movement,
    NotMappableError,
    TooLittleMemoryError,
    choose_movement,
    least_memory_bytes,
)
from dsort.job.resume import RESOLVED_FILE, note_names, resolved_before
from dsort.job.setup import reaction_rules, store_limits, with_part_sizes
from dsort.scratch.requests import FreeBytes
from dsort.sizes import format_bytes
from dsort.storage.limit import StoreLimits
from dsort.version import dsort_version
from dsort.workers.source import INPUTS_FILE, InputShard, inputs_bytes
from dsort.workers.tasks import WorkerSetup

__all__ = ["begin_attempt", "check_output_room", "resolve"]

WORKERS_A_ATTEMPT = 1_000_000
SCRATCH_SHARE = 8
"""Scratch that takes no more than one part in so many of the memory stays there until it goes: the
kernel begins to write it by itself when a tenth of what is free is dirty, or after 30 s."""


def begin_attempt(job: Job, attempt: int) -> None:
    """Take the job: from here on it is ours to run, and to clean up after."""
    told: list[str] = []

    def waiting(why: str) -> None:
        job.stop.raise_if_requested()
        if not told:
            told.append(why)
            job.warn("clocks", why)

    job.lease = Lease.take(job.outputs_bucket, job.job_id, attempt=attempt, waiting=waiting)
    job.lease.keep(
        on_lost=lambda why: job.stop_for(f"the loss of its lease: {why}"),
        on_stop=lambda: job.stop_for("`dsort stop`"),
    )
    job.journal = Journal(job.outputs_bucket, job.job_id, attempt)


def resolve(job: Job, tally: Tally, *, dry: bool) -> None:
    """Find the inputs, choose how payload moves, and get the workers ready."""
    with job.phase("resolve"):
        if job.before is not None:
            _resolve_again(job)
        else:
            _resolve_first(job, tally, dry=dry)
        total = sum(shard.size_bytes for shard in job.inputs)
        _check_directories(job, dry=dry)
        _start_workers(job, dry=dry)
        _check_room(job, total, dry=dry)
        job.runtime.share(INPUTS_FILE, inputs_bytes(job.inputs))
        job.advance(shards=len(job.inputs), bytes_done=total)
    movement, where = job.movement, job.runtime.where()
    job.on_event(
        JobStarted(job.job_id, movement.kind, movement.workers, len(job.inputs), total, where)
    )


def _resolve_first(job: Job, tally: Tally, *, dry: bool) -> None:
    check = job.stop.raise_if_requested
    job.inputs = job.stop.wait_for(
        lambda: resolve_inputs(job.spec, job.inputs_bucket, tally, check=check)
    )
    _compare_with_manifests(job, tally)
    job.note(tally)
    if job.keymap is None:
        source, target = job.places
        job.stop.wait_for(lambda: refuse_early_collisions(job.inputs, source, job.names, target))
    job.stop.wait_for(lambda: refuse_unreadable(job.inputs, job.inputs_bucket))
    job.stop.wait_for(lambda: refuse_taken_early(job, dry=dry))
    job.movement_chosen = _movement(job)
    if dry:
        return
    job.stop.wait_for(job.outputs_bucket.create)
    begin_attempt(job, attempt=1)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    job.resolved = {
        "tally": tally_rows(tally),
        "keymap": _keymap_digest(job),
        "named": tally.named or {},
    }
    _record_inputs(job, JobAccepted(job.job_id, dsort_version(), job.spec.canonical(), created))
    _record_movement(job)


def _compare_with_manifests(job: Job, tally: Tally) -> None:
    """What the jobs that wrote the inputs say of them."""
    names = [shard.name for shard in job.inputs]
    known = job.stop.wait_for(lambda: known_outputs(job.inputs_bucket, names))
    compare_sizes(job.inputs, known, job.spec.config.incomplete_shards, tally)
    if job.spec.verify == "content":
        job.input_checksums = checksums(job.inputs, known)


def _record_inputs(job: Job, accepted: JobAccepted) -> None:
    """What the job is. Kept first: where the journal has the inputs, there is this file, too."""
    job.retain(RESOLVED_FILE, json.dumps(job.resolved).encode("utf-8", "backslashreplace"))
    job.record(accepted)
    rows = (InputRow(s.name, s.size_bytes, s.mtime_ns, s.etag) for s in job.inputs)
    job.record(InputsResolved(tuple(rows)))


def _resolve_again(job: Job) -> None:
    """As an earlier attempt resolved it: the inputs have to be the same."""
    assert job.before is not None
    assert job.before.accepted is not None
    note_names(job)
    job.inputs = [InputShard(*row) for row in job.before.inputs or ()]
    job.resolved = resolved_before(job)
    job.stop.wait_for(lambda: refuse_changed_inputs(job))
    if job.resolved["keymap"] != _keymap_digest(job):
        raise ChangedInputError(
            f"the external key map {job.spec.ekm_file} changed since the job began",
            hint="put it back, or start the job again",
        )
    _compare_with_manifests(job, Tally())  # what it says was noted by the first attempt
    job.note(tally_of(job.resolved["tally"]))
    job.movement_chosen = chosen = _movement(job)
    known = job.before.movement
    if known is not None and (known.movement == "spill" or chosen.kind == "map"):
        # Index and spill are parted into these partitions already.
        job.movement_chosen = replace(chosen, kind=known.movement, partitions=known.partitions)
    if job.retained(RESOLVED_FILE) is None:  # known by the report of an aborted attempt alone
        _record_inputs(job, job.before.accepted)
    _record_movement(job)
    job.outputs_bucket.delete(report_name(job.job_id))  # from here on the journal tells it all


def _record_movement(job: Job) -> None:
    movement = job.movement
    job.record(
        MovementChosen(
            movement=movement.kind,
            partitions=movement.partitions,
            workers=movement.workers,
            buffer_bytes=movement.buffer_bytes,
            memory_bytes=movement.memory_bytes,
            scratch_bytes=movement.scratch_bytes,
            reason=movement.reason,
        )
    )
    job.flush()


def _keymap_digest(job: Job) -> str:
    """The same for two key maps that place all records the same; "" if there is none."""
    if job.keymap is None:
        return ""
    entries, state = job.keymap.entries, xxhash.xxh3_128()
    for column in (entries.keys.offsets, entries.keys.blob, entries.groups):
        state.update(np.ascontiguousarray(column).data.cast("B"))
    state.update("\0".join(job.keymap.templates).encode("utf-8", "surrogateescape"))
    return state.hexdigest()


def _movement(job: Job) -> Movement:
    mappable = all(job.inputs_bucket.local_path(shard.name) is not None for shard in job.inputs[:1])
    uploads = _output_limits(job).upload_bytes if job.outputs_bucket.seals_on_finish else 0
    memory_bytes, forced = job.memory.wanted_bytes, job.options.move
    least = least_memory_bytes(uploads)
    if memory_bytes < least <= job.memory.most_bytes:
        # Of AIStore's users, "1KB" only means that records go through the disk.
        job.warn("max_mem_usage", _least_text(job.spec.max_mem_usage, least))
        memory_bytes, forced = least, "spill" if forced == "auto" else forced
    try:
        return choose_movement(
            input_bytes=sum(shard.size_bytes for shard in job.inputs),
            mappable=mappable,
            memory_bytes=memory_bytes,
            workers=job.runtime.workers_max(),
            nodes=job.runtime.nodes(),
            forced=forced,
            upload_bytes=uploads,
        )
    except TooLittleMemoryError as problem:
        hint = (
            "no way to move records takes less: give the job more (--memory-max, ulimit -v), or "
            "make room"
        )
        raise SpecError([SpecProblem("max_mem_usage", str(problem), hint)]) from None
    except NotMappableError as problem:
        raise SpecError([SpecProblem("", str(problem), "use --move spill")]) from None


def _least_text(wanted: str, least: int) -> str:
    least_mib = -(-least >> 20)
    return (
        f"max_mem_usage {wanted} is less than any job takes: this one uses {least_mib} MiB, the "
        "least, and moves records through the disk"
    )


def _output_limits(job: Job, *, workers: int = 1) -> StoreLimits:
    """What each of ``workers`` may take for its uploads."""
    return with_part_sizes(
        store_limits(job.output_bck, job.options, workers=workers),
        job.memory.wanted_bytes,
        workers_a_node=-(-job.runtime.workers_max() // job.runtime.nodes()),
    )


def _scratch(job: Job, *, dry: bool) -> Path:
    """Where scratch goes: on a cluster, a directory for each node is made in it. Never into a
    bucket that somebody on the network has named."""
    base = job.options.scratch
    if base is None and not dry and job.options.fetch is None and job.runtime.nodes() == 1:
        beside = job.outputs_bucket.local_path("x")
        if beside is not None:
            return (beside.parent / scratch_name(job.job_id)).absolute()
    return (base or Path(tempfile.gettempdir())).absolute() / f"dsort-{job.job_id}"


def _start_workers(job: Job, *, dry: bool) -> None:
    movement = job.movement
    last_worker = job.before.worker_last if job.before is not None else -1
    attempts = job.before.attempts if job.before is not None else 0
    setup = WorkerSetup(
        job_id=job.job_id,
        input_bck=job.input_bck,
        output_bck=job.output_bck,
        output_uri=job.outputs_bucket.uri,
        root=str(job.options.root.absolute()),
        scratch=str(_scratch(job, dry=dry)),
        # More than any worker of an earlier attempt, also of those that never ended a task.
        first_worker=max(last_worker + 1, attempts * WORKERS_A_ATTEMPT),
        input_container=job.spec.input_container,
        output_container=job.spec.output_container,
        movement=movement.kind,
        algorithm=job.spec.algorithm.build(),
        reactions=reaction_rules(job.spec),
        keymap=job.keymap,
        partitions=movement.partitions,
        buffer_bytes=movement.buffer_bytes,
        spill_to_disk=movement.scratch_bytes * SCRATCH_SHARE
        > movement.memory_bytes * job.runtime.nodes(),
        verify_content=job.spec.verify == "content",
        input_limits=store_limits(job.input_bck, job.options, workers=movement.workers),
        output_limits=_output_limits(job, workers=movement.workers),
    )
    job.runtime.start(setup, movement.workers)


def _check_room(job: Job, total: int, *, dry: bool) -> None:
    """Room for scratch and for the outputs, which are about as large as the inputs."""
    if job.before is not None and (job.before.extracted or job.before.created):
        return  # part of it is taken by what is there already
    scratch_bytes = job.movement.scratch_bytes
    rooms = [job.runtime.ask(node, FreeBytes()) for node in job.runtime.scratch_nodes()]
    scratch_free = sum(free for free, _ in rooms)
    if dry:  # index files only
        scratch_bytes = total // 20 if job.movement.kind == "spill" else scratch_bytes
        _need(scratch_free, scratch_bytes, "scratch")
        return
    output_free = job.outputs_bucket.free_bytes()
    together = _is_beside(job)
    if output_free is not None:
        needed = total + (scratch_bytes if together else 0)
        _need(output_free, needed, f"the output bucket {job.outputs_bucket.uri}")
    if not together:
        _need(scratch_free, scratch_bytes, "scratch")


def check_output_room(job: Job, total: int) -> None:
    """``StorageFullError`` unless there is room for ``total`` bytes of outputs, as planned: hard
    links that are resolved make them larger than the inputs that room was checked for."""
    if job.before is not None:
        return
    free = job.outputs_bucket.free_bytes()
    expected = sum(shard.size_bytes for shard in job.inputs)
    if free is not None and total > expected:
        spilled = job.movement.scratch_bytes if _is_beside(job) else 0  # goes as outputs come
        _need(free + spilled, total, f"the output bucket {job.outputs_bucket.uri}")


def _is_beside(job: Job) -> bool:
    """Whether scratch is on the file system of the outputs."""
    rooms = [job.runtime.ask(node, FreeBytes()) for node in job.runtime.scratch_nodes()]
    output = job.outputs_bucket.local_path("x")
    device = output.parent.stat().st_dev if output is not None else None
    return len(rooms) == 1 and rooms[0][1] == device


def _need(free: int, needed: int, where: str) -> None:
    if free < needed:
        raise StorageFullError(
            f"{where} has {format_bytes(free)} free, the job needs about {format_bytes(needed)}",
            hint="make room, or put scratch on another file system: --scratch",
        )


def _check_directories(job: Job, *, dry: bool) -> None:
    """``StorageError`` if some node does not see what its workers need, each known by a file."""
    lost: dict[str, None] = {}
    buckets = [("input", job.inputs_bucket, shard.name) for shard in job.inputs[:1]]
    token = f"{staged_prefix(job.job_id)}here"
    if not dry and job.output_bck.is_directory:
        job.outputs_bucket.stage(token).close()
        buckets.append(("output", job.outputs_bucket, token))
    for role, bucket, name in buckets:
        path = bucket.local_path(name)
        if path is None:
            continue
        try:
            lost |= dict.fromkeys(
                job.runtime.check_directory(str(path).removesuffix(f"/{name}"), name)
            )
        except StorageError as error:
            raise StorageError(
                f"the {role} bucket {bucket.uri}: {error.message}", hint=error.hint
            ) from None
    for node in lost:
        job.warn("node_lost", f"node {node} is lost: the job begins without it")
