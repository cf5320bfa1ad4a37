"""Who runs a job: a lease in its directory that lapses unless it is renewed.

The lease says whom to ask and how long to wait. What keeps two coordinators apart is the *claim*:
of all that want to begin attempt n, exactly one stores ``attempts/<n>``. A coordinator that sees a
newer claim than its own has lost the job. The lease itself is written over what was there when no
newer claim was, and nothing else, where the store heeds that.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from types import TracebackType
from typing import Any, Final, Self

from dsort.errors import (
    JobConflictError,
    JobStoppedError,
    ObjectNotFoundError,
    StorageError,
    StorageFullError,
    TransientStorageError,
)
from dsort.job.layout import (
    attempt_name,
    attempt_of,
    attempts_prefix,
    clock_name,
    lease_name,
    stop_name,
)
from dsort.log_lines import logger_of
from dsort.runtime.machine import Holder, Machine
from dsort.storage.bucket import Bucket
from dsort.storage.small_objects import read_small

ATTEMPTS_MAX: Final = 1_000_000
LAPSES_S_MAX: Final = 3600.0
PID_MAX: Final = (1 << 31) - 1
TEXT_MAX: Final = 1000

log = logger_of("job")


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The lease as its holder wrote it, or a claim, which looks the same. ``token``: different in
    any two claims. ``renewed_at_s``: seconds since 1970, by the holder's clock."""

    attempt: int
    holder: Holder
    token: str
    renewed_at_s: float
    lapses_s: float
    released: bool = False

    def age_s(self, now_s: float) -> float:
        """How long ago it was renewed; never negative, for clocks differ."""
        return max(now_s - self.renewed_at_s, 0.0)


class Standing(Enum):
    """What a lease means for others; only a ``LIVE`` one keeps them from the job."""

    ABSENT = "absent"
    RELEASED = "released"
    DEAD = "dead"
    LAPSED = "lapsed"
    LIVE = "live"


def judge_lease(
    record: LeaseRecord | None, *, now_s: float, here: Holder, process_gone: bool
) -> Standing:
    """What ``record`` means at ``now_s`` to the process ``here``.

    ``process_gone``: no process of this machine is the holder. Counts only if it is ours to say.
    """
    if record is None:
        return Standing.ABSENT
    if record.released:
        return Standing.RELEASED
    same_machine = (record.holder.host, record.holder.boot_id) == (here.host, here.boot_id)
    if same_machine and process_gone:
        return Standing.DEAD
    return Standing.LAPSED if record.age_s(now_s) > record.lapses_s else Standing.LIVE


def refusal(job_id: str, record: LeaseRecord, *, now_s: float) -> JobConflictError:
    """What to tell somebody who wants a job that is being run."""
    age_s = record.age_s(now_s)
    wait_s = max(round(record.lapses_s - age_s), 1)
    return JobConflictError(
        f"job {job_id} is being run by {record.holder.host}, process {record.holder.pid} "
        f"(attempt {record.attempt}), renewed {age_s:.0f} s ago",
        hint=f"end it with `dsort stop {job_id}`; if that process is gone, wait {wait_s} s",
    )


def encode_lease(record: LeaseRecord) -> bytes:
    """The lease as it is stored: one JSON object."""
    renewed_at = datetime.fromtimestamp(record.renewed_at_s, UTC)
    content = {
        "attempt": record.attempt,
        "host": record.holder.host,
        "boot_id": record.holder.boot_id,
        "pid": record.holder.pid,
        "pid_start": record.holder.pid_start,
        "token": record.token,
        "renewed_at": renewed_at.isoformat(timespec="milliseconds"),
        "lapses_s": record.lapses_s,
        "released": record.released,
    }
    return json.dumps(content, indent=2).encode() + b"\n"


