"""Lists of jobs, of buckets and of a service; and the state of a job that has no manifest."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from os.path import commonprefix
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from dsort.cli import output
from dsort.cli.find import data_root, known_jobs, user_settings
from dsort.cli.remote import connected
from dsort.errors import JobConflictError, StorageError
from dsort.reading.results import FoundJob

if TYPE_CHECKING:
    from dsort.client import Job
    from dsort.results.journal_entries import JournalState
    from dsort.results.lease import JobHold
    from dsort.results.lease_record import Standing


def _why_dead(standing: Standing) -> str:
    """The reason why no coordinator holds a lease in that state; "" if a coordinator holds it."""
    from dsort.results.lease_record import Standing

    reasons = {
        Standing.ABSENT: "it has no lease",
        Standing.RELEASED: "it was stopped",
        Standing.DEAD: "its process is gone",
        Standing.LAPSED: "it does not renew its lease",
    }
    return reasons.get(standing, "")


class Unfinished(Struct, frozen=True):
    """A job without a manifest, with its lease and the state in its journal (None: unknown, for the
    reason in ``problem``)."""

    found: FoundJob
    hold: JobHold
    state: JournalState | None
    problem: str
    journal_ns: int  # when the journal was last written; 0: never
    now_s: float

    @property
    def resumable(self) -> bool:
        """Whether the job is dead and can be resumed."""
        state, live = self.state, self.hold.live
        return state is not None and not (live or state.materializes)

    def to_dict(self) -> dict[str, object]:
        """The job in JSON types."""
        record, state = self.hold.record, self.state
        about: dict[str, object] = {
            "job_id": self.found.job_id,
            "state": "running" if self.hold.live else "dead",
            "lease": self.hold.standing.value,
            "resumable": self.resumable,
        }
        if record:
            about |= {
                "host": record.holder.host,
                "pid": record.holder.pid,
                "attempt": record.attempt,
                "renewed_at": _utc(record.renewed_at_s),
            }
        if state is not None:
            about |= {
                "since": state.accepted.created if state.accepted else None,
                "journal_written": _utc(self.journal_ns / 1e9),
                "input_shards": len(state.inputs) if state.has_inputs else None,
                "extracted_shards": len(state.extracted),
                "output_shards": len(state.planned.shards) if state.planned else None,
                "created_shards": len(state.created),
                "committing": state.committing,
            }
        return about

    def text(self) -> str:
        """A description of the job."""
        job_id, record = self.found.job_id, self.hold.record
        attempt = where = ""
        if record:
            attempt = f" (attempt {record.attempt})"
            where = f"{record.holder.host}, process {record.holder.pid}{attempt}"
        if self.hold.live:
            renewed = output.duration(record.age_s(self.now_s))
            head = [
                ("job", f"{job_id} running on {where}"),
                ("lease", f"renewed {renewed} ago"),
            ]
        else:
            head = [
                ("job", f"{job_id} dead: {_why_dead(self.hold.standing)}"),
                ("ran on", where),
            ]
        place = output.printable(output.place(self.found.bucket.uri))
        return output.fields([*head, ("to", place), *self._progress(), ("next", self._next())])

    def _progress(self) -> list[tuple[str, str]]:
        state = self.state
        if state is None:
            return [("journal", self.problem)]
        lines = [("since", state.accepted.created if state.accepted else "")]
        if state.has_inputs:
            size = output.size(sum(row.size_bytes for row in state.inputs))
            lines.append(("inputs", f"{output.count(len(state.inputs), 'shard')}, {size}"))
            done = f"{len(state.extracted):,} of {output.count(len(state.inputs), 'shard')}"
            lines.append(("extracted", done))
        if state.planned:
            total = output.count(len(state.planned.shards), "shard")
            named = ", being given their names" if state.committing else ""
            lines.append(("created", f"{len(state.created):,} of {total}{named}"))
        age_s = max(self.now_s - self.journal_ns / 1e9, 0.0)
        return [*lines, ("journal", f"last written {output.duration(age_s)} ago")]

    def _next(self) -> str:
        job_id = self.found.job_id
        if self.hold.live:
            return f"stop it with `dsort stop {job_id}`"
        if self.resumable:
            return f"resume it with `dsort resume {job_id}`, or remove it with {self._gc()}"
        return f"it cannot be resumed; remove what is left with {self._gc()}"

    def _gc(self) -> str:
        place = output.place(self.found.bucket.uri)
        return f"`{shlex.join(['dsort', 'gc', place, '--job', self.found.job_id, '--remove'])}`"


def look_at(found: FoundJob) -> Unfinished:
    """The state of a job that has no manifest."""
    from dsort.results.journal import read_journal
    from dsort.results.layout import journal_prefix
    from dsort.results.lease import read_hold
    from dsort.runtime.machine import Machine

    machine = Machine()
    hold = read_hold(found.bucket, found.job_id, machine=machine)
    segments = found.bucket.list(journal_prefix(found.job_id))
    journal_ns = max((each.mtime_ns for each in segments), default=0)
    state, problem = None, ""
    try:
        state = read_journal(found.bucket, found.job_id)
    except (JobConflictError, StorageError) as error:
        problem = error.message
    return Unfinished(found, hold, state, problem, journal_ns, machine.now_s())


def _utc(then_s: float) -> str:
    return datetime.fromtimestamp(then_s, UTC).isoformat(timespec="seconds")


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
    """A table that fits into ``columns``: cells of text are cut, and empty columns left out. A
    long place loses its beginning, because places differ at their ends."""
    places = [row[at] for row in rows for at in (TEXT, TEXT + 1)]
    # The shared beginning is usually the data root. `commonpath` refuses URIs beside directories.
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
    """The buckets that a job reads or writes; several inputs have a line each."""
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
