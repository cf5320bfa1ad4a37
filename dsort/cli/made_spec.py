"""Runs the spec that a verb makes of its options: ``convert``, ``ingest``, ``transform``."""

from __future__ import annotations

import json
from collections.abc import Mapping

from dsort.cli.plan import show_plan
from dsort.cli.progress import ProgressStyle, make_reporter
from dsort.cli.remote import write_report
from dsort.cli.run import read_spec, show_spec
from dsort.cli.stopping import stoppable
from dsort.options import RunOptions

__all__ = ["run_made_spec"]


def run_made_spec(
    fields: Mapping[str, object],
    src: str | None,
    dst: str | None,
    how: RunOptions,
    *,
    overwrite: bool,
    verbose: bool,
    dry_run: bool,
    progress: ProgressStyle,
    as_json: bool,
) -> None:
    """Run the job, or with ``dry_run`` plan it, and put on stdout what came of it."""
    with make_reporter(progress) as reporter:
        flags = {"overwrite": overwrite}
        spec = read_spec(json.dumps(fields), src, dst, warn=reporter.warn, flags=flags)
        if verbose:
            show_spec(spec)
        if dry_run:
            show_plan(spec, how, reporter, as_json=as_json)
            return
        from dsort import api

        with stoppable(reporter) as stop:
            report = api.run(spec, options=how, on_event=reporter, stop=stop)
    write_report(report, as_json=as_json)