def decode_lease(data: bytes) -> LeaseRecord:
    """What ``encode_lease`` wrote; ``StorageError`` for anything else. Others may write to the
    bucket: a process number is one, and no lease holds for ever."""
    try:
        content = json.loads(data)
        holder = Holder(
            _text(content, "host"),
            _text(content, "boot_id"),
            _number(content, "pid", 1, PID_MAX),
            _number(content, "pid_start", 0, 1 << 62),
        )
        lapses_s = float(content["lapses_s"])
        if not 0 <= lapses_s <= LAPSES_S_MAX:
            raise ValueError(f"lapses_s is not between 0 and {LAPSES_S_MAX:g}")
        return LeaseRecord(
            attempt=_number(content, "attempt", 1, ATTEMPTS_MAX),
            holder=holder,
            token=_text(content, "token"),
            renewed_at_s=datetime.fromisoformat(content["renewed_at"]).timestamp(),
            lapses_s=lapses_s,
            released=content["released"] is True,
        )
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise StorageError(f"a job's lease is damaged: {error}") from None


def _text(content: Mapping[str, Any], name: str) -> str:
    value = content[name]
    if not isinstance(value, str) or len(value) > TEXT_MAX or not value.isprintable():
        raise ValueError(f"{name} is no short text")
    return value


def _number(content: Mapping[str, Any], name: str, low: int, high: int) -> int:
    value = content[name]
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} is no number from {low} to {high}")
    return value


LOST_SHARE = 2 / 3
"""A holder that could not renew for this share of the lapse gives the job up: before others may
take it."""
AGAIN_SHARE = 1 / 4
"""After a renewal that failed, the next one comes after this share of the usual time."""
POLL_S = 0.5
WATCH_EACH_S = 2.0
WATCH_S_MAX = 120.0
CLOCK_GRAIN_S = 2.0
"""Stores tell times in seconds."""
STOP_WAIT_S = 600.0
WRITE_TRIES_MAX = 3
STOP_REQUEST = b"stop\n"
LEASE_BYTES_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class JobHold:
    """Who has a job: the newest lease or claim, if there is one, and what it means now."""

    record: LeaseRecord | None
    standing: Standing

    @property
    def live(self) -> bool:
        """Whether somebody runs the job."""
        return self.standing is Standing.LIVE


def last_attempt(bucket: Bucket, job_id: str) -> int:
    """The number of the newest attempt that was claimed; 0 if none was."""
    begun = 0
    for found in bucket.list(attempts_prefix(job_id)):
        begun = max(begun, attempt_of(found.name) or 0)
    if begun >= ATTEMPTS_MAX:
        raise StorageError(
            f"job {job_id} in {bucket.uri} is said to have had {begun:,} attempts",
            hint="dsort did not write that: look who may write to the bucket",
        )
    return begun


def read_hold(bucket: Bucket, job_id: str, *, machine: Machine | None = None) -> JobHold:
    """Who has the job, as seen from here."""
    machine = machine or Machine()
    record = _newest(bucket, job_id, last_attempt(bucket, job_id))
    gone = record is not None and machine.is_gone(record.holder)
    standing = judge_lease(record, now_s=machine.now_s(), here=machine.holder(), process_gone=gone)
    return JobHold(record, standing)


def release_for_dead(bucket: Bucket, job_id: str, *, machine: Machine | None = None) -> bool:
    """Release the lease of a process of this machine that is gone: who cannot see that it is need
    not wait until the lease lapses. False where there is none, or its holder may live."""
    hold = read_hold(bucket, job_id, machine=machine)
    if hold.record is None or hold.standing is not Standing.DEAD:
        return False
    name = lease_name(job_id)
    stored = bucket.stat_many([name]).get(name)
    if stored is None or read_hold(bucket, job_id, machine=machine) != hold:
        return False
    return bucket.write_over(name, encode_lease(replace(hold.record, released=True)), stored.etag)


