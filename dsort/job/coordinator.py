"""The coordinator takes one job from its spec to its manifest, phase by phase.

Pure modules decide what to do, and the runtime does it. A finished job leaves its whole result, and
a failed job only a report. A job that was stopped from outside leaves all that ``dsort resume``
needs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy  # noqa: F401 - first, not deep inside other imports: docs/design/008-start.md
from msgspec.structs import replace

from dsort.data.tally import Tally
from dsort.errors import StorageError
from dsort.job.amend import forget_removed
from dsort.job.commit import commit, names_stored, outputs_of
from dsort.job.create import Created, create, seal
from dsort.job.extraction import Extraction, extract
from dsort.job.job import Job
from dsort.job.order import Ordering
from dsort.job.plan import Plan, make_plan
from dsort.job.resolve import resolve
from dsort.job.resume import finished_plan, known_shards, learn_created, note_plan, report_of
from dsort.job.setup.inputs import refuse_changed_inputs
from dsort.job.setup.worker_setup import check_output_space
from dsort.job.stale_outputs import (
    look_for_stale,
    look_for_stale_early,
    refuse_outputs,
    remove_stale,
)
from dsort.job.surveys.all_surveys import run_surveys
from dsort.log_lines import logger_of
from dsort.results.journal import discard_run, forget_elsewhere, tell_result
from dsort.results.report import JobReport, Run
from dsort.workers.tasks import Stage

log = logger_of("job")


def run_job(job: Job, tally: Tally) -> JobReport:
    """Run a job to its end. ``tally``: what was counted before the job began.

    Raises the error that ended the job, after removing everything but the job's report. If the job
    was stopped from outside, its journal and staged files are kept for ``dsort resume``.
    """
    with _undone_after_errors(job):
        resolve(job, tally, dry=False)
        with _changed_inputs_reported(job):
            plan, created, ordering = _stage_all(job)
            plan = created.as_written(plan)
            total = int(plan.shards.file_bytes.sum())
            with job.reporter.phase("commit", shards=len(plan.shards), bytes_total=total):
                digests = seal(job, plan, ordering, created)
                job.stop.raise_if_requested()
                manifest = commit(job, plan, created, digests)
    remove_stale(job)
    if job.replaces_inputs:
        forget_removed(job.buckets.outputs, job.job_id)
    try:
        _run_on_shards(job, plan, created)
    finally:
        _clean(job)
    return report_of(job, plan, state="finished", manifest=manifest)


@contextlib.contextmanager
def _undone_after_errors(job: Job) -> Iterator[None]:
    try:
        yield
    except BaseException as error:  # also if it is a bug of dsort
        from dsort.job.suspend import abort

        abort(job, error)
        raise


@contextlib.contextmanager
def _changed_inputs_reported(job: Job) -> Iterator[None]:
    """Raise the error about a changed input in place of "bad address", with which a read from a
    truncated mapped input fails."""
    try:
        yield
    except StorageError:
        refuse_changed_inputs(job)
        raise


def _stage_all(job: Job) -> tuple[Plan, Created, Ordering]:
    """Extract, plan and create, except for what an earlier attempt has done."""
    created = Created()
    look_for_stale_early(job)
    learn_created(job)
    if plan := finished_plan(job, created):
        log.debug("all output shards of an earlier attempt are staged: only the commit is left")
        look_for_stale(job, plan)
        return plan, created, Ordering(job, Extraction(job, Stage("index")))
    with job.reporter.phase("extract"):
        extraction = extract(job, run_surveys(job), before=known_shards(job))
    with job.reporter.phase("plan"):
        plan, ordering = make_plan(job, extraction)
        log.debug("the plan has %d output shards of %d records", len(plan.shards), plan.records)
        refuse_outputs(job, plan, overwrite=job.overwrite)
        look_for_stale(job, plan)
        check_output_space(job, int(plan.shards.file_bytes.sum()))
        note_plan(job, plan, created)
    with job.reporter.phase("create", shards=len(plan.shards), bytes_total=plan.stored_bytes):
        create(job, plan, ordering, created)
    return plan, created, ordering


def _run_on_shards(job: Job, plan: Plan, created: Created) -> None:
    if job.spec.on_shard:
        from dsort.job.suspend import run_on_shards_of  # few jobs have such a program

        job.runtime.close()  # frees the workers' memory for the programs
        run_on_shards_of(job, job.spec.on_shard, outputs_of(plan, created, encoded=[False]))


def plan_job(job: Job, tally: Tally) -> JobReport:
    """Resolve, extract and plan; write nothing to any bucket."""
    from dsort.job.setup.estimate import forecast_of  # only dry runs need it

    try:
        resolve(job, tally, dry=True)
        with job.reporter.phase("extract"):
            extraction = extract(job, run_surveys(job), dry=True)
        with job.reporter.phase("plan"):
            plan, _ = make_plan(job, extraction)
            refuse_outputs(job, plan, overwrite=True)
        forecast = forecast_of(job, plan)
    finally:
        job.runtime.close()
    report = report_of(job, plan, state="planned", manifest=None)
    run = Run(report.run.move, report.run.workers)
    return replace(report, output_uri="", run=run, plan=forecast)


def _clean(job: Job) -> None:
    """Remove all files that only a running job needs, also uploads that dead workers had begun."""
    job.runtime.close()
    tell_result(job.buckets.outputs, job.job_id)
    discard_run(job.buckets.outputs, job.job_id, lease=job.attempt.lease, names=names_stored(job))
    forget_elsewhere(job.buckets.outputs, job.job_id)
