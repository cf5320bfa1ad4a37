"""The coordinator takes one job from its spec to its manifest, phase by phase.

Pure modules decide what to do, and the runtime does it. A finished job leaves its whole result, a
failed job only a report, and a job that was stopped from outside what ``dsort resume`` needs.
"""

from __future__ import annotations

import contextlib
import sys

import numpy  # noqa: F401 - first, at this depth of imports: see docs/design/start.md
from msgspec.structs import replace

from dsort.data.tally import Tally
from dsort.errors import DsortError, JobStoppedError, StorageError
from dsort.job.amend import (
    refuse_moved_sidecars,
    refuse_other_schema,
    replaceable_names,
    sidecars_written,
)
from dsort.job.commit import commit, names_stored, outputs_of, rollback
from dsort.job.companions.directory_files import (
    containers_named,
    directory_file_names,
    refuse_beside_inputs,
)
from dsort.job.companions.sidecars import refuse_alike
from dsort.job.create import Created, create, seal
from dsort.job.extraction import Extraction, extract
from dsort.job.job import Job
from dsort.job.ordering import Ordering
from dsort.job.plan import Plan, make_plan
from dsort.job.resolve import resolve
from dsort.job.resume import finished_plan, known_shards, learn_created, note_plan, report_bytes
from dsort.job.setup.collisions import refuse_collisions
from dsort.job.setup.inputs import refuse_changed_inputs
from dsort.job.setup.worker_setup import check_output_space
from dsort.job.stale_outputs import (
    look_for_stale,
    look_for_stale_early,
    refuse_taken,
    remove_stale,
)
from dsort.job.surveys.all_surveys import run_surveys
from dsort.log_lines import logger_of
from dsort.results.journal import discard_run
from dsort.results.layout import manifest_name, report_name
from dsort.results.lease import Lease, NoLease
from dsort.results.other_buckets import forget_elsewhere, tell_result
from dsort.results.report import Forecast, JobReport, Order, PlannedShard, Run, Totals
from dsort.results.transaction import PutBack
from dsort.workers.tasks import Stage

log = logger_of("job")


def run_job(job: Job, tally: Tally) -> JobReport:
    """Run a job to its end. ``tally``: what was counted before the job began.

    Raises the error that ended the job, after removing everything but the job's report. If the job
    was stopped from outside, its journal and staged files are kept for ``dsort resume``.
    """
    committed = False
    try:
        resolve(job, tally, dry=False)
        try:
            plan, created, ordering = _stage_all(job)
            plan = created.as_written(plan)
            total = int(plan.shards.file_bytes.sum())
            with job.reporter.phase("commit", shards=len(plan.shards), bytes_total=total):
                md5 = seal(job, plan, ordering, created)
                job.stop.raise_if_requested()
                manifest = commit(job, plan, created, md5)
            committed = True
        except StorageError:
            # Reading a mapped input that was cut short fails with "bad address": report the input
            # instead.
            refuse_changed_inputs(job)
            raise
    finally:
        if not committed:  # after any error, a bug of ours included
            _abort(job, sys.exception())
    remove_stale(job)
    if job.replaces_inputs:
        from dsort.job.removed_names import forget_removed

        forget_removed(job.buckets.outputs, job.job_id)
    try:
        _run_on_shards(job, plan, created)
    except JobStoppedError as stopped:
        from dsort.job.suspend import resume_command

        job.stop.heed()
        command = resume_command(job.job_id, job.spec, job.options)
        stopped.hint = f"the result is there; `{command}` runs on_shard for the other shards"
        raise
    finally:
        _clean(job)
    return _report(job, plan, state="finished", manifest=manifest)


def _run_on_shards(job: Job, plan: Plan, created: Created) -> None:
    wanted = job.spec.on_shard
    if not wanted:
        return
    from dsort.job.programs import run_on_shards  # few jobs have any

    job.runtime.close()  # frees its memory for the programs
    outputs = outputs_of(plan, created, encoded=[False])
    run_on_shards(
        wanted,
        job.job_id,
        job.buckets.outputs,
        outputs,
        stop=job.stop,
        warn=lambda text: job.reporter.warn("on_shard", text),
    )