def _settled(
    bucket: Bucket, job_id: str, machine: Machine, waiting: Callable[[str], None]
) -> JobHold:
    """Who has the job, whatever clocks say: ours and the holder's may be hours apart.

    Times that the store has put on objects are of one clock. Where they and the lease do not tell
    the same, the lease is watched: one that is renewed is live, and one that is not renewed for as
    long as it lasts has lapsed.
    """
    hold = read_hold(bucket, job_id, machine=machine)
    record = hold.record
    if record is None or hold.standing not in (Standing.LIVE, Standing.LAPSED):
        return hold
    age_s = _age_in_store_s(bucket, job_id, record.attempt)
    fresh = -CLOCK_GRAIN_S <= age_s <= record.lapses_s
    if hold.live is fresh and (fresh or age_s > 0):
        return hold
    lasts_s = min(record.lapses_s, WATCH_S_MAX)
    log.debug("the lease of job %s is watched for %.0f s: clocks do not agree", job_id, lasts_s)
    began_s = looked_s = machine.elapsed_s()
    while machine.elapsed_s() - began_s <= lasts_s:
        waiting(f"clocks do not agree: watching for {lasts_s:.0f} s whether job {job_id} lives")
        machine.pause(POLL_S)
        if machine.elapsed_s() - looked_s >= WATCH_EACH_S:
            looked_s = machine.elapsed_s()
            now = read_hold(bucket, job_id, machine=machine)
            if now.record != record or now.standing not in (Standing.LIVE, Standing.LAPSED):
                ended = now.standing in (Standing.ABSENT, Standing.RELEASED, Standing.DEAD)
                return now if ended else JobHold(now.record, Standing.LIVE)
    return JobHold(record, Standing.LAPSED)


def _age_in_store_s(bucket: Bucket, job_id: str, attempt: int) -> float:
    """How long ago the newest lease or claim was stored, by the clock of the store alone."""
    probe = clock_name(job_id)
    bucket.write(probe, secrets.token_hex(8).encode())
    try:
        now_ns = bucket.stat(probe).mtime_ns
    finally:
        bucket.delete(probe)
    names = (lease_name(job_id), attempt_name(job_id, attempt))
    stored = bucket.stat_many(names).values()
    return (now_ns - max((each.mtime_ns for each in stored), default=now_ns)) / 1e9


def _newest(bucket: Bucket, job_id: str, attempt: int) -> LeaseRecord | None:
    """The lease; or the newest claim, if its maker has not come to write the lease yet."""
    lease = _record(bucket, lease_name(job_id))
    if attempt and (lease is None or lease.attempt < attempt):
        return _record(bucket, attempt_name(job_id, attempt)) or lease
    return lease


def _record(bucket: Bucket, name: str) -> LeaseRecord | None:
    try:
        data = read_small(bucket, name, bytes_max=LEASE_BYTES_MAX)
    except ObjectNotFoundError:
        return None
    try:
        return decode_lease(data)
    except StorageError as error:
        hint = "if nobody runs the job, remove that file"
        raise StorageError(f"{name} in {bucket.uri}: {error.message}", hint=hint) from None


def _is_there(bucket: Bucket, name: str) -> bool:
    try:
        bucket.stat(name)
    except ObjectNotFoundError:
        return False
    return True


