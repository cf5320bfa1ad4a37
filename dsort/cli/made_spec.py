"""Runs, plans, prints or submits the spec that a verb makes from its options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import click

from dsort.cli import options, output
from dsort.cli.parameters import Option
from dsort.cli.progress import ProgressStyle, make_reporter
from dsort.cli.remote import Submission, is_remote, submit, write_report
from dsort.cli.run import read_spec, run_options, show_spec
from dsort.cli.stopping import stoppable

__all__ = ["MadeJob", "run_made_spec"]


class MadeJob(options.RunArguments, frozen=True, kw_only=True):
    """The options of each verb that makes a spec: where and how the job runs."""

    root: options.Root = None
    overwrite: options.Overwrite = False
    remove_stale: options.RemoveStale = False
    dry_run: Annotated[bool, Option("--dry-run", help="Read and plan, but write nothing.")] = False
    print_spec: Annotated[
        bool,
        Option(
            "--print-spec", help="Print the job spec as YAML, for `dsort start -f`; run nothing."
        ),
    ] = False
    progress: options.ProgressOption = "auto"
    as_json: options.AsJson = False
    verbose: options.Verbose = False
    wait: options.WaitOption = False
    priority: options.Priority = 0
    labels: options.Labels = None
    server: options.Server = None
    token_file: options.TokenFile = None
    local: options.Local = False
    debug: options.Debug = False


def run_made_spec(
    context: click.Context, fields: Mapping[str, Any], how: MadeJob, *, random_seed: bool = False
) -> None:
    """Run the job that ``fields`` describe, here or at a service, and put its report on stdout.
    ``random_seed``: the user did not choose the seed; it is printed once the spec is checked."""
    if how.overwrite:
        fields = {**fields, "overwrite": True}
    if how.remove_stale:
        fields = {**fields, "remove_stale": True}
    seed = fields["algorithm"]["seed"] if random_seed else ""
    if how.print_spec:
        _inform_of_seed(seed)
        _print_spec(fields, as_json=how.as_json)
        return
    style: ProgressStyle = how.progress
    if is_remote(context):
        _inform_of_seed(seed)
        asked = Submission(fields, how.priority, how.labels or (), how.dry_run)
        submit(
            context, asked, wait=how.wait, progress=style, as_json=how.as_json, verbose=how.verbose
        )
        return
    as_given = run_options(how, root=how.root, overwrite=how.overwrite)
    with make_reporter(style) as reporter:
        spec = read_spec(json.dumps(fields), None, None, warn=reporter.warn)
        _inform_of_seed(seed)
        if how.verbose:
            show_spec(spec)
        if how.dry_run:
            from dsort.cli.plan import show_plan

            show_plan(spec, as_given, reporter, as_json=how.as_json)
            return
        from dsort import api

        with stoppable(reporter) as stop:
            report = api.run(spec, options=as_given, on_event=reporter, stop=stop)
    write_report(report, as_json=how.as_json, beside_shard=spec.output_bck.is_stream)


def _inform_of_seed(seed: str) -> None:
    if seed:
        output.inform(f"seed {seed} (--seed {seed} gives this order again)")


def _print_spec(fields: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        output.write_json(dict(fields))
        return
    import yaml

    output.write(yaml.safe_dump(dict(fields), sort_keys=False, allow_unicode=True).rstrip("\n"))
