"""``dsort start``, ``dsort plan`` and ``dsort spec``: run, plan or check the job of a spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import click

from dsort.cli import options, output
from dsort.cli.parameters import Option
from dsort.cli.progress import make_reporter
from dsort.cli.remote import Submission, connected, is_remote, submit, write_report
from dsort.cli.run import read_fields, read_spec, run_options, run_or_plan
from dsort.errors import SpecError

if TYPE_CHECKING:
    from dsort.spec.model import JobSpec


def start(
    context: click.Context,
    spec: options.SpecSource,
    src: options.Source = None,
    dst: options.Destination = None,
    root: options.Root = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Read and plan, but write nothing, as `dsort plan` does.")
    ] = False,
    overwrite: options.Overwrite = False,
    remove_stale: options.RemoveStale = False,
    force: options.Force = False,
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
    as_given = run_options(run, root=root, overwrite=overwrite, force=force)
    with make_reporter(progress) as reporter:
        job = read_spec(spec, src, dst, warn=reporter.warn, flags=flags)
        _refuse_one_stdin(spec, job)
        dry_run = dry_run or job.dry_run
        report = run_or_plan(job, as_given, reporter, dry_run=dry_run, verbose=verbose)
    write_report(report, as_json=as_json, beside_shard=job.output_bck.is_stream)


def _refuse_one_stdin(source: str, spec: JobSpec) -> None:
    if source == "-" and any(each.bucket.uri == "-" for each in spec.sources):
        raise SpecError(
            "standard input cannot be the spec and a shard",
            hint="put the spec into a file, or write it behind -f: -f '{...}'",
        )


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
        report = run_or_plan(job, as_given, reporter, dry_run=True, verbose=verbose)
    write_report(report, as_json=as_json, show_all=show_all)


def check(
    context: click.Context,
    spec: options.SpecSource,
    src: options.Source = None,
    dst: options.Destination = None,
    as_json: options.AsJson = False,
    *,
    service: options.ServiceOrHere,
    debug: options.Debug = False,
) -> None:
    """Check a job spec without looking at any data. All problems are printed at once. With
    a service: also check whether the service would accept the spec.

    With --json, print the spec with the current names of fields and with every default.
    """
    if is_remote(context):
        with connected(context) as client:
            found = client.validate(read_fields(spec, src, dst))
        for warning in found.warnings:
            output.warn(warning)
        canonical = found.spec
    else:
        canonical = read_spec(spec, src, dst, warn=output.warn).canonical()
    output.write_either(canonical, "the spec is valid", as_json=as_json)


def schema(
    context: click.Context,
    as_json: options.AsJson = False,
    *,
    service: options.ServiceOrHere,
    debug: options.Debug = False,
) -> None:
    """Print the JSON Schema of a job spec, for editors and other tools. With a service: print the
    schema of the service. The output is always JSON, with --json and without."""
    if service.server and not service.local:
        with connected(context) as client:
            output.write_json(client.schema())
        return
    from dsort.spec.model import schema as job_schema

    output.write_json(job_schema())
