"""The record of a lease or of a claim: its form in the bucket, and its meaning for others."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Final

from msgspec import Meta, Struct

from dsort.errors import JobConflictError, StorageError
from dsort.runtime.machine import NO_HOLDER, Holder
from dsort.storage.small_objects import parse_as

ATTEMPTS_MAX: Final = 1_000_000
LAPSES_S_MAX: Final = 3600.0
PID_MAX: Final = (1 << 31) - 1
_Text = Annotated[str, Meta(max_length=1000)]


class LeaseRecord(Struct, frozen=True):
    """The lease as its holder wrote it; or a claim, which has the same form. False if there is
    neither. ``token``: different in any two claims. ``renewed_at_s``: seconds since 1970, by the
    holder's clock."""

    attempt: int
    holder: Holder
    token: str
    renewed_at_s: float
    lapses_s: float
    released: bool = False

    def __bool__(self) -> bool:
        return self.attempt > 0

    def age_s(self, now_s: float) -> float:
        """Seconds since the renewal; never negative, even if clocks differ."""
        return max(now_s - self.renewed_at_s, 0.0)


NO_RECORD: Final = LeaseRecord(0, NO_HOLDER, "", 0.0, 0.0)


class Standing(Enum):
    """The meaning of a lease for other processes; only a ``LIVE`` lease keeps them from the job."""

    ABSENT = "absent"
    RELEASED = "released"
    DEAD = "dead"
    LAPSED = "lapsed"
    LIVE = "live"

    @property
    def is_judged_by_time(self) -> bool:
        """Whether only clocks distinguish this standing from another one."""
        return self in (Standing.LIVE, Standing.LAPSED)


def judge_lease(record: LeaseRecord, *, now_s: float, here: Holder, process_gone: bool) -> Standing:
    """The meaning of ``record`` for the process ``here`` at ``now_s``.

    ``process_gone``: no process of this machine is the holder, which matters only if the holder ran
    on this machine.
    """
    if not record:
        return Standing.ABSENT
    if record.released:
        return Standing.RELEASED
    same_machine = (record.holder.host, record.holder.boot_id) == (here.host, here.boot_id)
    if same_machine and process_gone:
        return Standing.DEAD
    return Standing.LAPSED if record.age_s(now_s) > record.lapses_s else Standing.LIVE


def refusal(job_id: str, record: LeaseRecord, *, now_s: float) -> JobConflictError:
    """The error for a process that wants a job which another process runs."""
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


class _Stored(Struct):
    """A lease as it is stored. Others may write to the bucket, so a process number has to be valid,
    and no lease may last for ever."""

    attempt: Annotated[int, Meta(ge=1, le=ATTEMPTS_MAX)]
    host: _Text
    boot_id: _Text
    pid: Annotated[int, Meta(ge=1, le=PID_MAX)]
    pid_start: Annotated[int, Meta(ge=0, le=1 << 62)]
    token: _Text
    renewed_at: _Text
    lapses_s: Annotated[float, Meta(ge=0, le=LAPSES_S_MAX)]
    released: bool


def decode_lease(data: bytes) -> LeaseRecord:
    """The lease that ``encode_lease`` stored; ``StorageError`` for anything else."""
    stored = parse_as(data, "a job's lease", _Stored)
    try:
        if not all(text.isprintable() for text in (stored.host, stored.boot_id, stored.token)):
            raise ValueError("a text cannot be printed")
        renewed_at_s = datetime.fromisoformat(stored.renewed_at).timestamp()
    except (ArithmeticError, ValueError) as error:
        raise StorageError(f"a job's lease is damaged: {error}") from None
    return LeaseRecord(
        attempt=stored.attempt,
        holder=Holder(stored.host, stored.boot_id, stored.pid, stored.pid_start),
        token=stored.token,
        renewed_at_s=renewed_at_s,
        lapses_s=stored.lapses_s,
        released=stored.released,
    )
