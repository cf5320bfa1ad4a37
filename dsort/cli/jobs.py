"""``dsort log``, ``dsort wait``, ``dsort rm`` and ``dsort stop``: jobs that run somewhere else."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import click

from dsort.cli import exits, options, output
from dsort.cli.find import find_job
from dsort.cli.options import duration_s
from dsort.cli.parameters import Option
from dsort.cli.remote import command_words, connected, found_jobs, is_remote, watch, write_result
from dsort.errors import ConflictError, DsortError, JobConflictError, ObjectNotFoundError
from dsort.reading.results import FoundJob

if TYPE_CHECKING:
    from dsort.client import DsortClient, Job


def log(
    context: click.Context,
    job: options.RemoteJob,
    follow: Annotated[
        bool, Option("--follow", help="Print new lines of the log, until the job has ended.")
    ] = False,
    as_json: options.AsJson = False,
    *,
    service: options.Service,
    debug: options.Debug = False,
) -> None:
    """Print the log of a job of a service: the lines of the job's process, in all attempts.

    With --json and --follow, the JSON document is printed when the job has ended.
    """
    with connected(context) as client:
        job_id = found_jobs(client, [job])[0].job_id
        pieces = client.follow_log(job_id) if follow else [client.log(job_id)]
        if as_json:
            output.write_json({"job_id": job_id, "log": "".join(pieces)})
            return
        for piece in pieces:
            if piece:
                output.write(piece.removesuffix("\n"))


def wait(
    context: click.Context,
    jobs: options.RemoteJobs,
    timeout: Annotated[
        str | None,
        Option(
            "--timeout",
            metavar="DURATION",
            help="The longest time to wait, as in 30s, 15m or 2h. After this time the jobs "
            "run on.  [default: no limit]",
        ),
    ] = None,
    progress: options.ProgressOption = "auto",
    as_json: options.AsJson = False,
    *,
    service: options.Service,
    debug: options.Debug = False,
) -> None:
    """Wait until jobs of a service have ended.

    The command exits with the exit code of the first job, in the order given, whose exit code is
    not 0. Ctrl-C ends the command, and the jobs run on.

    \b
    Examples:
      dsort wait 20260131-235959-4f2a9c
      dsort wait $(dsort start -f spec.json) --timeout 2h
    """
    deadline_s = None if timeout is None else time.monotonic() + duration_s(timeout, "--timeout")
    with connected(context) as client:
        found = found_jobs(client, jobs)
        ended = []
        for job in found:
            left_s = None if deadline_s is None else max(deadline_s - time.monotonic(), 0.0)
            ended.append(
                job
                if job.ended
                else watch(context, client, job.job_id, progress=progress, timeout_s=left_s)
            )
    if len(ended) == 1:
        write_result(ended[0], as_json=as_json)
        return
    errors = [_error(job) for job in ended]
    lines = [
        f"job {job.job_id} {job.words}" + (f": {error}" if error else "")
        for job, error in zip(ended, errors, strict=True)
    ]
    output.write_either([job.document for job in ended], "\n".join(lines), as_json=as_json)
    codes = [exits.exit_code(error) for error in errors if error is not None]
    if codes:
        raise click.exceptions.Exit(codes[0])


def _error(job: Job) -> DsortError | None:
    try:
        job.raise_if_failed()
    except DsortError as error:
        return error
    return None


def rm(
    context: click.Context,
    jobs: options.RemoteJobs,
    as_json: options.AsJson = False,
    *,
    service: options.Service,
    debug: options.Debug = False,
) -> None:
    """Remove ended jobs from the history of a service. The shards that the jobs wrote stay."""
    with connected(context) as client:
        found = found_jobs(client, jobs)
        running = [job.job_id for job in found if not job.ended]
        if running:
            raise ConflictError(
                f"job {', '.join(running)} is not over: nothing was removed",
                hint=f"{command_words(context, 'stop', *running)} ends it",
            )
        for job in found:
            client.remove(job.job_id)
            if not as_json:
                output.write(f"job {job.job_id} is removed from the history")
    if as_json:
        output.write_json([{"job_id": job.job_id, "removed": True} for job in found])


StopResult = tuple[str, str, str]
"""A job's id, its state, and a description of the state."""


def stop(
    context: click.Context,
    jobs: options.JobNames,
    bucket: options.JobBucket = None,
    root: options.Root = None,
    reason: Annotated[
        str,
        Option(
            "--reason",
            metavar="TEXT",
            help="With a service: the reason for the stop, for the history of the service.",
        ),
    ] = "",
    timeout: Annotated[
        str,
        Option(
            "--timeout",
            metavar="DURATION",
            help="The longest time to wait for the end of each job; 0s: do not wait.",
        ),
    ] = "10m",
    as_json: options.AsJson = False,
    *,
    service: options.ServiceOrHere,
    debug: options.Debug = False,
) -> None:
    """Stop jobs that run on this machine or elsewhere, and wait until the jobs have ended. A job
    sees the request within seconds."""
    timeout_s = duration_s(timeout, "--timeout")
    if is_remote(context):
        with connected(context) as client:
            found = found_jobs(client, jobs)
            asked = [job if job.ended else client.stop(job.job_id, reason=reason) for job in found]
            results = [
                _stopped_there(client, *each, timeout_s) for each in zip(found, asked, strict=True)
            ]
    else:
        results = [
            _stopped_here(find_job(job, bucket=bucket, root=root), timeout_s) for job in jobs
        ]
    _write(results, as_json=as_json)


def _stopped_here(found: FoundJob, timeout_s: float) -> StopResult:
    from dsort.results.layout import manifest_name
    from dsort.results.lease import stop_job

    if found.finished:
        return found.job_id, "finished", "has finished already"
    hold = stop_job(found.bucket, found.job_id, wait_s=timeout_s)
    if hold.live:
        raise _still_runs(found.job_id)
    try:
        found.bucket.stat(manifest_name(found.job_id))
    except ObjectNotFoundError:
        return found.job_id, "stopped", "has stopped"
    return found.job_id, "finished", "has finished meanwhile"


def _stopped_there(client: DsortClient, before: Job, asked: Job, timeout_s: float) -> StopResult:
    from dsort.client import WaitTimeoutError

    if before.ended:
        return before.job_id, before.state, f"has {before.state} already"
    try:
        job = asked if asked.ended else client.wait(asked.job_id, timeout_s=timeout_s)
    except WaitTimeoutError as error:
        raise _still_runs(asked.job_id) from error
    meanwhile = "" if job.state == "stopped" else " meanwhile"
    return job.job_id, job.state, f"has {job.state}{meanwhile}"


def _still_runs(job_id: str) -> JobConflictError:
    return JobConflictError(
        f"job {job_id} was asked to stop, but it still runs",
        hint=f"`dsort show {job_id}` says where",
    )


def _write(results: Sequence[StopResult], *, as_json: bool) -> None:
    documents = [{"job_id": job_id, "state": state} for job_id, state, _ in results]
    text = "\n".join(f"job {job_id} {words}" for job_id, _, words in results)
    one_or_all = documents[0] if len(documents) == 1 else documents
    output.write_either(one_or_all, text, as_json=as_json)
