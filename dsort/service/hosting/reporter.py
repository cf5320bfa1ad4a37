"""The reports of a job process to the database while the job runs: events, figures, and heartbeats.

The job never waits for the database, and never fails because the database is unavailable. Until the
database is back, the reporter holds all events; of progress it holds only the newest.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from msgspec.structs import asdict

from dsort.log_lines import logger_of
from dsort.results.report import Event, JobStarted, JobWarning, PhaseDone, Progress
from dsort.retry import RetryPolicy
from dsort.service.database.engine import Database
from dsort.service.jobs.queue import (
    Ending,
    ProgressUpdate,
    finish,
    hand_over,
    record,
    thin_progress,
)
from dsort.service.jobs.rows import NewEvent
from dsort.service.threads import DATABASE_AWAY, TurnThread
from dsort.stop_flag import StopFlag

Answer = TypeVar("Answer")

AWAY: Final = RetryPolicy(tries_max=None, seconds_max=600.0, delay_s_min=0.05, delay_s_max=5.0)
"""How a job process waits for an unavailable database."""

TELL_S = 0.5
BEAT_S = 2.0
PROGRESS_KEPT = 240
RATE_WINDOW_S = 5.0
RATE_SPAN_S_MIN = 0.2  # over shorter spans a rate is meaningless

log = logger_of("service")


class Reporter(TurnThread):
    """Reports on one attempt from a thread of its own, from ``start`` to ``end`` or ``close``.

    The engine calls the reporter with every event of the job, in any thread. ``stop`` is set when a
    stop of the job is requested; ``on_lost`` is called, from the reporter's thread, when the job no
    longer belongs to this process.
    """

    def __init__(
        self,
        database: Database,
        job_id: str,
        attempt: int,
        stop: StopFlag,
        on_lost: Callable[[], object],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__("dsort-reporter", BEAT_S)
        self._database = database
        self._job_id = job_id
        self._attempt = attempt
        self._stop = stop
        self._on_lost = on_lost
        self._clock = clock
        self._lock = threading.Lock()
        self._events: list[NewEvent] = []
        self._progress: Progress | None = None
        self._phase: str | None = None
        self._phases: list[dict[str, Any]] = []
        self._warnings = 0
        self._rate = _Rate()
        self._changed = False
        self._thinned_at = 0
        self._progress_count = 0
        self._beaten_s = float("-inf")

    def __call__(self, event: Event) -> None:
        """Add an event of the engine; never waits for the database."""
        with self._lock:
            self._changed = True
            if isinstance(event, Progress):
                self._progress, self._phase = event, event.phase
                return
            data = {**asdict(event), "job_id": self._job_id}
            if isinstance(event, PhaseDone):
                self._keep_progress()
                self._phases.append(_phase_view(event))
                self._note("phase", data)
            elif isinstance(event, JobWarning):
                self._warnings += 1
                self._note("warning", {"kind": event.kind, "text": event.text})
            elif isinstance(event, JobStarted):
                self._note("started", data)
        log.info("%s", _words(event))

    def note_log(self, event: Mapping[str, str] | None) -> None:
        """Report the end of the log, as returned by ``logs.log_event``."""
        if event is not None:
            with self._lock:
                self._note("log", event)

    def end(self, ending: Ending) -> bool:
        """Report the rest, and the outcome of the job. False: the job no longer belongs to this
        process."""
        self.close()
        latest, ended_at = self._take(), self._clock()
        return retry_while_database_is_away(
            lambda: finish(
                self._database, self._job_id, self._attempt, ending, now_s=ended_at, latest=latest
            )
        )

    def leave(self, reason: str) -> bool:
        """Report the rest, and put the job back into the queue. False: the job no longer belongs to
        this process."""
        self.close()
        job_id, attempt, latest = self._job_id, self._attempt, self._take()
        retry_while_database_is_away(
            lambda: record(self._database, job_id, attempt, latest, now_s=self._clock())
        )
        return retry_while_database_is_away(
            lambda: hand_over(self._database, job_id, attempt, now_s=self._clock(), reason=reason)
        )

    # -- the thread -------------------------------------------------------------------------------

    def _turn(self) -> float:
        latest = self._take()
        is_due = time.monotonic() - self._beaten_s >= BEAT_S
        if is_due or latest.values() or latest.events:
            try:
                self._tell(latest)
            except DATABASE_AWAY:  # the job does not depend on the answer
                self._put_back(latest)
                raise
            self._beaten_s = time.monotonic()
        return TELL_S

    def _tell(self, latest: ProgressUpdate) -> None:
        answer = record(self._database, self._job_id, self._attempt, latest, now_s=self._clock())
        if not answer.ours:
            log.warning("attempt %d is no longer the current attempt", self._attempt)
            self._over.set()
            self._on_lost()
            return
        if answer.stop_asked and not self._stop.requested:
            log.info("a stop was requested: %s", answer.reason)
            because = f": {answer.reason}" if answer.reason else ""
            self._stop.request(signal.SIGTERM, f"a request{because}", discards=True)
        self._progress_count += sum(kind == "progress" for _, kind, _ in latest.events)
        if self._progress_count - self._thinned_at >= PROGRESS_KEPT:
            thin_progress(self._database, self._job_id, keep=PROGRESS_KEPT)
            self._thinned_at = self._progress_count

    def _take(self) -> ProgressUpdate:
        """Everything to report; each item is returned once."""
        with self._lock:
            self._keep_progress()
            events, self._events = self._events, []
            if not self._changed:
                return ProgressUpdate(events)
            self._changed = False
            newest = next((data for _, kind, data in reversed(events) if kind == "progress"), None)
            return ProgressUpdate(
                events, self._phase, newest, list(self._phases) or None, self._warnings
            )

    def _put_back(self, latest: ProgressUpdate) -> None:
        """Keep the events that could not be reported, except progress within a phase."""
        last = len(latest.events) - 1
        kept = [
            event for at, event in enumerate(latest.events) if event[1] != "progress" or at == last
        ]
        with self._lock:
            self._events[:0] = kept
            self._changed = self._changed or bool(latest.values())

    def _keep_progress(self) -> None:
        """Turn the newest progress into an event; the caller holds the lock."""
        if self._progress is not None:
            self._note("progress", progress_data(self._progress, self._rate))
            self._progress = None

    def _note(self, kind: str, data: Mapping[str, Any]) -> None:
        self._events.append((self._clock(), kind, data))


class _Rate:
    """Bytes per second over the last seconds of a phase."""

    def __init__(self) -> None:
        self._phase = ""
        self._seen: deque[tuple[float, int]] = deque()

    def __call__(self, now: Progress) -> float | None:
        if now.phase != self._phase:
            self._phase = now.phase
            # Work that is done as soon as a phase begins was done by an earlier attempt.
            early = now.elapsed_s < RATE_SPAN_S_MIN
            self._seen = deque([(now.elapsed_s, now.bytes_done) if early else (0.0, 0)])
        self._seen.append((now.elapsed_s, now.bytes_done))
        while len(self._seen) > 2 and self._seen[1][0] <= now.elapsed_s - RATE_WINDOW_S:
            self._seen.popleft()
        (since_s, before), (until_s, after) = self._seen[0], self._seen[-1]
        if not after or until_s - since_s < RATE_SPAN_S_MIN:
            return None
        return round((after - before) / (until_s - since_s), 1)


def retry_while_database_is_away(transaction: Callable[[], Answer]) -> Answer:
    """The result of ``transaction``, tried again for ten minutes while the database is
    unavailable."""

    def waiting(error: Exception, delay_s: float, tries: int) -> None:
        log.warning("the database does not answer: %s", error)

    return AWAY.call(transaction, DATABASE_AWAY, waiting=waiting)


def progress_data(now: Progress, rate: Callable[[Progress], float | None]) -> dict[str, Any]:
    """The progress of a phase: the engine's figures, and the current ``bytes_per_s``, if this rate
    is known."""
    data: dict[str, Any] = asdict(now)
    del data["job_id"]
    data["elapsed_s"] = round(now.elapsed_s, 3)
    data["bytes_per_s"] = rate(now)
    return data


def _phase_view(done: PhaseDone) -> dict[str, Any]:
    return {
        "phase": done.phase,
        "seconds": round(done.elapsed_s, 3),
        "shards": done.shards,
        "records": done.records,
        "bytes": done.bytes,
        "members": done.members,
        "payload_bytes": done.payload_bytes,
    }


def _words(event: Event) -> str:
    if isinstance(event, PhaseDone):
        return (
            f"{event.phase}: done in {event.elapsed_s:.1f} s, {event.shards:,} shards, "
            f"{event.records:,} records, {event.bytes:,} bytes"
        )
    if isinstance(event, JobWarning):
        return f"warning: {event.text}"
    if isinstance(event, JobStarted):
        return (
            f"{event.input_shards:,} input shards of {event.input_bytes:,} bytes, "
            f"{event.move}, {event.workers} workers"
        )
    return ""
