"""``dsort wait``: wait for jobs of a service."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import click

from dsort.cli import exits, options, output
from dsort.cli.options import duration_s
from dsort.cli.parameters import Option
from dsort.cli.remote import connected, found_jobs, watch, write_result
from dsort.errors import DsortError

if TYPE_CHECKING:
    from dsort.client import Job

__all__ = ["wait"]


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
    if as_json:
        output.write_json([job.document for job in ended])
    else:
        for job, error in zip(ended, errors, strict=True):
            output.write(f"job {job.job_id} {job.words}" + (f": {error}" if error else ""))
    codes = [exits.exit_code(error) for error in errors if error is not None]
    if codes:
        raise click.exceptions.Exit(codes[0])


def _error(job: Job) -> DsortError | None:
    try:
        job.raise_if_failed()
    except DsortError as error:
        return error
    return None
