"""Jobs of a service, as the verbs handle them: submitted, watched to their end, told about."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from dsort.cli import output, summary
from dsort.cli.progress import JsonReporter, ProgressStyle, Reporter, make_reporter
from dsort.cli.remote import command_words, connected
from dsort.job.events import Event, JobReport, PlanReport

if TYPE_CHECKING:
    from dsort.client import DsortClient, Job, JobEvent

__all__ = ["Submission", "follow", "submit", "tell_end", "tell_report", "watch"]


@dataclasses.dataclass(frozen=True, slots=True)
class Submission:
    """A job as a verb hands it to a service."""

    fields: Mapping[str, Any]
    priority: int = 0
    labels: Sequence[str] = ()
    dry_run: bool = False


def submit(
    context: typer.Context,
    asked: Submission,
    *,
    wait: bool,
    progress: ProgressStyle,
    as_json: bool,
    verbose: bool,
    show_all: bool = False,
) -> None:
    """Submit a job. Its id is all that goes to stdout, unless it is to be waited for."""
    with connected(context) as client:
        job = client.submit(
            asked.fields,
            priority=asked.priority,
            labels=asked.labels,
            dry_run=asked.dry_run,
        )
        if verbose:
            output.inform(json.dumps(job.spec, indent=2))
        follow(
            context, client, job, wait=wait, progress=progress, as_json=as_json, show_all=show_all
        )


def follow(
    context: typer.Context,
    client: DsortClient,
    job: Job,
    *,
    wait: bool,
    progress: ProgressStyle,
    as_json: bool,
    show_all: bool = False,
) -> None:
    """Wait for a job in the queue and end as it does; or say only which one it is."""
    if not wait:
        if as_json:
            output.write_json(job.document)
        else:
            output.write(job.job_id)
        return
    if progress not in ("json", "none"):
        place = f", number {job.queue_position}" if job.queue_position else ""
        output.inform(f"job {job.job_id}: {job.words} at {client.url}{place}")
    ended = watch(context, client, job.job_id, progress=progress)
    tell_end(ended, as_json=as_json, show_all=show_all)


def watch(
    context: typer.Context,
    client: DsortClient,
    job_id: str,
    *,
    progress: ProgressStyle,
    timeout_s: float | None = None,
) -> Job:
    """The job once it is over; how far it is goes to stderr meanwhile. Ctrl-C ends the watching
    and lets the job be."""
    try:
        with make_reporter(progress) as reporter:
            return client.wait(
                job_id, timeout_s=timeout_s, on_event=lambda event: _show(reporter, event)
            )
    except KeyboardInterrupt:
        stop, wait = (command_words(context, verb, job_id) for verb in ("stop", "wait"))
        output.inform(f"job {job_id} goes on")
        output.inform(f"hint: {wait} waits for it,\n      {stop} ends it")
        raise typer.Exit(128 + signal.SIGINT) from None


def _show(reporter: Reporter, event: JobEvent) -> None:
    value = event.value
    if isinstance(value, Event):
        reporter(value)
        return
    from dsort.client import StateChanged

    if isinstance(reporter, JsonReporter) or not isinstance(value, StateChanged):
        return
    if value.state == "running" and value.attempt > 1:
        with contextlib.suppress(BrokenPipeError):
            reporter.line(f"job {value.job_id}: taken up again (attempt {value.attempt})")


def tell_end(job: Job, *, as_json: bool, show_all: bool = False) -> None:
    """Put the result of a job on stdout, as the verb does that runs it here; the job's error is
    raised."""
    job.raise_if_failed()
    report = job.result
    if report is None:
        output.write(f"job {job.job_id} {job.words}")
    else:
        tell_report(report, as_json=as_json, show_all=show_all)


def tell_report(report: JobReport | PlanReport, *, as_json: bool, show_all: bool = False) -> None:
    """Put on stdout what a job did, here or at a service, or what it would do."""
    if as_json:
        output.write_json(report.to_dict())
    elif isinstance(report, PlanReport):
        output.write(summary.plan(report, show_all=show_all))
    else:
        output.write(summary.job(report))
