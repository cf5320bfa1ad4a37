"""The removal of several objects as one of AIStore's jobs.

AIStore removes objects later and answers with the id of a job, for which its clients wait. Here the
objects are removed before the request is answered. The id contains the time of the removal, so no
state is kept.
"""

from __future__ import annotations

import re
from typing import Any, Final

from dsort.service.aistore.answers import go_time

__all__ = ["REMOVAL", "removal_id", "removal_snap", "removal_status"]

REMOVAL: Final = "delete-listrange"
"""AIStore's name for the action, and for a job of that kind."""

_ID: Final = re.compile("rmo-([0-9a-f]{16})")
_NS: Final = 10**9
_NO_BUCKET: Final = {"name": "", "provider": "", "namespace": {"uuid": "", "name": ""}}


def removal_id(now_ns: int) -> str:
    """The id of a removal that has ended now."""
    return f"rmo-{now_ns:016x}"


def _ended_ns(uuid: str) -> int | None:
    match = _ID.fullmatch(uuid)
    return None if match is None else int(match[1], 16) & (1 << 62) - 1


def removal_status(uuid: str) -> dict[str, Any] | None:
    """The status of a removal for a client that waits for it; None for the id of another job."""
    ended_ns = _ended_ns(uuid)
    if ended_ns is None:
        return None
    return {"kind": REMOVAL, "uuid": uuid, "err": "", "end_time": ended_ns, "aborted": False}


def removal_snap(uuid: str) -> dict[str, Any] | None:
    """The removal as one of AIStore's jobs of any kind; see ``answers.job_snap``."""
    ended_ns = _ended_ns(uuid)
    if ended_ns is None:
        return None
    counts = ("loc-objs", "loc-bytes", "out-objs", "out-bytes", "in-objs", "in-bytes")
    return {
        "id": uuid,
        "kind": REMOVAL,
        **dict.fromkeys(("bck", "src-bck", "dst-bck"), _NO_BUCKET),
        "start-time": go_time(ended_ns / _NS),
        "end-time": go_time(ended_ns / _NS),
        "stats": dict.fromkeys(counts, "0"),
        "aborted": False,
        "is_idle": True,
        "abort-err": "",
        "ext": None,
    }
