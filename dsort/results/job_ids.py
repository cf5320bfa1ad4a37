"""Ids of jobs: they sort by the time at which jobs began, and are safe names of directories."""

from __future__ import annotations

import re
import secrets
import time
from typing import Final

_JOB_ID: Final = re.compile(r"([0-9]{8}-[0-9]{6})-([0-9a-f]{6})")
_SECOND_NS: Final = 10**9
_FRACTION: Final = 1 << 16
"""An id divides the second into this many parts, of 15 µs; the last two digits of the id are
random."""


def new_job_id() -> str:
    """An id like ``20260131-235959-4f2a9c``: the time in UTC, and in hexadecimal the elapsed part
    of the second."""
    second, rest_ns = divmod(time.time_ns(), _SECOND_NS)
    began = time.strftime("%Y%m%d-%H%M%S", time.gmtime(second))
    return f"{began}-{rest_ns * _FRACTION // _SECOND_NS:04x}{secrets.token_hex(1)}"


def later_job_id(earlier: str) -> str:
    """A new id that sorts after the id ``earlier``, even if this clock is behind."""
    found = new_job_id()
    match = _JOB_ID.fullmatch(earlier)
    if found > earlier or not match:
        return found
    number = int(match[2], 16)
    free = 0xFFFFFF - number
    return f"{match[1]}-{number + 1 + secrets.randbelow(free):06x}" if free else found


def moment_of_id(job_id: str) -> str:
    """The time at which the job began, as ``20260131-235959.309234``; "" if the id has no time. In
    ids of older versions the time has no fraction of a second, so the fraction means nothing."""
    match = _JOB_ID.fullmatch(job_id)
    if not match:
        return ""
    return f"{match[1]}.{(int(match[2], 16) >> 8) * 10**6 // _FRACTION:06d}"
