"""``dsort plan``: what a job would do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from dsort.cli import options, output, summary
from dsort.cli.jobs import RunArguments, read_fields, read_spec, run_options, show_spec, stoppable
from dsort.cli.progress import Reporter, make_reporter
from dsort.cli.remote import there
from dsort.cli.remote_jobs import Submission, submit
from dsort.job.events import RunOptions

if TYPE_CHECKING:
    from dsort.spec.model import JobSpec

__all__ = ["plan", "show_plan"]


def plan(
    context: typer.Context,
    spec: options.SpecSource,
    src: options.Source = None,
    dst: options.Destination = None,
    root: options.Root = None,
    show_all: options.ShowAll = False,
    overwrite: options.Overwrite = False,
    workers: options.Workers = None,
    memory_max: options.MemoryMax = None,
    bandwidth_max: options.BandwidthMax = None,
    scratch: options.Scratch = None,
    move: options.Move = "auto",
    ray: options.Ray = False,
    ray_address: options.RayAddress = None,
    ray_resources: options.RayResources = None,
    ray_labels: options.RayLabels = None,
    progress: options.ProgressOption = "auto",
    as_json: options.AsJson = False,
    verbose: options.Verbose = False,
    server: options.Server = None,
    token_file: options.TokenFile = None,
    local: options.Local = False,
    debug: options.Debug = False,
) -> None:
    """Show what a job would do: read and plan, but write nothing."""
    if there(context):
        asked = Submission(read_fields(spec, src, dst, overwrite=overwrite), dry_run=True)
        submit(
            context,
            asked,
            wait=True,
            progress=progress,
            as_json=as_json,
            verbose=verbose,
            show_all=show_all,
        )
        return
    run = run_options(
        RunArguments(
            root,
            scratch,
            memory_max,
            move,
            workers,
            ray,
            ray_address,
            overwrite,
            bandwidth_max,
            ray_resources,
            ray_labels,
        )
    )
    with make_reporter(progress) as reporter:
        job = read_spec(spec, src, dst, warn=reporter.warn)
        if verbose:
            show_spec(job)
        show_plan(job, run, reporter, as_json=as_json, show_all=show_all)


def show_plan(
    job: JobSpec,
    run: RunOptions,
    reporter: Reporter,
    *,
    as_json: bool,
    show_all: bool = False,
) -> None:
    """Plan ``job`` and print the result."""
    from dsort import api

    with reporter, stoppable() as stop:
        report = api.plan(job, options=run, on_event=reporter, stop=stop)
    if as_json:
        output.write_json(report.to_dict())
    else:
        output.write(summary.plan(report, show_all=show_all))
