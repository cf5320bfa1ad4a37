"""From runs to medians, ratios and targets. Pure: values in, values out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Literal

__all__ = [
    "GIB",
    "Outcome",
    "Row",
    "Run",
    "Skip",
    "Target",
    "cpu_per_gib",
    "growth_of",
    "ratio_of",
    "summarise",
    "targets_of",
    "to_json",
]

JSON_FORMAT = "dsort-benchmarks-1"
GIGABYTE = 10**9
GIB = 2**30
# "Flat" with room for allocator noise and a larger share of caches.
GROWTH_MAX = 1.25


@dataclass(frozen=True, slots=True)
class Run:
    """One command, once. Rates count ``input_bytes`` over ``work_seconds + sync_seconds``.

    ``work_seconds`` is the contender's own clock around its work (dsort: phases extract to
    commit), ``whole_seconds`` the command from start to end, ``sync_seconds`` the sync after it.
    """

    suite: str
    profile: str
    contender: str
    round: int
    input_bytes: int
    work_seconds: float = 0.0
    whole_seconds: float = 0.0
    sync_seconds: float = 0.0
    cpu_seconds: float = 0.0
    other_cpu_seconds: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)
    failure: str = ""

    @property
    def megabytes_per_second(self) -> float:
        """10^6 input bytes a second of work and sync; 0 for a run that failed."""
        seconds = self.work_seconds + self.sync_seconds
        return self.input_bytes / 1e6 / seconds if seconds and not self.failure else 0.0


@dataclass(frozen=True, slots=True)
class Skip:
    """Something that was not measured, and why."""

    suite: str
    what: str
    reason: str


@dataclass(frozen=True, slots=True)
class Row:
    """Medians of one contender's runs on one profile; ``cp_ratio`` is None without a ``cp``."""

    suite: str
    profile: str
    contender: str
    rounds: int
    megabytes_per_second: float
    megabytes_per_second_min: float
    megabytes_per_second_max: float
    cp_ratio: float | None
    work_seconds: float
    whole_seconds: float
    sync_seconds: float
    cpu_seconds: float
    failure: str = ""


def summarise(runs: Sequence[Run]) -> list[Row]:
    """One row for each (suite, profile, contender), in the order of their first runs."""
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.suite, run.profile, run.contender), []).append(run)
    return [_row(group, runs) for group in groups.values()]


def _row(group: Sequence[Run], runs: Sequence[Run]) -> Row:
    first = group[0]
    good = [run for run in group if not run.failure]
    rates = [run.megabytes_per_second for run in good]
    failures = [run.failure for run in group if run.failure]

    def middle(value: Callable[[Run], float]) -> float:
        return median(map(value, good)) if good else 0.0

    return Row(
        first.suite,
        first.profile,
        first.contender,
        len(good),
        median(rates) if rates else 0.0,
        min(rates, default=0.0),
        max(rates, default=0.0),
        ratio_of(runs, first.suite, first.profile, first.contender, "cp"),
        middle(lambda run: run.work_seconds),
        middle(lambda run: run.whole_seconds),
        middle(lambda run: run.sync_seconds),
        middle(lambda run: run.cpu_seconds),
        failures[0] if failures else "",
    )


def ratio_of(
    runs: Iterable[Run], suite: str, profile: str, contender: str, base: str
) -> float | None:
    """How many times as fast as ``base`` a contender is: the median over the rounds of both.

    Rates are paired by round, so that a machine that slows down on the way slows both.
    """
    rates: dict[str, dict[int, float]] = {}
    for run in runs:
        if (run.suite, run.profile) == (suite, profile) and run.megabytes_per_second:
            rates.setdefault(run.contender, {})[run.round] = run.megabytes_per_second
    ours, theirs = rates.get(contender, {}), rates.get(base, {})
    ratios = [ours[number] / theirs[number] for number in ours if number in theirs]
    return median(ratios) if ratios else None


Outcome = Literal["pass", "short", "not measured"]


@dataclass(frozen=True, slots=True)
class Target:
    """A figure to reach: ``is_least``: at least ``wanted``, else at most."""

    text: str
    unit: str
    wanted: float
    is_least: bool
    reached: float | None
    note: str = ""

    @property
    def outcome(self) -> Outcome:
        """A figure that was not measured is neither reached nor missed."""
        if self.reached is None:
            return "not measured"
        enough = self.reached >= self.wanted if self.is_least else self.reached <= self.wanted
        return "pass" if enough else "short"


