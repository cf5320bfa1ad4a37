"""The coordinator: takes one job from its spec to its manifest, phase by phase.

It asks ``core`` what to do, has the runtime do it, and sees to it that whatever happens, what is
left behind is either the whole result or nothing but a report.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from dsort.commit import (
    commit,
    create,
    file_bytes,
    refuse_changed_inputs,
    refuse_existing,
    seal,
    staged,
)
from dsort.core.manifest import report_name
from dsort.core.movement import TooLittleMemoryError, choose_movement
from dsort.core.sizes import format_bytes
from dsort.core.tally import Tally
from dsort.errors import SpecError, SpecProblem, StorageError, StorageFullError
from dsort.job import Job
from dsort.job_setup import job_memory_bytes, reaction_rules, sort_rule
from dsort.planning import Plan, extract, make_plan
from dsort.reports import JobReport, JobStarted, PlannedShard, PlanReport
from dsort.resolve import refuse_collisions, refuse_early_collisions, resolve_inputs
from dsort.workers.inputs import write_inputs
from dsort.workers.tasks import WorkerSetup

__all__ = ["plan_job", "planned", "run_job"]

DRY_SCRATCH_PREFIX = "dsort-plan-"


def run_job(job: Job, tally: Tally) -> JobReport:
    """Run a job to its end. ``tally``: what was counted before it began.

    Raises what went wrong, after removing all but the job's report.
    """
    overwrite = job.options.overwrite if job.options.overwrite is not None else job.spec.overwrite
    committed = False
    try:
        _resolve(job, tally, dry=False)
        with job.phase("extract"):
            extracted = extract(job)
        with job.phase("plan"):
            plan = make_plan(job, extracted)
            _refuse_outputs(job, plan, overwrite=overwrite)
        with job.phase("create", shards=len(plan.shards), bytes_total=plan.stored_bytes):
            checksums = create(job, plan, {facts.worker for facts in extracted})
        total = sum(file_bytes(shard.stored_bytes) for shard in plan.shards)
        with job.phase("commit", shards=len(plan.shards), bytes_total=total):
            outputs, md5 = seal(job, plan, checksums)
            job.stop.raise_if_requested()
            manifest = commit(job, plan, outputs, md5, overwrite=overwrite)
        committed = True
    except StorageError:
        # Of a mapped input that was cut short, the kernel says that its address is bad.
        refuse_changed_inputs(job)
        raise
    finally:
        if not committed:  # whatever it was, a bug of ours included
            _abort(job, sys.exception())
    _clean(job)
    return _report(job, plan, state="finished", manifest=manifest)


def plan_job(job: Job, tally: Tally) -> PlanReport:
    """Resolve, extract and plan; write nothing to either bucket."""
    try:
        _resolve(job, tally, dry=True)
        with job.phase("extract"):
            extracted = extract(job, dry=True)
        with job.phase("plan"):
            plan = make_plan(job, extracted)
            _refuse_outputs(job, plan, overwrite=True)
    finally:
        job.runtime.close()
        _remove_scratch(job)
    moving = job.moving
    return PlanReport(
        job_id=job.job_id,
        input_shards=len(job.inputs),
        records=plan.records,
        members=plan.members,
        payload_bytes=plan.payload_bytes,
        file_bytes=sum(file_bytes(shard.stored_bytes) for shard in plan.shards),
        shards=tuple(
            PlannedShard(name, shard.records, shard.payload_bytes, file_bytes(shard.stored_bytes))
            for shard, name in zip(plan.shards, plan.names, strict=True)
        ),
        move=moving.way,
        move_reason=moving.reason,
        workers=moving.workers,
        memory_bytes=moving.memory_bytes,
        scratch_bytes=moving.scratch_bytes,
        seed=job.spec.algorithm.seed,
        reactions=job.reactions(),
        warnings=tuple(job.warnings),
    )


def planned(plan: PlanReport, output_uri: str) -> JobReport:
    """The report of a dry run."""
    return JobReport(
        job_id=plan.job_id,
        state="planned",
        output_uri=output_uri,
        manifest_name=None,
        move=plan.move,
        workers=plan.workers,
        input_shards=plan.input_shards,
        output_shards=len(plan.shards),
        records=plan.records,
        members=plan.members,
        payload_bytes=plan.payload_bytes,
        file_bytes=plan.file_bytes,
        seed=plan.seed,
        phase_seconds={},
        reactions=plan.reactions,
        warnings=plan.warnings,
        error=None,
    )


# -- resolve -------------------------------------------------------------------------------------


def _resolve(job: Job, tally: Tally, *, dry: bool) -> None:
    with job.phase("resolve"):
        job.inputs = resolve_inputs(job.spec, job.inputs_bucket, tally)
        job.note(tally)
        if job.keymap is None:
            refuse_early_collisions(job.inputs, job.inputs_bucket, job.names, job.outputs_bucket)
        total = sum(shard.size_bytes for shard in job.inputs)
        _choose_movement(job, total)
        if not dry:
            job.outputs_bucket.create()
        _make_scratch(job, dry=dry)
        _check_room(job, total, dry=dry)
        job.advance(shards=len(job.inputs), bytes_done=total)
    job.on_event(JobStarted(job.job_id, job.moving.way, job.moving.workers, len(job.inputs), total))
    _start_workers(job, dry=dry)


def _choose_movement(job: Job, total: int) -> None:
    mappable = all(job.inputs_bucket.local_path(shard.name) is not None for shard in job.inputs[:1])
    try:
        job.movement = choose_movement(
            input_bytes=total,
            mappable=mappable,
            memory_bytes=job_memory_bytes(job.spec, job.options),
            workers=job.runtime.workers_max(),
            forced=job.options.move,
        )
    except TooLittleMemoryError as problem:
        hint = "give more with --memory-max or max_mem_usage, or use --move spill"
        raise SpecError([SpecProblem("max_mem_usage", str(problem), hint)]) from None


def _make_scratch(job: Job, *, dry: bool) -> None:
    base = job.options.scratch
    beside = job.outputs_bucket.local_path("x")
    if base is None and not dry and beside is not None:
        path = beside.parent / ".dsort" / job.job_id / "scratch"
    else:
        path = (base or Path(tempfile.gettempdir())) / f"dsort-{job.job_id}"
    try:
        path.mkdir(parents=True, mode=0o700)
    except OSError as error:
        raise StorageError(
            f"cannot make the scratch directory {path}: {error.strerror}",
            hint="name another one: --scratch",
        ) from None
    job.scratch = path.resolve()
    write_inputs(job.scratch, job.inputs)


def _check_room(job: Job, total: int, *, dry: bool) -> None:
    """Room for scratch and for the outputs, which are about as large as the inputs."""
    scratch_bytes = job.moving.scratch_bytes
    if dry:  # index files only
        scratch_bytes = total // 20 if job.moving.way == "spill" else scratch_bytes
        _need(shutil.disk_usage(job.scratch_path).free, scratch_bytes, f"scratch {job.scratch}")
        return
    output_free = job.outputs_bucket.free_bytes()
    scratch_free = shutil.disk_usage(job.scratch_path).free
    output = job.outputs_bucket.local_path("x")
    together = output is not None and output.parent.stat().st_dev == job.scratch_path.stat().st_dev
    if output_free is not None:
        needed = total + (scratch_bytes if together else 0)
        _need(output_free, needed, f"the output bucket {job.outputs_bucket.uri}")
    if not together:
        _need(scratch_free, scratch_bytes, f"scratch {job.scratch}")


def _need(free: int, needed: int, where: str) -> None:
    if free < needed:
        raise StorageFullError(
            f"{where} has {format_bytes(free)} free, the job needs about {format_bytes(needed)}",
            hint="make room, or put scratch on another file system: --scratch",
        )


def _start_workers(job: Job, *, dry: bool) -> None:
    moving = job.moving
    _check_directories(job, dry=dry)
    setup = WorkerSetup(
        job_id=job.job_id,
        input_uri=job.inputs_bucket.uri,
        output_uri=job.outputs_bucket.uri,
        root=str(job.options.root),
        scratch=str(job.scratch_path),
        way=moving.way,
        sort_rule=sort_rule(job.spec),
        reactions=reaction_rules(job.spec),
        keymap=job.keymap,
        buckets=moving.buckets,
        buffer_bytes=moving.buffer_bytes,
        verify_content=job.spec.verify == "content",
    )
    job.runtime.start(setup, moving.workers)


def _check_directories(job: Job, *, dry: bool) -> None:
    """``StorageError`` if some node does not see what its workers need, each known by a file."""
    buckets = [("input", job.inputs_bucket, shard.name) for shard in job.inputs[:1]]
    if not dry:
        staged_token = f"{staged(job.job_id)}here"
        job.outputs_bucket.stage(staged_token).close()
        buckets.append(("output", job.outputs_bucket, staged_token))
    needed = [
        (f"the {role} bucket {bucket.uri}", path, token)
        for role, bucket, token in buckets
        if (path := bucket.local_path(token)) is not None
    ]
    token = ".dsort-here"
    (job.scratch_path / token).touch()
    needed.append(("scratch", job.scratch_path / token, token))
    for what, path, token in needed:
        try:
            job.runtime.check_directory(str(path).removesuffix(f"/{token}"), token)
        except StorageError as error:
            raise StorageError(f"{what}: {error.message}", hint=error.hint) from None


# -- refusals, and the end -----------------------------------------------------------------------


def _refuse_outputs(job: Job, plan: Plan, *, overwrite: bool) -> None:
    refuse_collisions(job.inputs, job.inputs_bucket, plan.names, job.outputs_bucket)
    refuse_existing(job, plan.names, overwrite=overwrite)


def _clean(job: Job) -> None:
    job.runtime.close()
    _remove_scratch(job)
    job.outputs_bucket.discard(staged(job.job_id))


def _remove_scratch(job: Job) -> None:
    if job.scratch is not None:
        shutil.rmtree(job.scratch, ignore_errors=True)


def _abort(job: Job, error: BaseException | None) -> None:
    """Remove everything of the job but a report of how far it came."""
    job.runtime.close()
    if job.scratch is None:
        return  # nothing was begun
    _remove_scratch(job)
    report = replace(
        _report(job, None, state="aborted", manifest=None), error=str(error) or type(error).__name__
    )
    data = json.dumps(report.to_dict(), indent=2, ensure_ascii=False).encode(
        "utf-8", "backslashreplace"
    )
    # The error that ended the job is the one to tell, not that its report found no room.
    with contextlib.suppress(StorageError):
        job.outputs_bucket.discard(f".dsort/{job.job_id}/")
    with contextlib.suppress(StorageError):
        job.outputs_bucket.write(report_name(job.job_id), data + b"\n")


def _report(job: Job, plan: Plan | None, *, state: str, manifest: str | None) -> JobReport:
    shards = plan.shards if plan is not None else []
    return JobReport(
        job_id=job.job_id,
        state=state,
        output_uri=job.outputs_bucket.uri,
        manifest_name=manifest,
        move=job.movement.way if job.movement else "",
        workers=job.movement.workers if job.movement else 0,
        input_shards=len(job.inputs),
        output_shards=len(shards),
        records=plan.records if plan else 0,
        members=plan.members if plan else 0,
        payload_bytes=plan.payload_bytes if plan else 0,
        file_bytes=sum(file_bytes(shard.stored_bytes) for shard in shards),
        seed=job.spec.algorithm.seed,
        phase_seconds=job.state.seconds(),
        reactions=job.reactions(),
        warnings=tuple(job.warnings),
        error=None,
    )
