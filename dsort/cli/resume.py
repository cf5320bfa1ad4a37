"""``dsort resume``: continue a job that died or was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click
from msgspec.structs import replace

from dsort.cli import options, output
from dsort.cli.find import find_job, opener, scratch_bases
from dsort.cli.parameters import Option, Without
from dsort.cli.progress import make_reporter
from dsort.cli.remote import connected, follow, found_jobs, is_remote, write_report
from dsort.cli.run import run_options, stoppable
from dsort.cli.show import replaced_shards, show_finished
from dsort.errors import ForbiddenError
from dsort.options import RunOptions
from dsort.reading.results import FoundJob


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
        output.inform(f"removed what it had left: {', '.join(each.where for each in left)}")


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
