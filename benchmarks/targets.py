"""All targets beside what runs reached. Pure: runs in, targets out."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from benchmarks.container_targets import container_targets
from benchmarks.ingest import ingest_targets
from benchmarks.results import Run, Target, cpu_per_gib, good_runs, growth_of, ratio_of
from benchmarks.step_suites import step_targets

__all__ = ["targets_of"]

GIGABYTE = 10**9
# "Flat" with room for allocator noise and a larger share of caches.
GROWTH_MAX = 1.25


def targets_of(runs: Sequence[Run]) -> list[Target]:
    """Every target beside what ``runs`` reached."""
    found = []
    for profile, wanted in (("100k", 1.0), ("1k", 0.5), ("4m", 1.0)):
        ratio = ratio_of(runs, "warm", profile, "dsort-map", "cp")
        found.append(Target(f"warm {profile}: map / cp", "x", wanted, True, ratio))
    for profile, wanted in (("100k", 0.75), ("4m", 0.75), ("32k", 0.5), ("1k", 0.45)):
        ratio = ratio_of(runs, "limited", profile, "dsort", "cp")
        note = _moves_note(runs, "limited", profile)
        found.append(Target(f"limited {profile}: dsort / cp", "x", wanted, True, ratio, note))
    ratio = ratio_of(runs, "limited", "100k", "dsort-spill", "cp")
    found.append(Target("limited 100k: spill / cp", "x", 0.45, True, ratio))
    cpu = cpu_per_gib(runs, "dsort", suite="limited", profile="100k")
    found.append(Target("limited 100k: CPU a GiB", "s", 1.5, False, cpu))
    for base, wanted in (("webdataset", 30.0), ("ray", 50.0)):
        ratio = ratio_of(runs, "warm", "100k", "dsort-map", base)
        found.append(Target(f"warm 100k: map / {base}", "x", wanted, True, ratio))
    found.append(_seconds_target(runs, "small", "10 MB job, whole command", 1.5, "whole_seconds"))
    found.append(_seconds_target(runs, "planning", "plan 10 M rows", 10.0, "work_seconds"))
    peaks = [run.details.get("peak_bytes", 0) for run in good_runs(runs, "planning", "dsort")]
    peak = median(peaks) / GIGABYTE if peaks else None
    found.append(Target("plan 10 M rows, memory", "GB", 1.5, False, peak))
    for profile in ("100k", "1k"):
        for contender in ("dsort-map", "dsort-spill"):
            growth = growth_of(runs, profile, contender, "own_bytes")
            text = f"memory {profile}: {contender} worker, 4x / 1x data"
            found.append(Target(text, "x", GROWTH_MAX, False, growth))
    return [
        *found,
        *_cluster_targets(runs),
        *_service_targets(runs),
        *container_targets(runs),
        *step_targets(list(runs)),
        *ingest_targets(list(runs)),
    ]


def _cluster_targets(runs: Sequence[Run]) -> list[Target]:
    """Targets on object stores, on several nodes, and of the control plane."""
    found = []
    ratio = ratio_of(runs, "s3", "100k", "dsort", "floor")
    found.append(Target("S3 to S3: dsort / floor", "x", 0.8, True, ratio))
    for start, text in ((False, "S3 to S3: client CPU a GiB"), (True, "... without its start")):
        cpu, floor = (cpu_per_gib(runs, name, less_start=start) for name in ("dsort", "floor"))
        note = "" if floor is None else f"floor {floor:.2f}"
        found.append(Target(text, "s", 2.5, False, cpu, note))
    growth = growth_of(runs, "100k", "dsort", "own_bytes", suite="s3-flat")
    found.append(
        Target("S3 to S3: worker memory, most / least data", "x", GROWTH_MAX, False, growth)
    )
    for suite, places, wanted in (("nodes", "S3 to S3", 0.85), ("nodes-files", "files", 0.75)):
        ratio = ratio_of(runs, suite, "100k", "nodes-3", "nodes-1")
        text = f"three nodes / one node, same CPUs, {places}"
        found.append(Target(text, "x", wanted, True, ratio))
    control = good_runs(runs, "control", "dsort")
    seconds = max((run.work_seconds for run in control), default=None)
    peak = max((run.details["peak_bytes"] / GIGABYTE for run in control), default=None)
    found.append(Target("control plane, largest", "s", 300.0, False, seconds))
    found.append(Target("control plane, largest, memory", "GB", 1.2, False, peak))
    return found


def _service_targets(runs: Sequence[Run]) -> list[Target]:
    """Targets of the job service."""
    wanted = (
        ("submissions_per_second", "submissions, SQLite", "a second", 200.0, True),
        ("lost", "... acknowledged, and lost", "jobs", 0.0, False),
        ("list_p95_ms", "a list with 1,000 jobs queued, p95", "ms", 50.0, False),
        ("streams_told", "event streams told at once", "streams", 100.0, True),
    )
    good = good_runs(runs, "service", "dsort")
    found = []
    for name, text, unit, goal, is_least in wanted:
        reached = median(run.details[name] for run in good) if good else None
        found.append(Target(f"service: {text}", unit, goal, is_least, reached))
    return found


def _seconds_target(
    runs: Sequence[Run], suite: str, text: str, wanted: float, attribute: str
) -> Target:
    seconds = [float(getattr(run, attribute)) for run in good_runs(runs, suite, "dsort")]
    return Target(text, "s", wanted, False, median(seconds) if seconds else None)


def _moves_note(runs: Sequence[Run], suite: str, profile: str) -> str:
    moves = {
        str(run.details.get("move"))
        for run in good_runs(runs, suite, "dsort")
        if run.profile == profile
    }
    return f"dsort chose {', '.join(sorted(moves))}" if moves else ""
