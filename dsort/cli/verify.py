"""``dsort verify``: compares a result with its manifest and its inputs."""

from __future__ import annotations

from typing import Annotated

import click

from dsort.cli import exits, options, output, summary
from dsort.cli.find import data_root, find_job, user_settings
from dsort.cli.parameters import Option
from dsort.cli.progress import make_reporter
from dsort.cli.stopping import stoppable
from dsort.errors import InputError, VerifyError
from dsort.options import RunOptions

__all__ = ["verify"]


def verify(
    job: options.JobOrManifest,
    bucket: options.JobBucket = None,
    root: options.Root = None,
    max_expansion: options.VerifyMaxExpansion = None,
    memory_max: options.VerifyMemoryMax = None,
    run_code: Annotated[
        bool,
        Option(
            "--run-code",
            help="Run the code that is named in the steps of the job's spec once more, and "
            "compare the records that the code makes. The spec comes from the manifest: use "
            "--run-code only for a job of your own.",
        ),
    ] = False,
    progress: options.ProgressOption = "auto",
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Read the inputs and the outputs of a job again, and compare the records.

    The command checks that every record is there once, that bytes and checksums are equal, and that
    the order and the duplicates are as the spec says.
    """
    from dsort import api

    found = find_job(job, bucket=bucket, root=root, finished=True)
    if not found.finished:
        raise InputError(
            f"job {found.job_id} did not finish: it has no result",
            hint=f"see what it did with `dsort show {found.job_id} --bucket {found.bucket.uri}`",
        )
    settings = user_settings()
    memory_max_bytes = (
        None if memory_max is None else options.size_bytes(memory_max, "--max-memory", least=1)
    )
    run = RunOptions(
        root=data_root(root, settings),
        memory_max_bytes=memory_max_bytes or settings.memory_max_bytes,
        settings=settings,
    )
    with make_reporter(progress) as reporter, stoppable(reporter) as stop:
        report = api.verify(
            found.read(),
            output_uri=found.bucket.uri if found.in_place else None,
            max_expansion=max_expansion,
            run_code=run_code,
            options=run,
            on_event=reporter,
            stop=stop,
        )
    if as_json:
        output.write_json(report.to_dict())
    else:
        output.write(summary.verification(report))
    if not report.ok:
        differences = output.count(report.problem_count, "difference")
        error = VerifyError(f"the result of job {report.job_id} has {differences}")
        raise click.exceptions.Exit(exits.report_error(error, as_json=False, debug=debug))
