"""A job that is stopped from outside: its work is kept for ``dsort resume``, as after a kill, and
the error reports how much that is and which commands resume or discard it.
"""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from urllib.parse import unquote

from dsort.errors import DsortError, JobStoppedError, StorageError, StorageFullError
from dsort.job.commit import take_names_back
from dsort.job.gc import KeepsUploads, measure_directory
from dsort.job.job import Job
from dsort.job.setup.worker_setup import scratch_place
from dsort.options import RunOptions
from dsort.pipeline.compile import steps_of
from dsort.results.journal import list_job_directories, read_journal
from dsort.sizes import format_bytes
from dsort.spec.model import JobSpec
from dsort.storage.routed import bucket_named


def is_from_outside(job: Job, error: BaseException | None) -> bool:
    """Whether ``error`` ended from outside a job that has done something and can be resumed: a
    signal, Ctrl-C in Python, or a full disk; neither a failure of the job nor a request to discard
    it."""
    if job.stop.discards or job.buckets.streams:
        return False
    outside = (JobStoppedError, StorageFullError, KeyboardInterrupt, SystemExit)
    has_begun = job.attempt.is_resumed or "extract" in job.reporter.state.phases
    return isinstance(error, outside) and has_begun


def is_full_scratch(job: Job, error: BaseException | None) -> bool:
    """Whether it is scratch that is full, so that scratch has to be removed."""
    place = error.place if isinstance(error, StorageFullError) else ""
    return place.startswith(str(scratch_place(job, dry=False)))


def suspend(job: Job, error: BaseException) -> None:
    """Keep journal and staged shards, release the job's lease, and add to ``error`` what is kept.
    The workers have ended by now. Only for the holder of the lease."""
    try:
        with contextlib.suppress(StorageError):  # a full disk: the journal stays as after a kill
            job.attempt.journal.flush()
        words = _names_taken_back(job)
    finally:
        job.attempt.lease.release()
    try:
        kept = f"{format_bytes(_kept_bytes(job))} of what it did are kept"
    except StorageError as problem:
        kept = f"what it did is kept; how much that is cannot be read: {problem.message}"
    commands = (
        f"`{resume_command(job.job_id, job.spec, job.options)}` goes on, "
        f"`{gc_command(job.job_id, job.spec, job.options)}` discards what is kept"
    )
    said = "; ".join(filter(None, [kept, words]))
    if isinstance(error, DsortError):
        error.message = f"{error.message}; {said}"
        error.hint = "; ".join(filter(None, [error.hint, commands]))
    else:
        error.add_note(f"job {job.job_id}: {said}; {commands}")


def begin_again(job: Job) -> str:
    """The hint for a job of which only a report is left."""
    command = resume_command(job.job_id, job.spec, job.options)
    return f"`{command}` begins it again, with its seed and its inputs"


def resume_command(job_id: str, spec: JobSpec, options: RunOptions) -> str:
    """The command that resumes a job, with the options that are needed to find the job and to run
    it as before."""
    words = ["dsort", "resume", job_id]
    if options.fetch is not None:
        return shlex.join(words)  # a service finds its jobs by itself
    where = spec.output_bck
    if where.scheme or "/" in where.path:  # else the job is found without its bucket
        words += ["--bucket", _place(where.uri)]
    words += _finding(options)
    if options.ray_address is not None:
        words += ["--ray-address", options.ray_address]
    elif options.runtime == "ray":
        words.append("--ray")
    runs_code = spec.on_shard is not None
    runs_code |= not all(each.is_safe_from_network for each in steps_of(spec))
    return shlex.join(words + ["--run-code"] * runs_code)


def gc_command(job_id: str, spec: JobSpec, options: RunOptions) -> str:
    """The command that discards what is left of one job."""
    words = ["dsort", "gc", _place(spec.output_bck.uri), "--job", job_id, "--remove"]
    return shlex.join(words + _finding(options))


def _finding(options: RunOptions) -> list[str]:
    here = options.root.absolute() == Path.cwd()
    root = [] if here else ["--root", str(options.root)]
    return root + ([] if options.scratch is None else ["--scratch", str(options.scratch)])


def _place(uri: str) -> str:
    """A path, which is easier to copy, for the URI of a directory of this machine."""
    return unquote(uri.removeprefix("file://")) if uri.startswith("file:///") else uri


def _names_taken_back(job: Job) -> str:
    """Take back the names of output shards, if the shards survive that; returns what the user has
    to know about it."""
    if not job.outcome.naming:
        return ""
    named = (bucket_named(job.buckets.outputs, place.name) for place in job.buckets.output_places)
    if any(bucket.seals_on_finish for bucket in named):
        return "some output shards may have their names by now, and there is no manifest"
    try:
        return take_names_back(job).words(job.buckets.outputs.uri)
    except StorageError as problem:
        return f"not all of it could be undone: {problem.message}"


def _kept_bytes(job: Job) -> int:
    """The bytes of the job in its output buckets, unfinished uploads included, and in its scratch
    on this machine."""
    bucket, scratch = job.buckets.outputs, scratch_place(job, dry=False)
    total = sum(each.size_bytes for each in list_job_directories(bucket, job.job_id))
    inside = bucket.local_path("x")
    if inside is None or not scratch.is_relative_to(inside.parent.absolute()):
        total += measure_directory(scratch)[1]
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
