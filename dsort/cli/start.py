"""``dsort start``: run a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import click

from dsort.cli import options
from dsort.cli.parameters import Option
from dsort.cli.progress import make_reporter
from dsort.cli.remote import Submission, is_remote, submit, write_report
from dsort.cli.run import read_fields, read_spec, run_options, show_spec
from dsort.cli.stopping import stoppable
from dsort.errors import SpecError

if TYPE_CHECKING:
    from dsort.spec.model import JobSpec

__all__ = ["start"]

DryRun = Annotated[
    bool, Option("--dry-run", help="Read and plan, but write nothing, as `dsort plan` does.")
]


def start(
    context: click.Context,
    spec: options.SpecSource,
    src: options.Source = None,
    dst: options.Destination = None,
    root: options.Root = None,
    dry_run: DryRun = False,
    overwrite: options.Overwrite = False,
    remove_stale: options.RemoveStale = False,
    *,
    run: options.EngineArguments,
    progress: options.ProgressOption = "auto",
    wait: options.WaitOption = False,
    priority: options.Priority = 0,
    labels: options.Labels = None,
    as_json: options.AsJson = False,
    verbose: options.Verbose = False,
    service: options.ServiceOrHere,
    debug: options.Debug = False,
) -> None:
    """Run a job: shuffle, sort or reshard a bucket. With a service: queue the job, and
    print the id of the job.

    \b
    Examples:
      dsort start -f shuffle.json
      dsort start images shuffled -f shuffle.yaml --workers 8
      cat spec.json | dsort start -f -
      tar c images | dsort start - shuffled -f shuffle.yaml
      dsort start images - -f shuffle.yaml | tar x
      dsort start -f spec.json --server http://127.0.0.1:8080 --wait
    """
    flags = {"overwrite": overwrite, "remove_stale": remove_stale}
    if is_remote(context):
        asked = Submission(read_fields(spec, src, dst, **flags), priority, labels or (), dry_run)
        submit(context, asked, wait=wait, progress=progress, as_json=as_json, verbose=verbose)
        return
    as_given = run_options(run, root=root, overwrite=overwrite)
    with make_reporter(progress) as reporter:
        job = read_spec(spec, src, dst, warn=reporter.warn, flags=flags)
        _refuse_one_stdin(spec, job)
        if verbose:
            show_spec(job)
        if dry_run or job.dry_run:
            from dsort.cli.plan import show_plan

            show_plan(job, as_given, reporter, as_json=as_json)
            return
        from dsort import api

        with stoppable(reporter) as stop:
            report = api.run(job, options=as_given, on_event=reporter, stop=stop)
    write_report(report, as_json=as_json, beside_shard=job.output_bck.is_stream)


def _refuse_one_stdin(source: str, spec: JobSpec) -> None:
    if source == "-" and any(each.bucket.uri == "-" for each in spec.sources):
        raise SpecError(
            "standard input cannot be the spec and a shard",
            hint="put the spec into a file, or write it behind -f: -f '{...}'",
        )
