"""``dsort log``, ``dsort wait``, ``dsort rm``, ``dsort stop`` and ``dsort resume``: jobs that were
begun elsewhere, or before."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
from msgspec.structs import replace

from dsort.cli import exits, options, output
from dsort.cli.find import find_job, opener, scratch_bases
from dsort.cli.parameters import Option, Without
from dsort.cli.progress import make_reporter
from dsort.cli.remote import (
    command_words,
    connected,
    follow,
    found_jobs,
    is_remote,
    watch,
    write_report,
    write_result,
)
from dsort.cli.run import run_options, stoppable
from dsort.cli.show import replaced_shards, show_finished
from dsort.errors import (
    ConflictError,
    DsortError,
    ForbiddenError,
    JobConflictError,
    ObjectNotFoundError,
)
from dsort.options import RunOptions
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
            "continue.  [default: no limit]",
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
    not 0. Ctrl-C ends the command, and the jobs continue.

    \b
    Examples:
      dsort wait 20260131-235959-4f2a9c
      dsort wait $(dsort start -f spec.json) --timeout 2h
    """
    deadline_s = (
        None if timeout is None else time.monotonic() + options.duration_s(timeout, "--timeout")
    )
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
                f"job {', '.join(running)} has not ended: nothing was removed",
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
    reads the request within seconds."""
    timeout_s = options.duration_s(timeout, "--timeout")
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
        hint=f"`dsort show {job_id}` shows where",
    )


def _write(results: Sequence[StopResult], *, as_json: bool) -> None:
    documents = [{"job_id": job_id, "state": state} for job_id, state, _ in results]
    text = "\n".join(f"job {job_id} {words}" for job_id, _, words in results)
    one_or_all = documents[0] if len(documents) == 1 else documents
    output.write_either(one_or_all, text, as_json=as_json)


def resume(
    context: click.Context,
    job: options.JobName,
    bucket: options.JobBucket = None,
    root: options.Root = None,
    *,
    run: Annotated[options.EngineArguments, Without(("move",))],
    progress: options.ProgressOption = "auto",
    wait: options.WaitOption = False,
    run_code: Annotated[
        bool,
        Option(
            "--run-code",
            help="Run the code that is named in the steps of the job's spec, and the program "
            "of on_shard. The spec comes from the bucket: use --run-code only for a job of your "
            "own.",
        ),
    ] = False,
    as_json: options.AsJson = False,
    service: options.ServiceOrHere,
    debug: options.Debug = False,
) -> None:
    """Resume a job that was interrupted. Shards that the job's journal lists are not written again.
    Options may change only how the job runs. With a service: put the job back into the queue, and
    print the id of the job.

    \b
    Examples:
      dsort resume 20260131-235959-4f2a9c
      dsort resume 20260131 --bucket s3://shuffled --workers 8
    """
    if is_remote(context):
        with connected(context) as client:
            again = client.resume(found_jobs(client, [job])[0].job_id)
            follow(context, client, again, wait=wait, progress=progress, as_json=as_json)
        return
    found = find_job(job, bucket=bucket, root=root)
    if found.finished:
        output.inform(f"job {found.job_id} has finished already")
        replaced = replaced_shards(found, found.parsed())
        for each in replaced:
            output.warn(f"job {found.job_id}: {each.words}")
        if found.in_place:
            as_given = replace(run_options(run, root=root, overwrite=False), runs_code=run_code)
            if not replaced:
                _finish_on_shard(found, as_given)
            _tidy(found, run.scratch, root)
            if not replaced:
                _tell_stale(found)
        show_finished(found, as_json=as_json)
        return
    as_given = replace(run_options(run, root=root, overwrite=False), runs_code=run_code)
    from dsort import api

    with make_reporter(progress) as reporter, stoppable(reporter) as stop:
        report = api.resume(
            found.job_id, found.bucket_uri, options=as_given, on_event=reporter, stop=stop
        )
    write_report(report, as_json=as_json)


def _finish_on_shard(found: FoundJob, as_given: RunOptions) -> None:
    """Run the program of ``on_shard`` for the remaining shards, or report that some remain."""
    from dsort import api

    with make_reporter("none") as reporter, stoppable(reporter) as stop:
        try:
            done = api.resume_on_shard(
                found.job_id, found.bucket_uri, options=as_given, on_event=reporter, stop=stop
            )
        except ForbiddenError:
            output.warn(
                "on_shard has not been run for all of its shards: --run-code runs it, for a job "
                "that is yours"
            )
            return
    if done:
        output.inform(f"on_shard was run for {done:,} shard{'s' * (done > 1)}")


def _tidy(found: FoundJob, scratch: Path | None, root: Path | None) -> None:
    """Remove the files of a job that died between its manifest and its end."""
    from dsort.job.gc import tidy_finished

    bases = [scratch] if scratch else scratch_bases()
    left = tidy_finished(found.bucket, found.job_id, scratch_bases=bases, opened=opener(root))
    if left:
        output.inform(
            f"removed the files that it had left: {', '.join(each.where for each in left)}"
        )


def _tell_stale(found: FoundJob) -> None:
    """Report the objects that the job had to remove after its commit, and that still exist. They
    belong to results that the job replaced."""
    from dsort.errors import InputError
    from dsort.job.stale_outputs import left_of_replaced
    from dsort.naming.names import first_few
    from dsort.results.manifest import parse_manifest

    try:
        manifest = parse_manifest(found.read())
    except InputError:
        return  # a manifest of another version, which cannot be read
    left = left_of_replaced(found.bucket, manifest)
    if left:
        objects, them = ("objects", "them") if len(left) > 1 else ("object", "it")
        output.warn(
            f"{len(left):,} {objects} of results that job {found.job_id} replaced will be left in "
            f"{output.place(found.bucket.uri)}, though the job was to remove {them}: "
            f"{first_few(left)}"
        )
