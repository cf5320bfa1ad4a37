"""``dsort plan``: what a job would do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dsort.cli import options
from dsort.cli.progress import Reporter, make_reporter
from dsort.cli.remote import Submission, is_remote, submit, write_report
from dsort.cli.run import read_fields, read_spec, run_options, show_spec
from dsort.cli.stopping import stoppable
from dsort.options import RunOptions

if TYPE_CHECKING:
    from dsort.spec.model import JobSpec

__all__ = ["plan", "show_plan"]


def plan(
    context: click.Context,
    spec: options.SpecSource,
    src: options.Source = None,
    dst: options.Destination = None,
    root: options.Root = None,
    show_all: options.ShowAll = False,
    overwrite: options.Overwrite = False,
    *,
    run: options.EngineArguments,
    progress: options.ProgressOption = "auto",
    as_json: options.AsJson = False,
    verbose: options.Verbose = False,
    service: options.ServiceOrHere,
    debug: options.Debug = False,
) -> None:
    """Show what a job would do: read and plan, but write nothing."""
    if is_remote(context):
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
    as_given = run_options(run, root=root, overwrite=overwrite)
    with make_reporter(progress) as reporter:
        job = read_spec(spec, src, dst, warn=reporter.warn)
        if verbose:
            show_spec(job)
        show_plan(job, as_given, reporter, as_json=as_json, show_all=show_all)


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

    with reporter, stoppable(reporter) as stop:
        report = api.plan(job, options=run, on_event=reporter, stop=stop)
    write_report(report, as_json=as_json, show_all=show_all)