def _stage_all(job: Job) -> tuple[Plan, Created, Ordering]:
    """Extract, plan and create, except for what an earlier attempt has done."""
    created = Created()
    look_for_stale_early(job)
    learn_created(job)
    if plan := finished_plan(job, created):
        log.debug("all output shards of an earlier attempt are staged: the commit is left")
        look_for_stale(job, plan)
        return plan, created, Ordering(job, Extraction(job, Stage("index")))
    with job.reporter.phase("extract"):
        extraction = extract(job, run_surveys(job), before=known_shards(job))
    with job.reporter.phase("plan"):
        plan, ordering = make_plan(job, extraction)
        shards = len(plan.shards)
        log.debug("the plan has %d output shards of %d records", shards, plan.records)
        _refuse_outputs(job, plan, overwrite=job.overwrite)
        look_for_stale(job, plan)
        check_output_space(job, int(plan.shards.file_bytes.sum()))
        note_plan(job, plan, created)
    with job.reporter.phase("create", shards=len(plan.shards), bytes_total=plan.stored_bytes):
        create(job, plan, ordering, created)
    return plan, created, ordering


def plan_job(job: Job, tally: Tally) -> JobReport:
    """Resolve, extract and plan; write nothing to either bucket."""
    from dsort.job.setup.estimate import estimate_of  # only dry runs need it

    try:
        resolve(job, tally, dry=True)
        with job.reporter.phase("extract"):
            extraction = extract(job, run_surveys(job), dry=True)
        with job.reporter.phase("plan"):
            plan, _ = make_plan(job, extraction)
            _refuse_outputs(job, plan, overwrite=True)
        estimate = estimate_of(job, plan)
    finally:
        job.runtime.close()
    movement = job.found.movement
    report = _report(job, plan, state="planned", manifest=None)
    return replace(
        report,
        output_uri="",
        run=Run(movement.way.name, movement.workers),
        plan=Forecast(
            shards=tuple(
                PlannedShard(name, shard.records, shard.payload_bytes, shard.file_bytes)
                for shard, name in zip(plan.shards, plan.names, strict=True)
            ),
            move_reason=movement.reason,
            memory_bytes=movement.sizes.needed_bytes,
            scratch_bytes=movement.sizes.scratch_bytes,
            readers=plan.readers(job.pipeline.output_names),
            estimate=estimate,
        ),
    )


# -- refusals, and the end -----------------------------------------------------------------------


def _refuse_outputs(job: Job, plan: Plan, *, overwrite: bool) -> None:
    source, target = job.buckets.identities
    replaces = overwrite or job.attempt.was_committing
    beside = directory_file_names(containers_named(job.spec, plan.names), plan.names)
    if not job.replaces_inputs:
        refuse_beside_inputs(job, beside)
    refuse_moved_sidecars(job, plan.names)
    refuse_other_schema(job, plan.schema)
    sidecars = sidecars_written(job, plan.names)
    refuse_alike(sidecars)
    beside += [each.name for each in sidecars]
    named = [*plan.names, *beside]
    if not job.replaces_inputs:
        job.stop.wait_for(lambda: refuse_collisions(job.inputs, source, named, target))
    named = sorted({*named} - replaceable_names(job))
    job.stop.wait_for(lambda: refuse_taken(job, named, overwrite=replaces))


def _clean(job: Job) -> None:
    """Remove all that led to the result, which is complete now, including the uploads that dead
    workers had begun."""
    job.runtime.close()
    tell_result(job.buckets.outputs, job.job_id)
    discard_run(job.buckets.outputs, job.job_id, lease=job.attempt.lease, names=names_stored(job))
    forget_elsewhere(job.buckets.outputs, job.job_id)


