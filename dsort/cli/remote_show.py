"""``dsort show`` of a service: its jobs, one line each, or all there is about one."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from dsort.cli import output, summary
from dsort.cli.progress import progress_text
from dsort.cli.remote import command_words, connected, found_jobs
from dsort.errors import NotFoundError, StorageError
from dsort.job.events import JobReport, PlanReport, Progress

if TYPE_CHECKING:
    from dsort.client import DsortClient, Job, JobProgress

__all__ = ["list_jobs", "show_job"]

JOBS_SHOWN = 20
OWNER_COLUMNS_MAX = 16


def list_jobs(
    context: typer.Context,
    *,
    states: Sequence[str],
    owner: str | None,
    labels: Sequence[str],
    show_all: bool,
    as_json: bool,
) -> None:
    """Put the service's jobs on stdout, newest first."""
    with connected(context) as client:
        found = client.list(
            state=states,
            owner=owner,
            label=labels,
            limit=None if show_all else JOBS_SHOWN + 1,
        )
        jobs = list(found)
    shown = jobs if show_all else list(itertools.islice(jobs, JOBS_SHOWN))
    if as_json:
        output.write_json([job.document for job in shown])
        return
    if not shown:
        output.inform("there is no such job" if states or owner or labels else "there is no job")
        return
    now = datetime.now(UTC)
    rows = [_row(job, now) for job in shown]
    header = ("JOB", "STATE", "PHASE", "DONE", "AGE", "OWNER")
    output.write(output.table(header, rows, right="lllrrl"))
    if len(jobs) > len(shown):
        output.inform("... and older ones (--all lists them)")


def _row(job: Job, now: datetime) -> tuple[str, ...]:
    phase, done = "", ""
    if job.state == "running":
        phase = job.phase or ""
        share = job.progress.share if job.progress else None
        done = "" if share is None else f"{share:.0%}"
    elif job.state == "queued" and job.queue_position:
        phase = f"number {job.queue_position}"
    elif job.kind == "plan":
        phase = "plan"
    age = "" if job.created_at is None else output.age((now - job.created_at).total_seconds())
    return job.job_id, job.words, phase, done, age, _cut(job.owner)


def _cut(text: str) -> str:
    text = output.printable(text)
    return text if len(text) <= OWNER_COLUMNS_MAX else text[: OWNER_COLUMNS_MAX - 1] + "…"


def show_job(context: typer.Context, name: str, *, show_all: bool, as_json: bool) -> None:
    """Put on stdout all there is about one job."""
    with connected(context) as client:
        job = found_jobs(client, [name])[0]
        if as_json:
            output.write_json(job.document)
            return
        output.write(output.fields(_lines(context, job)))
        shards = _shards(client, job, show_all)
    if shards:
        output.write(f"\n{shards}")


def _lines(context: typer.Context, job: Job) -> list[tuple[str, str]]:
    place = f", number {job.queue_position} in the queue" if job.queue_position else ""
    kind = ", a plan" if job.kind == "plan" else ""
    where = f"{job.host or ''}" + (f" (attempt {job.attempt})" if job.attempt > 1 else "")
    took = ", ".join(f"{each.phase} {output.duration(each.seconds)}" for each in job.phases)
    return [
        ("job", f"{job.job_id} {job.words}{place}{kind}"),
        ("why", output.printable(job.stop_reason or "") if job.error is None else ""),
        *_error_lines(job),
        ("what", output.printable(job.description)),
        ("from", output.printable(output.place(job.input_uri))),
        ("to", output.printable(output.place(job.output_uri))),
        ("owner", output.printable(job.owner)),
        ("labels", output.printable(", ".join(job.labels))),
        ("priority", str(job.priority or "")),
        ("schedule", output.printable(job.schedule or "")),
        ("queued", _moment(job.created_at)),
        ("began", _moment(job.started_at)),
        ("ended", _moment(job.ended_at)),
        ("on", output.printable(where)),
        ("now", _now(job)),
        ("took", took),
        *_figures(job.result),
        ("mixing", _mixing(job.document)),
        ("next", _next(context, job)),
    ]


def _error_lines(job: Job) -> list[tuple[str, str]]:
    if job.error is None:
        return []
    lines = job.error.message.strip().splitlines()
    return [
        *(
            ("error" if number == 0 else " ", output.printable(line))
            for number, line in enumerate(lines)
        ),
        ("hint", output.printable(job.error.hint)),
    ]


def _figures(report: JobReport | PlanReport | None) -> list[tuple[str, str]]:
    if report is None:
        return []
    return (
        summary.plan_lines(report) if isinstance(report, PlanReport) else summary.job_lines(report)
    )


def _mixing(view: Mapping[str, Any]) -> str:
    told = (view.get("result") or {}).get("mixing")
    return summary.mixing(view["spec"], told) if told else ""


def _now(job: Job) -> str:
    if job.state != "running":
        return ""
    if job.progress is None:
        return job.phase or "it begins"
    return f"{job.progress.phase}: {progress_text(_event(job.job_id, job.progress))}"


def _event(job_id: str, progress: JobProgress) -> Progress:
    return Progress(
        job_id,
        progress.phase,
        progress.shards_done,
        progress.shards_total,
        progress.records_done,
        progress.bytes_done,
        progress.bytes_total,
        progress.elapsed_s,
    )


def _next(context: typer.Context, job: Job) -> str:
    if not job.ended:
        words = {verb: command_words(context, verb, job.job_id) for verb in ("wait", "stop")}
        return "" if job.stopping else f"{words['wait']} waits for it, {words['stop']} ends it"
    if job.state == "finished":
        return ""
    return f"go on with {command_words(context, 'resume', job.job_id)}"


def _moment(at: datetime | None) -> str:
    return "" if at is None else at.astimezone().isoformat(" ", timespec="seconds")


def _shards(client: DsortClient, job: Job, show_all: bool) -> str:
    if isinstance(job.result, PlanReport):
        return summary.planned_shards(job.result, show_all)
    if job.state != "finished":
        return ""
    from dsort.cli.show import shards_text

    try:
        manifest: Mapping[str, Any] = client.manifest(job.job_id)
    except (NotFoundError, StorageError) as error:
        output.warn(f"its output shards cannot be told: {error.message}")
        return ""
    return shards_text(manifest["outputs"], show_all)
