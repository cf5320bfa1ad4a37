"""Removes the work of a job that does not come to its end. If it is stopped from outside, its work
is kept for ``dsort resume``, as after a kill. The error then reports how much work is kept, and the
commands that resume or discard it.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from urllib.parse import unquote

from msgspec.structs import replace

from dsort.errors import DsortError, JobStoppedError, StorageError, StorageFullError
from dsort.job.commit import rollback, take_names_back
from dsort.job.gc import KeepsUploads, measure_directory
from dsort.job.job import Job
from dsort.job.resume import report_bytes, report_of
from dsort.log_lines import logger_of, one_sentence
from dsort.options import RunOptions
from dsort.pipeline.compile import steps_of
from dsort.results.journal import discard_run, list_job_directories, read_journal
from dsort.results.layout import manifest_name, report_name
from dsort.results.lease import Lease, NoLease
from dsort.results.manifest import ManifestOutput
from dsort.results.transaction import PutBack
from dsort.sizes import format_bytes
from dsort.spec.model import JobSpec
from dsort.spec.outputs import OnShard
from dsort.storage.routed import bucket_named

log = logger_of("job")


def abort(job: Job, error: BaseException) -> None:
    """Remove everything of the job except its report, from which it can be started again. A job
    that was stopped from outside keeps what it has done. A job that another process has taken over
    is left alone."""
    job.stop.heed()
    log.debug("the job did not come to its end: %s", one_sentence(str(error)))
    lease, has_begun = job.attempt.lease, job.attempt.has_begun
    lost = _is_lost(job, lease)
    outside = has_begun and is_from_outside(job, error)
    full = error.place if isinstance(error, StorageFullError) else ""
    scratch = job.found.scratch
    fills_scratch = bool(scratch) and full.startswith(scratch)  # then scratch is removed
    # Workers are ended before anything is removed: a worker could store more after the removal.
    job.runtime.close(keep_scratch=lost or (outside and not fills_scratch))
    if not has_begun:
        return
    if lost:
        lease.close()
        if lease.lost:
            _clean_after_others(job)
            lease.check()  # raises an error: the loss of the lease has caused `error`
        return
    if outside:
        suspend(job, error)
        return
    # The job reports the error that ended it, even if there is no room for its report.
    try:
        done = rollback(job)
        _tell_put_back(job, error, done)
        if not done.lost:  # else the files stay for `dsort resume` or `dsort gc`
            discard_run(job.buckets.outputs, job.job_id, lease=lease)
    except StorageError as problem:
        job.reporter.warn(
            "unfinished", f"not all of its work could be undone: {problem.message}; {_later(job)}"
        )
    lease.close()
    reason = one_sentence(str(error)) or type(error).__name__  # many users can read the bucket
    report = replace(report_of(job, None, state="aborted", manifest=None), error=reason)
    if job.found.base.has_removed:  # records of this job may have the removed keys
        reactions = tuple(replace(each, samples=()) for each in report.reactions)
        error_kind = f"{type(error).__name__}; names are not kept beside a result with removed keys"
        report = replace(report, reactions=reactions, warnings=(), error=error_kind)
    with contextlib.suppress(StorageError):
        job.buckets.outputs.write(report_name(job.job_id), report_bytes(job, report))
        if isinstance(error, JobStoppedError) and not job.buckets.streams:
            command = resume_command(job.job_id, job.spec, job.options)
            error.hint = f"`{command}` starts the job again, with the same seed and inputs"


def _tell_put_back(job: Job, error: BaseException, done: PutBack) -> None:
    """Add to the error that ended the job (or to a warning) which objects were put back, and which
    were not."""
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
    return f"`dsort resume {job.job_id}` resumes the job, `dsort gc {uri} --remove` undoes it"


def _is_lost(job: Job, lease: Lease | NoLease) -> bool:
    """Whether this process must not clean up: the lease is lost, or its state is unknown because
    the store is out of reach. In the second case everything is left to `dsort resume`."""
    try:
        return lease.is_lost()
    except StorageError:
        text = "the bucket cannot be reached: its objects stay as they are"
        job.reporter.warn("unfinished", f"{text}; {_later(job)}" if job.outcome.naming else text)
        return True


def _clean_after_others(job: Job) -> None:
    """If another process has finished the job, remove what this process wrote afterwards."""
    with contextlib.suppress(StorageError):
        if job.buckets.outputs.stat_many([manifest_name(job.job_id)]):
            discard_run(job.buckets.outputs, job.job_id)


def is_from_outside(job: Job, error: BaseException) -> bool:
    """Whether ``error`` came from outside (a signal, Ctrl-C in Python, a full disk), so that the
    job keeps its work and can be resumed. A failure of the job, or a request to discard it, does
    not count."""
    # A stream can be neither read nor written a second time.
    if job.stop.discards or job.buckets.streams:
        return False
    outside = (JobStoppedError, StorageFullError, KeyboardInterrupt, SystemExit)
    has_begun = job.attempt.is_resumed or "extract" in job.reporter.state.phases
    return isinstance(error, outside) and has_begun


def suspend(job: Job, error: BaseException) -> None:
    """Keep journal and staged shards, release the job's lease, and add to ``error`` what is kept.
    The workers have ended by now. Only the process that holds the lease may call this function."""
    try:
        with contextlib.suppress(StorageError):  # a full disk: the journal stays as after a kill
            job.attempt.journal.flush()
        words = _names_taken_back(job)
    finally:
        # The lease is released even if the disk is full: else a later attempt waits until it
        # lapses.
        job.attempt.lease.release()
    try:
        kept = f"{format_bytes(_kept_bytes(job))} of its work are kept"
    except StorageError as problem:
        kept = f"its work is kept; the size of this work cannot be read: {problem.message}"
    commands = (
        f"`{resume_command(job.job_id, job.spec, job.options)}` resumes the job, "
        f"`{gc_command(job.job_id, job.spec, job.options)}` discards what is kept"
    )
    said = "; ".join(filter(None, [kept, words]))
    if isinstance(error, DsortError):
        error.message = f"{error.message}; {said}"
        error.hint = "; ".join(filter(None, [error.hint, commands]))
    else:
        error.add_note(f"job {job.job_id}: {said}; {commands}")


def resume_command(job_id: str, spec: JobSpec, options: RunOptions) -> str:
    """The command that resumes a job, with all options that it needs to find the job and to run it
    as before."""
    words = ["dsort", "resume", job_id]
    if options.fetch:
        return shlex.join(words)  # a service finds its jobs by itself
    where = spec.output_bck
    if where.scheme or "/" in where.path:  # else the job is found without its bucket
        words += ["--bucket", _place(where.uri)]
    words += _finding(options)
    if options.ray_address:
        words += ["--ray-address", options.ray_address]
    elif options.runtime == "ray":
        words.append("--ray")
    runs_code = bool(spec.on_shard)
    runs_code |= not all(each.is_safe_from_network for each in steps_of(spec))
    return shlex.join(words + ["--run-code"] * runs_code)


def run_on_shards_of(job: Job, wanted: OnShard, outputs: Sequence[ManifestOutput]) -> None:
    """Run the program of a job for its ``outputs``, which have their names. If the job is stopped,
    the error has the command that runs the program for the other shards."""
    from dsort.job.programs import run_on_shards

    try:
        run_on_shards(
            wanted,
            job.job_id,
            job.buckets.outputs,
            outputs,
            stop=job.stop,
            warn=partial(job.reporter.warn, "on_shard"),
        )
    except JobStoppedError as stopped:
        job.stop.heed()
        command = resume_command(job.job_id, job.spec, job.options)
        stopped.hint = f"the result is complete; `{command}` runs on_shard for the other shards"
        raise


def gc_command(job_id: str, spec: JobSpec, options: RunOptions) -> str:
    """The command that discards the files that are left of one job."""
    words = ["dsort", "gc", _place(spec.output_bck.uri), "--job", job_id, "--remove"]
    return shlex.join(words + _finding(options))


def _finding(options: RunOptions) -> list[str]:
    here = options.root.absolute() == Path.cwd()
    root = [] if here else ["--root", str(options.root)]
    return root + (["--scratch", str(options.scratch)] if options.scratch else [])


def _place(uri: str) -> str:
    """The place ``uri`` in a form that is easy to copy: a directory of this machine becomes a
    path."""
    return unquote(uri.removeprefix("file://")) if uri.startswith("file:///") else uri


def _names_taken_back(job: Job) -> str:
    """Take back the names of output shards, in buckets where shards can exist without names. Return
    a text about this for the user."""
    if not job.outcome.naming:
        return ""
    if job.buckets.some_seal_on_finish:
        return "some output shards may have their names by now, and there is no manifest"
    try:
        return take_names_back(job).words(job.buckets.outputs.uri)
    except StorageError as problem:
        return f"not all of its work could be undone: {problem.message}"


def _kept_bytes(job: Job) -> int:
    """The bytes of the job in its output buckets, unfinished uploads included, and in its scratch
    on this machine."""
    bucket = job.buckets.outputs
    total = sum(each.size_bytes for each in list_job_directories(bucket, job.job_id))
    inside = bucket.local_path("x")
    scratch = job.found.scratch
    if scratch and not (inside and Path(scratch).is_relative_to(inside.parent.absolute())):
        total += measure_directory(Path(scratch))[1]
    for place in job.buckets.output_places:
        if isinstance(bucket_named(bucket, place.name), KeepsUploads):
            return total + _uploaded_bytes(job)
    return total


def _uploaded_bytes(job: Job) -> int:
    """The bytes of the output shards that wait in unfinished uploads."""
    state = read_journal(job.buckets.outputs, job.job_id)
    planned = state.planned.shards
    created = [(planned[at], each) for at, each in state.created.items() if at < len(planned)]
    return sum(max(row.stored_bytes, each.file_bytes) for row, each in created)
