"""Lists of jobs: those of buckets, and those of a service."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from os.path import commonprefix
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsort.cli import output
from dsort.cli.find import FoundJob, data_root, known_jobs, user_settings
from dsort.cli.remote import connected
from dsort.cli.unfinished import look_at

if TYPE_CHECKING:
    from dsort.client import Job

__all__ = ["list_jobs", "list_jobs_here"]

JOBS_SHOWN = 20
CELL_COLUMNS_MIN = 6
PLACES = ("FROM", "TO")
NARROW = ("JOB", "STATE", "AGE", *PLACES, "LABELS", "WHAT")
TEXT = NARROW.index("FROM")
"""The columns from this one on may be cut, or left out if they are empty for all jobs."""
WIDE = (
    *("JOB", "STATE", "PHASE", "DONE", "AGE", "TOOK", "RECORDS"),
    *("OWNER", "SCHEDULE", *PLACES, "LABELS", "WHAT"),
)


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
    context: click.Context,
    *,
    states: Sequence[str],
    owner: str | None,
    labels: Sequence[str],
    show_all: bool,
    wide: bool,
    as_json: bool,
) -> None:
    """Put the service's jobs on stdout, newest first. ``wide``: all columns, with nothing cut."""
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
    if wide:
        rows = [_wide_row(job, now) for job in shown]
        output.write(output.table(WIDE, rows, right="lllrrrr"))
    else:
        output.write(_narrow_table([_narrow_row(job, now) for job in shown], output.width()))
    if len(jobs) > len(shown):
        output.inform("... and older ones (--all lists them)")


def _wide_row(job: Job, now: datetime) -> tuple[str, ...]:
    phase, done = "", ""
    if job.state == "running":
        phase, done = job.phase or "", _share(job)
    elif job.state == "queued" and job.queue_position:
        phase = f"number {job.queue_position}"
    elif job.kind == "plan":
        phase = "plan"
    owner, labels = output.printable(job.owner), output.printable(", ".join(job.labels))
    places, what = (
        (_places(job.input_uri), _places(job.output_uri)),
        output.printable(job.description),
    )
    took = "" if job.took_s is None else output.duration(job.took_s)
    records = next((each.records for each in reversed(job.phases) if each.records), 0)
    figures = (took, output.number(records) if records else "")
    schedule = output.printable(job.schedule or "")
    head = (job.job_id, job.words, phase, done, _age(job, now), *figures)
    return (*head, owner, schedule, *places, labels, what)


def _narrow_row(job: Job, now: datetime) -> tuple[str, ...]:
    state = job.words
    if job.state == "running":
        state = f"{state} {_share(job)}".rstrip()
    elif job.state == "queued" and job.queue_position:
        state = f"{state} #{job.queue_position}"
    what = " ".join(["plan:"] * (job.kind == "plan") + [job.description])
    texts = (output.printable(each) for each in (", ".join(job.labels), what))
    return (
        job.job_id,
        state,
        _age(job, now),
        _places(job.input_uri),
        _places(job.output_uri),
        *texts,
    )


def _narrow_table(rows: Sequence[tuple[str, ...]], columns: int) -> str:
    """A table that fits into ``columns``: cells of text are cut, and empty columns left out. The
    end of a place is kept, because places differ there."""
    places = [row[at] for row in rows for at in (TEXT, TEXT + 1)]
    # As a rule this is the data root. `commonpath` refuses URIs beside directories.
    shared = commonprefix(places).rpartition("/")[0]  # noqa: RUF071
    if shared.startswith("/"):
        rows = [
            (*row[:TEXT], *(f"…{each[len(shared) :]}" for each in row[TEXT:][:2]), *row[TEXT + 2 :])
            for row in rows
        ]
    kept = [at for at in range(len(NARROW)) if at < TEXT or any(row[at] for row in rows)]
    header = [NARROW[at] for at in kept]
    cells = [[row[at] for at in kept] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    while sum(widths) + 2 * (len(widths) - 1) > columns and max(widths[TEXT:]) > CELL_COLUMNS_MIN:
        widths[TEXT + widths[TEXT:].index(max(widths[TEXT:]))] -= 1
    fitted = [
        [_cut(cell, width, NARROW[at]) for cell, width, at in zip(row, widths, kept, strict=True)]
        for row in cells
    ]
    return output.table(header, fitted, right="llr")


def _cut(text: str, columns: int, header: str) -> str:
    if len(text) <= columns:
        return text
    return "…" + text[1 - columns :] if header in PLACES else text[: columns - 1] + "…"


def _places(uris: str) -> str:
    """The buckets that a job reads or writes; those of several inputs are on one line each."""
    return output.printable(", ".join(map(output.place, uris.splitlines())))


def _share(job: Job) -> str:
    share = job.progress.share if job.progress else None
    return "" if share is None else f"{share:.0%}"


def _age(job: Job, now: datetime) -> str:
    """The time since the job was submitted, in one unit."""
    if job.created_at is None:
        return ""
    age_s = max((now - job.created_at).total_seconds(), 0)
    for unit, unit_s, below_s in (("s", 1, 90), ("min", 60, 90 * 60), ("h", 3600, 36 * 3600)):
        if age_s < below_s:
            return f"{age_s / unit_s:.0f} {unit}"
    return f"{age_s / 86400:.0f} d"