def targets_of(runs: Sequence[Run]) -> list[Target]:
    """Every target beside what ``runs`` reached."""
    found = []
    for profile, wanted in (("100k", 1.0), ("1k", 0.5), ("4m", 1.0)):
        ratio = ratio_of(runs, "warm", profile, "dsort-map", "cp")
        found.append(Target(f"warm {profile}: map / cp", "x", wanted, True, ratio))
    for profile in ("100k", "1k", "4m"):
        ratio = ratio_of(runs, "limited", profile, "dsort", "cp")
        note = _moves_note(runs, "limited", profile)
        found.append(Target(f"limited {profile}: spill / cp", "x", 0.4, True, ratio, note))
    for base, wanted in (("webdataset", 30.0), ("ray", 50.0)):
        ratio = ratio_of(runs, "warm", "100k", "dsort-map", base)
        found.append(Target(f"warm 100k: map / {base}", "x", wanted, True, ratio))
    found.append(_seconds_target(runs, "small", "10 MB job, whole command", 1.5, "whole_seconds"))
    found.append(_seconds_target(runs, "planning", "plan 10 M rows", 10.0, "work_seconds"))
    peaks = [run.details.get("peak_bytes", 0) for run in _good(runs, "planning", "dsort")]
    peak = median(peaks) / GIGABYTE if peaks else None
    found.append(Target("plan 10 M rows, memory", "GB", 1.5, False, peak))
    for profile in ("100k", "1k"):
        for contender in ("dsort-map", "dsort-spill"):
            growth = growth_of(runs, profile, contender, "own_bytes")
            text = f"memory {profile}: {contender} worker, 4x / 1x data"
            found.append(Target(text, "x", GROWTH_MAX, False, growth))
    return found + _cluster_targets(runs) + _service_targets(runs)


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
    ratio = ratio_of(runs, "nodes", "100k", "nodes-3", "nodes-1")
    found.append(Target("three nodes / one node, same CPUs", "x", 0.7, True, ratio))
    control = _good(runs, "control", "dsort")
    seconds = max((run.work_seconds for run in control), default=None)
    peak = max((run.details["peak_bytes"] / GIGABYTE for run in control), default=None)
    found.append(Target("control plane, largest", "s", 300.0, False, seconds))
    found.append(Target("control plane, largest, memory", "GB", 2.0, False, peak))
    return found


def _service_targets(runs: Sequence[Run]) -> list[Target]:
    """Targets of the job service."""
    wanted = (
        ("submissions_per_second", "submissions, SQLite", "a second", 200.0, True),
        ("lost", "... acknowledged, and lost", "jobs", 0.0, False),
        ("list_p95_ms", "a list with 1,000 jobs queued, p95", "ms", 50.0, False),
        ("streams_told", "event streams told at once", "streams", 100.0, True),
    )
    good = _good(runs, "service", "dsort")
    found = []
    for name, text, unit, goal, is_least in wanted:
        reached = median(run.details[name] for run in good) if good else None
        found.append(Target(f"service: {text}", unit, goal, is_least, reached))
    return found


def cpu_per_gib(runs: Sequence[Run], contender: str, *, less_start: bool = False) -> float | None:
    """CPU seconds of the whole process tree for each 2^30 input bytes, between buckets: the median.

    ``less_start``: of what the runs took more than runs of next to no data.
    """
    starts = _good(runs, "s3-start", contender)
    seconds, size_bytes = 0.0, 0
    if less_start:
        if not starts:
            return None
        seconds = median(run.cpu_seconds for run in starts)
        size_bytes = starts[0].input_bytes
    found = [
        (run.cpu_seconds - seconds) / (run.input_bytes - size_bytes) * GIB
        for run in _good(runs, "s3", contender)
    ]
    return median(found) if found else None


def growth_of(
    runs: Sequence[Run], profile: str, contender: str, kind: str, *, suite: str = "flatness"
) -> float | None:
    """A worker's peak of ``kind`` at the largest data size over that at the smallest."""
    peaks = {
        run.details["scale"]: run.details["worker"][kind]
        for run in _good(runs, suite, contender)
        if run.details["profile"] == profile
    }
    if len(peaks) < 2 or not peaks[min(peaks)]:
        return None
    return float(peaks[max(peaks)] / peaks[min(peaks)])


def _good(runs: Iterable[Run], suite: str, contender: str) -> list[Run]:
    return [
        run for run in runs if (run.suite, run.contender) == (suite, contender) and not run.failure
    ]


def _seconds_target(
    runs: Sequence[Run], suite: str, text: str, wanted: float, attribute: str
) -> Target:
    seconds = [float(getattr(run, attribute)) for run in _good(runs, suite, "dsort")]
    return Target(text, "s", wanted, False, median(seconds) if seconds else None)


def _moves_note(runs: Sequence[Run], suite: str, profile: str) -> str:
    moves = {
        str(run.details.get("move"))
        for run in _good(runs, suite, "dsort")
        if run.profile == profile
    }
    return "" if moves <= {"spill"} else f"dsort chose {', '.join(sorted(moves))}"


def to_json(
    machine: dict[str, str], settings: dict[str, Any], runs: Sequence[Run], skips: Sequence[Skip]
) -> dict[str, Any]:
    """The whole result: every run, the medians, and the targets."""
    return {
        "format": JSON_FORMAT,
        "machine": machine,
        "settings": settings,
        "runs": [asdict(run) | {"megabytes_per_second": run.megabytes_per_second} for run in runs],
        "rows": [asdict(row) for row in summarise(runs)],
        "targets": [asdict(target) | {"outcome": target.outcome} for target in targets_of(runs)],
        "skipped": [asdict(skip) for skip in skips],
    }
