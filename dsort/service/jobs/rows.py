"""A job of the service as it is stored: one frozen value a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["ENDED", "STATES", "EventRow", "JobRow", "NewJob"]

STATES = ("queued", "running", "finished", "failed", "stopped")
ENDED = frozenset(("finished", "failed", "stopped"))

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job as it is submitted. ``spec``: canonical, with its seed. ``claims``: the names it will
    write, as ``core.overlap`` has them; None where only its key map knows."""

    job_id: str
    kind: str  # run | plan
    owner: str
    spec: Json
    input_uri: str
    output_uri: str
    claims: Sequence[Sequence[str]] | None
    priority: int = 0
    description: str = ""
    labels: tuple[str, ...] = ()
    schedule_id: str | None = None
    due_at: float | None = None
    after_commit: Json | None = None
    hooks: Json | None = None  # as dsort.job.hooks.hooks_of
    idempotency_key: str | None = None
    body_digest: str | None = None
    keymap_uri: str | None = None  # of a key map in a file or on the web; not stored


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One row of ``tables.jobs``, with the job's labels and its schedule's name. Times are seconds
    since 1970."""

    number: int
    job_id: str
    kind: str  # run | plan
    owner: str
    priority: int
    description: str
    spec: Json
    input_uri: str
    output_uri: str
    claims: Sequence[Sequence[str]] | None
    schedule_id: str | None
    due_at: float | None
    after_commit: Json | None
    hooks: Json | None
    idempotency_key: str | None
    body_digest: str | None
    created_at: float
    state: str
    stop_asked_at: float | None
    stop_reason: str | None
    phase: str | None
    progress: Json | None
    phases: Sequence[Json] | None
    warning_count: int
    started_at: float | None
    ended_at: float | None
    attempt: int
    deaths: int
    host: str | None
    replica: str | None
    pid: int | None
    pid_started: float | None
    heartbeat_at: float | None
    result: Json | None
    error: Json | None
    exit_code: int | None
    begun_at: float | None = None  # since when it runs: it was taken from the queue then
    labels: tuple[str, ...] = ()
    schedule_name: str | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it by itself."""
        return self.state in ENDED

    @property
    def stopping(self) -> bool:
        """Whether it runs, and was asked to stop."""
        return self.state == "running" and self.stop_asked_at is not None


@dataclass(frozen=True, slots=True)
class EventRow:
    """Something that happened to a job. ``number`` grows over all jobs."""

    number: int
    job_id: str
    at: float
    kind: str  # state | started | phase | progress | warning | log
    data: Json
