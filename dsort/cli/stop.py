"""``dsort stop``: end jobs that run somewhere else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import click

from dsort.cli import options, output
from dsort.cli.find import FoundJob, find_job
from dsort.cli.options import duration_s
from dsort.cli.parameters import Option
from dsort.cli.remote import connected, found_jobs, is_remote
from dsort.errors import JobConflictError, ObjectNotFoundError

if TYPE_CHECKING:
    from dsort.client import DsortClient, Job

__all__ = ["stop"]

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
    if as_json:
        documents = [{"job_id": job_id, "state": state} for job_id, state, _ in results]
        output.write_json(documents[0] if len(documents) == 1 else documents)
    else:
        for job_id, _, words in results:
            output.write(f"job {job_id} {words}")
