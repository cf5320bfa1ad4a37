"""Lists of jobs: those of buckets, and those of a service."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dsort.cli import output
from dsort.cli.find import FoundJob, data_root, known_jobs, user_settings
from dsort.cli.remote import connected
from dsort.cli.unfinished import look_at

if TYPE_CHECKING:
    from dsort.client import Job

__all__ = ["list_jobs", "list_jobs_here"]

JOBS_SHOWN = 20
OWNER_COLUMNS_MAX = 16


def list_jobs_here(bucket: str | None, root: Path | None, *, show_all: bool, as_json: bool) -> None:
    """Put the jobs that have files in ``bucket``, or in buckets of the data root, on stdout."""
    here = data_root(root, user_settings())
    jobs = sorted(known_jobs(bucket, here), key=lambda each: each.job_id, reverse=True)
    shown = jobs if show_all else jobs[:JOBS_SHOWN]
    rows = [(each.job_id, _state_of(each), each.bucket.uri) for each in shown]
    if as_json:
        names = ("job_id", "state", "bucket")
        output.write_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    if not rows:
        where = bucket or f"{here.resolve()} and the directories in it"
        output.inform(f"there is no job in {output.printable(where)}")
        return
    places = [(*row[:2], output.printable(output.place(row[2]))) for row in rows]
    output.write(output.table(("JOB", "STATE", "BUCKET"), places))
    if len(jobs) > len(shown):
        output.inform("... and older ones (--all lists them)")


def _state_of(found: FoundJob) -> str:
    if found.finished:
        return "finished"
    unfinished = look_at(found)
    if unfinished.hold.live:
        return "running"
    if not found.document:
        return "dead"
    report = found.parsed()
    return output.printable(str(report.get("state"))) if isinstance(report, dict) else "aborted"


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
