"""Who runs a job: a lease in its directory that lapses unless it is renewed, judged as a value.

The lease says whom to ask and how long to wait. What keeps two coordinators apart is the *claim*:
of all that want to begin attempt n, exactly one stores ``attempts/<n>``, and whoever sees a newer
claim than its own has lost the job.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

from dsort.errors import JobConflictError, StorageError
from dsort.runtime.machine import Holder

__all__ = [
    "ATTEMPTS_MAX",
    "LeaseRecord",
    "Standing",
    "attempt_name",
    "decode_lease",
    "encode_lease",
    "judge_lease",
    "lease_name",
    "refusal",
    "stop_name",
]

ATTEMPTS_MAX: Final = 1_000_000
LAPSES_S_MAX: Final = 3600.0
PID_MAX: Final = (1 << 31) - 1
TEXT_MAX: Final = 1000


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


def lease_name(job_id: str) -> str:
    """Where the lease of a job is, in its output bucket."""
    return f".dsort/{job_id}/lease.json"


def attempt_name(job_id: str, attempt: int) -> str:
    """The claim of attempt number ``attempt``, which begins with 1."""
    return f".dsort/{job_id}/attempts/{attempt:04d}"


def stop_name(job_id: str) -> str:
    """The object that asks a job to stop."""
    return f".dsort/{job_id}/stop"


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
