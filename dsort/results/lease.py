"""The lease of a job: a file in the job's directory. The lease names the coordinator that has the
job, and lapses unless this coordinator renews it."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dsort.errors import (
    JobConflictError,
    JobStoppedError,
    ObjectNotFoundError,
    StorageError,
    StorageFullError,
    TransientStorageError,
)
from dsort.log_lines import logger_of
from dsort.results.layout import (
    attempt_name,
    attempt_of,
    attempts_prefix,
    clock_name,
    lease_name,
    stop_name,
)
from dsort.results.lease_record import (
    ATTEMPTS_MAX,
    NO_RECORD,
    LeaseRecord,
    Standing,
    decode_lease,
    encode_lease,
    judge_lease,
    refusal,
)
from dsort.runtime.machine import HERE, Machine
from dsort.storage.bucket import Bucket
from dsort.storage.small_objects import read_small

log = logger_of("job")

LOST_SHARE = 2 / 3
"""A holder that could not renew the lease for this share of the lapse gives up the job, before
others may take the job."""
AGAIN_SHARE = 1 / 4
"""After a failed renewal, the next one comes after this share of the usual time."""
POLL_S = 0.5
WATCH_EACH_S = 2.0
WATCH_S_MAX = 120.0
CLOCK_GRAIN_S = 2.0
"""Stores report times in seconds."""
STOP_WAIT_S = 600.0
WRITE_TRIES_MAX = 3
STOP_REQUEST = b"stop\n"
LEASE_BYTES_MAX = 1 << 16


class JobHold(Struct, frozen=True):
    """The holder of a job: the newest lease or claim (false if there is none), and its standing
    now."""

    record: LeaseRecord
    standing: Standing

    @property
    def live(self) -> bool:
        """Whether a process runs the job."""
        return self.standing is Standing.LIVE


def last_attempt(bucket: Bucket, job_id: str) -> int:
    """The number of the newest claimed attempt; 0 if there is none."""
    begun = 0
    for found in bucket.list(attempts_prefix(job_id)):
        begun = max(begun, attempt_of(found.name))
    if begun >= ATTEMPTS_MAX:
        raise StorageError(
            f"job {job_id} in {bucket.uri} has a claim of attempt {begun:,}, which is too many",
            hint="dsort did not write this claim: check who may write to the bucket",
        )
    return begun


def read_hold(bucket: Bucket, job_id: str, *, machine: Machine = HERE) -> JobHold:
    """The holder of the job, as seen from this machine."""
    record = _newest(bucket, job_id, last_attempt(bucket, job_id))
    gone = bool(record) and machine.is_gone(record.holder)
    standing = judge_lease(record, now_s=machine.now_s(), here=machine.holder(), process_gone=gone)
    return JobHold(record, standing)


def _settled(
    bucket: Bucket, job_id: str, machine: Machine, waiting: Callable[[str], None]
) -> JobHold:
    """The holder of the job, found without comparing clocks, because the clocks of this machine and
    of the holder may be hours apart.

    The times that the store sets on objects come from one clock. If they disagree with the lease,
    the lease is watched. If it is renewed, it is live; if it is not renewed for as long as it
    lasts, it has lapsed.
    """
    hold = read_hold(bucket, job_id, machine=machine)
    record = hold.record
    if not hold.standing.is_judged_by_time:
        return hold
    age_s = _age_in_store_s(bucket, job_id, record.attempt)
    fresh = -CLOCK_GRAIN_S <= age_s <= record.lapses_s
    # Both clocks agree. A lease from the future (an age below 0) has to be watched.
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
            if not now.standing.is_judged_by_time:
                return now
            if now.record != record:
                return JobHold(now.record, Standing.LIVE)
    return JobHold(record, Standing.LAPSED)


def _age_in_store_s(bucket: Bucket, job_id: str, attempt: int) -> float:
    """Seconds since the newest lease or claim was stored, by the clock of the store alone."""
    probe = clock_name(job_id)
    # The store, not this machine, dates the probe.
    bucket.write(probe, secrets.token_hex(8).encode())
    try:
        now_ns = bucket.stat(probe).mtime_ns
    finally:
        bucket.delete(probe)
    names = (lease_name(job_id), attempt_name(job_id, attempt))
    stored = bucket.stat_many(names).values()
    return (now_ns - max((each.mtime_ns for each in stored), default=now_ns)) / 1e9


def _newest(bucket: Bucket, job_id: str, attempt: int) -> LeaseRecord:
    """The lease; or the newest claim, if its process has not written the lease yet."""
    lease = _record(bucket, lease_name(job_id))
    if lease.attempt < attempt:
        return _record(bucket, attempt_name(job_id, attempt)) or lease
    return lease


def _record(bucket: Bucket, name: str) -> LeaseRecord:
    try:
        data = read_small(bucket, name, bytes_max=LEASE_BYTES_MAX)
    except ObjectNotFoundError:
        return NO_RECORD
    try:
        return decode_lease(data)
    except StorageError as error:
        hint = "if no process runs the job, remove that file"
        raise StorageError(f"{name} in {bucket.uri}: {error.message}", hint=hint) from None


def _is_there(bucket: Bucket, name: str) -> bool:
    try:
        bucket.stat(name)
    except ObjectNotFoundError:
        return False
    return True


class NoLease:
    """The lease of a process that runs no job: it cannot be lost."""

    attempt = 0
    lost = False

    def is_lost(self) -> bool:
        """See :class:`Lease`."""
        return self.lost

    def check(self) -> None:
        """See :class:`Lease`."""

    def release(self) -> None:
        """See :class:`Lease`."""

    def close(self) -> None:
        """See :class:`Lease`."""


NO_LEASE: Final = NoLease()


# The lease names the process that runs the job, and how long others have to wait. The *claim* keeps
# two coordinators apart: of all processes that try to begin attempt n, exactly one stores
# `attempts/<n>`. A coordinator that finds a newer claim than its own has lost the job. If the store
# supports conditions, a lease is written only over the version that was stored when no newer claim
# existed.
class Lease:
    """A job held by this process. ``take`` makes a lease; ``keep`` starts to renew it.

    ``lost`` is set once another attempt began, or the store was out of reach for two thirds of the
    lapse. The job may then belong to another process, so this process stops all work on it, and
    cleans up nothing. ``release`` or ``close`` ends the renewals.
    """

    def __init__(
        self, bucket: Bucket, job_id: str, record: LeaseRecord, renew_s: float, machine: Machine
    ) -> None:
        self.job_id: str = job_id
        self._bucket = bucket
        self._record = record
        self._renew_s = renew_s
        self._machine = machine
        # By a clock that never jumps: the wall clock may be set.
        self._renewed_s = machine.elapsed_s()
        self._why_lost = ""
        self._stop_seen = False
        self._renewing = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dsort-lease", daemon=True)
        self._on_lost: Callable[[str], None] = lambda why: None
        self._on_stop: Callable[[], None] = lambda: None

    @classmethod
    def take(
        cls,
        bucket: Bucket,
        job_id: str,
        *,
        attempt: int,
        lapses_s: float = 60.0,
        renew_s: float = 5.0,
        machine: Machine = HERE,
        waiting: Callable[[str], None] = lambda why: None,
    ) -> Lease:
        """Begin attempt number ``attempt`` (from 1; ``last_attempt`` + 1) of a job.

        ``JobConflictError`` if another process runs the job, or began this attempt first. An older
        request to stop becomes void. If clocks disagree, the lease is watched; meanwhile
        ``waiting(why)`` is called repeatedly, and may raise an error.
        """
        hold = _settled(bucket, job_id, machine, waiting)
        if hold.live:
            raise refusal(job_id, hold.record, now_s=machine.now_s())
        # The token identifies the writer of a claim. A process that gets no answer to its request
        # reads the claim, and compares the token.
        token = secrets.token_hex(8)
        record = LeaseRecord(attempt, machine.holder(), token, machine.now_s(), lapses_s)
        if not bucket.write_new(attempt_name(job_id, attempt), encode_lease(record)):
            raise JobConflictError(
                f"another process has just begun attempt {attempt} of job {job_id}",
                hint=f"`dsort show {job_id}` shows the process that runs it",
            )
        # The lease follows the claim: of two processes only the one with the claim writes a lease.
        bucket.write(lease_name(job_id), encode_lease(record))
        log.debug("the lease of job %s is taken for attempt %d", job_id, attempt)
        # A request to stop that exists now was meant for an earlier attempt.
        bucket.delete(stop_name(job_id))
        return cls(bucket, job_id, record, renew_s, machine)

    @property
    def attempt(self) -> int:
        """The number of the attempt that this lease is for."""
        return self._record.attempt

    @property
    def lost(self) -> bool:
        """Whether this process has lost the job."""
        return bool(self._why_lost)

    def keep(
        self,
        *,
        on_lost: Callable[[str], None] = lambda why: None,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """Renew the lease from a thread until ``close``.

        The thread calls ``on_lost(why)``, and ``on_stop()`` when a stop of the job was requested,
        each at most once.
        """
        self._on_lost, self._on_stop = on_lost, on_stop
        self._thread.start()

    def renew(self) -> bool:
        """Renew once, in a few small requests; return False after a failure that is worth another
        try.

        A late renewal is valid as long as no other process has claimed the job.
        """
        try:
            self._renew()
        except (StorageError, JobStoppedError) as error:  # the job may be ending just now
            silent_s = self._machine.elapsed_s() - self._renewed_s
            why = error.message
            log.debug("the lease of job %s was not renewed: %.0f s, %s", self.job_id, silent_s, why)
            if silent_s > self._record.lapses_s * LOST_SHARE:
                self._lose(f"its lease could not be renewed for {silent_s:.0f} s: {error.message}")
            return False
        log.debug("the lease of job %s is renewed", self.job_id)
        return True

    def is_lost(self) -> bool:
        """Check whether another process has the job now, or the job's directory is gone; writes
        nothing. ``StorageError`` if the store does not answer."""
        if not self.lost and _is_there(self._bucket, attempt_name(self.job_id, self.attempt + 1)):
            self._lose(f"attempt {self.attempt + 1} has begun")
        if not self.lost and not _is_there(self._bucket, attempt_name(self.job_id, self.attempt)):
            self._lose("its directory was removed")
        return self.lost

    def check(self) -> None:
        """Renew, and return if the job certainly still belongs to this process;
        ``JobConflictError`` if it does not, ``StorageError`` if the store does not answer."""
        if not self.lost:
            self._renew()
        if self.is_lost():
            raise JobConflictError(
                f"job {self.job_id} is no longer run from here (attempt {self.attempt}): "
                f"{self._why_lost}",
                hint=f"`dsort show {self.job_id}` shows the process that runs it; "
                f"if none does: `dsort resume {self.job_id}`",
            )

    def release(self) -> None:
        """End the renewals, so that others can have the job at once, or after the lease has lapsed
        if the store cannot be reached."""
        self.close()
        log.debug("the lease of job %s is released", self.job_id)
        if not self.lost:
            released = replace(self._record, released=True)
            with contextlib.suppress(StorageError):
                try:
                    self._write(released)
                except StorageFullError:  # the new lease fits in the space of the old one
                    self._bucket.delete(lease_name(self.job_id))
                    self._write(released)

    def close(self) -> None:
        """End the renewals, and write nothing: for a job whose directory is about to be removed."""
        self._ended.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

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
                self._on_stop()

    def _write(self, record: LeaseRecord) -> bool:
        """Store the lease; False if the job is lost. A newer attempt is claimed before its lease is
        written. Because of this, the order of the checks ensures that no lease of a newer attempt
        is overwritten."""
        name = lease_name(self.job_id)
        for _ in range(WRITE_TRIES_MAX):
            # This read precedes the check for a newer claim: a lease that is written later has
            # another etag.
            stored = self._bucket.stat_many([name])
            if _is_there(self._bucket, attempt_name(self.job_id, self.attempt + 1)):
                self._lose(f"attempt {self.attempt + 1} has begun")
                return False
            self._record = record
            data = encode_lease(record)
            if (
                self._bucket.write_over(name, data, stored[name].etag)
                if stored
                else self._bucket.write_new(name, data)
            ):
                return True
        raise TransientStorageError(f"{name} in {self._bucket.uri} is written again and again")

    def _lose(self, why: str) -> None:
        if not self._why_lost:
            self._why_lost = why
            log.debug("the lease of job %s is lost: %s", self.job_id, why)
            self._on_lost(why)


def stop_job(
    bucket: Bucket, job_id: str, *, wait_s: float = STOP_WAIT_S, machine: Machine = HERE
) -> JobHold:
    """Request the process that runs a job to stop, wait until it has stopped, and return the hold
    then.

    If the coordinator is gone, the wait lasts until its lease lapses. The hold is still ``live`` if
    ``wait_s`` was too short. ``JobConflictError`` if no process runs the job.
    """
    hold = _settled(bucket, job_id, machine, lambda why: None)
    if not hold.live:
        raise JobConflictError(
            f"no process runs job {job_id}",
            hint=f"`dsort show {job_id}` shows how it ended",
        )
    asked_attempt = hold.record.attempt
    bucket.write(stop_name(job_id), STOP_REQUEST)
    log.debug("job %s is asked to stop, and its lease is watched", job_id)
    began_s = renewed_s = machine.elapsed_s()
    record = hold.record
    while hold.live and machine.elapsed_s() < began_s + wait_s:
        machine.pause(POLL_S)
        hold = read_hold(bucket, job_id, machine=machine)
        if hold.record != record:
            record, renewed_s = hold.record, machine.elapsed_s()
        elif hold.standing.is_judged_by_time:
            # Judged by the renewals seen here, not by clocks, which may be hours apart.
            silent = machine.elapsed_s() - renewed_s > hold.record.lapses_s
            hold = JobHold(hold.record, Standing.LAPSED if silent else Standing.LIVE)
        if hold.record and hold.record.attempt != asked_attempt:
            break  # the attempt ended, and the job was resumed since
    return hold