class Lease:
    """A job held by this process. Made by ``take``; ``keep`` starts to renew it.

    ``lost`` once another attempt began, or the store was out of reach for two thirds of the lapse:
    then whatever this process does about the job must stop, and nothing may be cleaned up, for it
    may belong to somebody else. ``release`` or ``close`` ends the renewals; used in a ``with``, it
    is released at the end.
    """

    def __init__(
        self, bucket: Bucket, job_id: str, record: LeaseRecord, renew_s: float, machine: Machine
    ) -> None:
        self.job_id: str = job_id
        self._bucket = bucket
        self._record = record
        self._renew_s = renew_s
        self._machine = machine
        self._renewed_s = machine.elapsed_s()
        self._why_lost = ""
        self._stop_seen = False
        self._renewing = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._on_lost: Callable[[str], None] | None = None
        self._on_stop: Callable[[], None] | None = None

    @classmethod
    def take(
        cls,
        bucket: Bucket,
        job_id: str,
        *,
        attempt: int,
        lapses_s: float = 60.0,
        renew_s: float = 5.0,
        machine: Machine | None = None,
        waiting: Callable[[str], None] = lambda why: None,
    ) -> Lease:
        """Begin attempt number ``attempt`` (from 1; ``last_attempt`` + 1) of a job.

        ``JobConflictError`` if somebody runs the job, or began this attempt first. An older request
        to stop is void from here on. ``waiting(why)`` is called again and again while the lease is
        watched, which clocks that do not agree make necessary; it may raise.
        """
        machine = machine or Machine()
        hold = _settled(bucket, job_id, machine, waiting)
        if hold.live and hold.record is not None:
            raise refusal(job_id, hold.record, now_s=machine.now_s())
        # So that a claim tells whose it is, to whoever has to ask again because no answer came.
        token = secrets.token_hex(8)
        record = LeaseRecord(attempt, machine.holder(), token, machine.now_s(), lapses_s)
        if not bucket.write_new(attempt_name(job_id, attempt), encode_lease(record)):
            raise JobConflictError(
                f"somebody else has just begun attempt {attempt} of job {job_id}",
                hint=f"`dsort show {job_id}` tells who runs it",
            )
        bucket.write(lease_name(job_id), encode_lease(record))
        log.debug("the lease of job %s is taken for attempt %d", job_id, attempt)
        bucket.delete(stop_name(job_id))
        return cls(bucket, job_id, record, renew_s, machine)

    @property
    def attempt(self) -> int:
        """The number of the attempt that this lease is for."""
        return self._record.attempt

    @property
    def lost(self) -> bool:
        """Whether the job is no longer ours."""
        return bool(self._why_lost)

    def keep(self, *, on_lost: Callable[[str], None], on_stop: Callable[[], None]) -> None:
        """Renew the lease from a thread until ``close``.

        From that thread, each at most once: ``on_lost(why)``, and ``on_stop()`` when somebody asked
        the job to stop.
        """
        self._on_lost, self._on_stop = on_lost, on_stop
        thread = threading.Thread(target=self._run, name="dsort-lease", daemon=True)
        thread.start()
        self._thread = thread

    def renew(self) -> bool:
        """Renew once, in a few small requests; False if it failed and is worth another try.

        A late renewal is good, as long as nobody else has claimed the job.
        """
        try:
            self._renew()
        except (StorageError, JobStoppedError) as error:  # whoever has the job ends it just now
            silent_s = self._machine.elapsed_s() - self._renewed_s
            why = error.message
            log.debug("the lease of job %s was not renewed: %.0f s, %s", self.job_id, silent_s, why)
            if silent_s > self._record.lapses_s * LOST_SHARE:
                self._lose(f"its lease could not be renewed for {silent_s:.0f} s: {error.message}")
            return False
        log.debug("the lease of job %s is renewed", self.job_id)
        return True

    def is_lost(self) -> bool:
        """Look whether the job is somebody else's by now, or nobody's; writes nothing.
        ``StorageError`` if the store does not tell."""
        if not self.lost and _is_there(self._bucket, attempt_name(self.job_id, self.attempt + 1)):
            self._lose(f"attempt {self.attempt + 1} has begun")
        if not self.lost and not _is_there(self._bucket, attempt_name(self.job_id, self.attempt)):
            self._lose("its directory was removed")
        return self.lost

    def check(self) -> None:
        """Renew, and return if the job is surely still ours; ``JobConflictError`` if it is not,
        ``StorageError`` if the store does not tell."""
        if not self.lost:
            self._renew()
        if self.is_lost():
            raise JobConflictError(
                f"job {self.job_id} is no longer run from here (attempt {self.attempt}): "
                f"{self._why_lost}",
                hint=f"`dsort show {self.job_id}` tells who runs it; "
                f"if nobody does: `dsort resume {self.job_id}`",
            )

    def release(self) -> None:
        """End the renewals, and let others have the job at once (if the store cannot be told, once
        the lease has lapsed)."""
        self.close()
        log.debug("the lease of job %s is released", self.job_id)
        if not self.lost:
            released = replace(self._record, released=True)
            with contextlib.suppress(StorageError):
                try:
                    self._write(released)
                except StorageFullError:  # the room that the lease had is enough
                    self._bucket.delete(lease_name(self.job_id))
                    self._write(released)

    def close(self) -> None:
        """End the renewals, and write nothing: for a job whose directory is about to be removed."""
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _run(self) -> None:
        pause_s = self._renew_s
        while not self._ended.wait(pause_s) and not self.lost:
            pause_s = self._renew_s if self.renew() else self._renew_s * AGAIN_SHARE

    def _renew(self) -> None:
        with self._renewing:
            if not self._write(replace(self._record, renewed_at_s=self._machine.now_s())):
                return
            self._renewed_s = self._machine.elapsed_s()
            if not self._stop_seen and _is_there(self._bucket, stop_name(self.job_id)):
                self._stop_seen = True
                log.debug("job %s has a request to stop in its bucket", self.job_id)
                if self._on_stop is not None:
                    self._on_stop()

    def _write(self, record: LeaseRecord) -> bool:
        """Store the lease, unless the job is lost. Looked at in this order, what is written over is
        no lease of a newer attempt: whoever writes one has claimed the job before."""
        name = lease_name(self.job_id)
        for _ in range(WRITE_TRIES_MAX):
            stored = self._bucket.stat_many([name]).get(name)
            if _is_there(self._bucket, attempt_name(self.job_id, self.attempt + 1)):
                self._lose(f"attempt {self.attempt + 1} has begun")
                return False
            self._record = record
            if stored is None:
                if self._bucket.write_new(name, encode_lease(record)):
                    return True
            elif self._bucket.write_over(name, encode_lease(record), stored.etag):
                return True
        raise TransientStorageError(f"{name} in {self._bucket.uri} is written all the time")

    def _lose(self, why: str) -> None:
        if not self._why_lost:
            self._why_lost = why
            log.debug("the lease of job %s is lost: %s", self.job_id, why)
            if self._on_lost is not None:
                self._on_lost(why)