def _abort(job: Job, error: BaseException | None) -> None:
    """Remove everything of the job but a report of how far it came, from which it can be started
    again. A job that was stopped from outside keeps what it has done. A job that another process
    has taken over is left alone."""
    base = job.found.base
    from dsort.job.suspend import begin_again, is_from_outside, is_full_scratch, suspend
    from dsort.log_lines import one_sentence

    job.stop.heed()
    log.debug("the job did not come to its end: %s", one_sentence(str(error)))
    lease, has_begun = job.attempt.lease, job.attempt.has_begun
    lost = _is_lost(job, lease)
    outside = has_begun and is_from_outside(job, error)
    job.runtime.close(keep_scratch=lost or (outside and not is_full_scratch(job, error)))
    if not has_begun:
        return
    if lost:
        lease.close()
        if lease.lost:
            _clean_after_others(job)
            lease.check()  # raises: the loss of the lease caused whatever error there was
        return
    if outside and error:
        suspend(job, error)
        return
    # The job reports the error that ended it, even if there is no room for its report.
    try:
        done = rollback(job)
        _tell_put_back(job, error, done)
        if not done.lost:  # else it is left as it is, for `dsort resume` or `dsort gc`
            discard_run(job.buckets.outputs, job.job_id, lease=lease)
    except StorageError as problem:
        job.reporter.warn(
            "unfinished", f"not all of it could be undone: {problem.message}; {_later(job)}"
        )
    lease.close()
    reason = one_sentence(str(error)) or type(error).__name__  # many can read the bucket
    report = replace(_report(job, None, state="aborted", manifest=None), error=reason)
    if base.has_removed:  # its removed keys may be in this job again
        reactions = tuple(replace(each, samples=()) for each in report.reactions)
        error_kind = f"{type(error).__name__}; names are not kept beside a result with removed keys"
        report = replace(report, reactions=reactions, warnings=(), error=error_kind)
    with contextlib.suppress(StorageError):
        job.buckets.outputs.write(report_name(job.job_id), report_bytes(job, report))
        if isinstance(error, JobStoppedError) and not job.buckets.streams:
            error.hint = begin_again(job)


def _tell_put_back(job: Job, error: BaseException | None, done: PutBack) -> None:
    """Add what was put back, and what was not, to the error that ended the job (or warn of it)."""
    words = done.words(job.buckets.outputs.uri)
    if words and isinstance(error, DsortError):
        error.message = f"{error.message}; {words}"
    elif words:
        job.reporter.warn("replaced", words)
    if done.lost and isinstance(error, DsortError):
        error.hint = f"{error.hint}; {_later(job)}" if error.hint else _later(job)


def _later(job: Job) -> str:
    """The commands that help once the bucket is writable again."""
    uri = job.buckets.outputs.uri
    return f"`dsort resume {job.job_id}` goes on, `dsort gc {uri} --remove` puts all back"


def _is_lost(job: Job, lease: Lease | NoLease) -> bool:
    """Whether this process must not clean up: the lease is lost, or its state is unknown because
    the store is out of reach. In the second case everything is left to `dsort resume`."""
    try:
        return lease.is_lost()
    except StorageError:
        text = "the bucket cannot be reached: what is in it is left as it is"
        job.reporter.warn("unfinished", f"{text}; {_later(job)}" if job.outcome.naming else text)
        return True


def _clean_after_others(job: Job) -> None:
    """If another process has finished the job, remove what this process wrote afterwards."""
    with contextlib.suppress(StorageError):
        if job.buckets.outputs.stat_many([manifest_name(job.job_id)]):
            discard_run(job.buckets.outputs, job.job_id)


def _report(job: Job, plan: Plan | None, *, state: str, manifest: str | None) -> JobReport:
    movement, algorithm = job.found.movement, job.spec.algorithm
    return JobReport(
        job_id=job.job_id,
        state=state,
        output_uri=job.buckets.outputs.uri,
        manifest_name=manifest,
        totals=plan.totals(len(job.inputs)) if plan else Totals(len(job.inputs), 0, 0, 0, 0, 0),
        run=Run(
            move=movement.way.name if movement.workers else "",
            workers=movement.workers,
            phase_seconds=job.reporter.state.seconds(),
            timeline=job.reporter.timeline.samples(),
        ),
        order=Order(
            seed=algorithm.seed,
            algorithm=algorithm.in_words,
            mixing=job.outcome.mixing,
            flow=job.outcome.flow if state == "finished" else None,
        ),
        reactions=job.reporter.reactions(),
        warnings=tuple(job.reporter.warnings),
        outputs=plan.by_output(job.pipeline.output_names) if plan else (),
    )
