"""The state of a job that has no manifest: it runs, it died, or it was aborted."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from dsort.cli import output
from dsort.cli.find import FoundJob
from dsort.errors import JobConflictError, StorageError

if TYPE_CHECKING:
    from dsort.results.journal_entries import JournalState
    from dsort.results.lease import JobHold
    from dsort.results.lease_record import Standing

__all__ = ["Unfinished", "look_at"]


def _why_dead(standing: Standing) -> str:
    """Why no coordinator holds a lease in that state; "" if one holds it."""
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
        return self.state is not None and not self.hold.live

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
