"""``dsort start``: run a job."""

from __future__ import annotations

from typing import Annotated

import typer

from dsort.cli import options, output, summary
from dsort.cli.jobs import RunArguments, read_spec, run_options, show_spec, stoppable
from dsort.cli.plan import show_plan
from dsort.cli.progress import make_reporter

__all__ = ["start"]


def start(
    spec: options.SpecSource,
    src: options.Source = None,
    dst: options.Destination = None,
    root: options.Root = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and plan, but write nothing: as `dsort plan`.")
    ] = False,
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
    debug: options.Debug = False,
) -> None:
    """Run a job: shuffle, sort or reshard what is in a bucket.

    \b
    Examples:
      dsort start -f shuffle.json
      dsort start images shuffled -f shuffle.yaml --workers 8
      cat spec.json | dsort start -f -
    """
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
        if dry_run or job.dry_run:
            show_plan(job, run, reporter, as_json=as_json)
            return
        from dsort import api

        with stoppable() as stop:
            report = api.run(job, options=run, on_event=reporter, stop=stop)
    if as_json:
        output.write_json(report.to_dict())
    else:
        output.write(summary.job(report))
