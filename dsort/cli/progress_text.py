"""Progress of a phase as text, for lines, bars and ``dsort show``."""

from __future__ import annotations

from dsort.cli import output
from dsort.results.report import JobStarted, PhaseDone, Progress

__all__ = [
    "begin_text",
    "done_text",
    "progress_text",
    "speed_text",
    "started_text",
    "time_left_s",
]

MOVING_PHASES = frozenset({"create", "extract", "generate", "verify"})


def started_text(event: JobStarted) -> str:
    """The first line of a job, and a line with the place where it runs, if that is not this
    machine."""
    return (
        f"job {event.job_id}: {output.count(event.input_shards, 'shard')}, "
        f"{output.size(event.input_bytes)}, {event.move}, {output.count(event.workers, 'worker')}"
        + (f"\n{output.printable(event.where)}" if event.where else "")
    )


def begin_text(event: Progress) -> str:
    """The work of a phase, when it begins."""
    parts = []
    if event.shards_total:
        parts.append(output.count(event.shards_total, "shard"))
    if event.bytes_total:
        parts.append(output.size(event.bytes_total))
    return ", ".join(parts) or "started"


def progress_text(event: Progress) -> str:
    """The progress of a phase, in one line: ``34/100 shards, 1,234 records, 512 MiB, ...``."""
    parts = []
    if event.shards_total:
        parts.append(f"{event.shards_done:,}/{event.shards_total:,} shards")
    if event.records_done:
        parts.append(output.count(event.records_done, "record"))
    if event.bytes_done:
        parts.append(output.size(event.bytes_done))
        parts.append(speed_text(event.phase, event.bytes_done, event.elapsed_s))
    left_s = time_left_s(event)
    if left_s is not None:
        parts.append(f"about {output.duration(left_s)} left")
    return ", ".join(part for part in parts if part) or output.duration(event.elapsed_s)


def done_text(event: PhaseDone) -> str:
    """The work that a phase has done."""
    parts = [output.duration(event.elapsed_s)]
    if event.shards:
        parts.append(output.count(event.shards, "shard"))
    if event.records:
        parts.append(output.count(event.records, "record"))
    if event.bytes:
        parts.append(output.size(event.bytes))
        parts.append(speed_text(event.phase, event.bytes, event.elapsed_s))
    return ", ".join(part for part in parts if part)


def speed_text(phase: str, bytes_done: int, elapsed_s: float) -> str:
    """Bytes a second, for phases that move payload; empty for the others."""
    return output.rate(bytes_done, elapsed_s) if phase in MOVING_PHASES else ""


def time_left_s(event: Progress) -> float | None:
    """Seconds until the job ends at the present rate; None while the rate is not known. Shards are
    created after they are extracted: creating moves as many bytes, and is assumed to be as fast."""
    done, total = event.bytes_done, event.bytes_total
    if not total:
        done, total = event.shards_done, event.shards_total
    if not done or total <= done or event.elapsed_s < 1:
        return None
    behind = total if event.phase == "extract" else 0
    return event.elapsed_s * (total - done + behind) / done