def stop_job(
    bucket: Bucket, job_id: str, *, wait_s: float = STOP_WAIT_S, machine: Machine | None = None
) -> JobHold:
    """Ask whoever runs a job to stop, and wait until that has happened: what became of its lease.

    A coordinator that is not there any more is waited for until its lease lapses. The hold is still
    ``live`` if ``wait_s`` were not enough. ``JobConflictError`` if nobody runs the job.
    """
    machine = machine or Machine()
    hold = _settled(bucket, job_id, machine, lambda why: None)
    if not hold.live:
        raise JobConflictError(
            f"nobody runs job {job_id}",
            hint=f"`dsort show {job_id}` tells what became of it",
        )
    asked_attempt = hold.record.attempt if hold.record is not None else 0
    bucket.write(stop_name(job_id), STOP_REQUEST)
    log.debug("job %s is asked to stop, and its lease is watched", job_id)
    began_s = renewed_s = machine.elapsed_s()
    record = hold.record
    while hold.live and machine.elapsed_s() < began_s + wait_s:
        machine.pause(POLL_S)
        hold = read_hold(bucket, job_id, machine=machine)
        if hold.record != record:
            record, renewed_s = hold.record, machine.elapsed_s()
        elif hold.standing in (Standing.LIVE, Standing.LAPSED) and hold.record is not None:
            # By what was seen, not by what clocks say: they may be hours apart.
            silent = machine.elapsed_s() - renewed_s > hold.record.lapses_s
            hold = JobHold(hold.record, Standing.LAPSED if silent else Standing.LIVE)
        if hold.record is not None and hold.record.attempt != asked_attempt:
            break  # that one ended, and somebody has resumed the job since
    return hold
