"""A job as the REST routes show it: JSON with times in RFC 3339."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dsort.service.jobs.rows import JobRow

__all__ = ["job_view", "progress_view", "rfc3339"]

PHASES = ("resolve", "extract", "plan", "create", "commit")
PHASE_SHARES = {"resolve": 0.02, "extract": 0.43, "plan": 0.05, "create": 0.45, "commit": 0.05}
"""What share of a job's time each phase is taken to be, for a total that only ever grows: measured
over jobs of 1 to 8 GiB, extracting and creating take nine tenths, about half each."""


def rfc3339(at_s: float | None) -> str | None:
    """Seconds since 1970 as ``2026-01-31T23:59:59.123Z``."""
    if at_s is None:
        return None
    text = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def progress_view(progress: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Progress with the share that is done (of the whole job, 0 to 1), the rate of this phase, and
    the seconds that this phase still takes at that rate."""
    if progress is None:
        return None
    done, total = progress.get("bytes_done", 0), progress.get("bytes_total", 0)
    if not total:
        done, total = progress.get("shards_done", 0), progress.get("shards_total", 0)
    within = min(done / total, 1.0) if total else 0.0
    elapsed_s = progress.get("elapsed_s", 0.0)
    rate = progress.get("bytes_per_s")
    if rate is None:
        rate = progress.get("bytes_done", 0) / elapsed_s if elapsed_s > 0 else None
    left_s = elapsed_s * (1 - within) / within if within > 0 and elapsed_s > 0 else None
    share = None
    phase = progress.get("phase")
    if phase in PHASE_SHARES:
        before = PHASES[: PHASES.index(phase)]
        share = sum(PHASE_SHARES[each] for each in before) + PHASE_SHARES[phase] * within
    return {
        **progress,
        "share": share,
        "bytes_per_s": rate,
        "left_s": left_s,
    }


def job_view(row: JobRow, *, position: int | None = None, whole: bool = False) -> dict[str, Any]:
    """The JobView of a row; ``whole``: with its spec and result."""
    view: dict[str, Any] = {
        "job_id": row.job_id,
        "kind": row.kind,
        "state": row.state,
        "stopping": row.stopping,
        "owner": row.owner,
        "labels": list(row.labels),
        "priority": row.priority,
        "description": row.description,
        "input_uri": row.input_uri,
        "output_uri": row.output_uri,
        "schedule": row.schedule_name,
        "due_at": rfc3339(row.due_at),
        "created_at": rfc3339(row.created_at),
        "started_at": rfc3339(row.started_at),
        "ended_at": rfc3339(row.ended_at),
        "queue_position": position,
        "attempt": row.attempt,
        "phase": row.phase,
        "progress": progress_view(row.progress) if row.state == "running" else None,
        "phases": list(row.phases or ()),
        "warning_count": row.warning_count,
        "stop_reason": row.stop_reason,
        "error": row.error,
        "exit_code": row.exit_code,
        "host": row.host.partition("/")[0] if row.host else None,
    }
    if whole:
        view["spec"] = row.spec
        view["result"] = row.result
    return view
