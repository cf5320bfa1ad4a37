"""Computes medians and ratios from runs, without any input or output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

__all__ = [
    "GIB",
    "Row",
    "Run",
    "Skip",
    "cpu_per_gib",
    "good_runs",
    "ratio_of",
    "ratios_of",
    "summarise",
    "to_json",
]

JSON_FORMAT = "dsort-benchmarks-1"
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a command. A rate is ``input_bytes`` / (``work_seconds`` + ``sync_seconds``).

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
    may_fail: bool = False
    """A failure of this run is a result, too."""

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
    input_bytes: int = 0
    cpu_per_gib: float = 0.0
    """CPU seconds of the whole tree, start included, for each 2^30 bytes."""
    read_ratio: float | None = None
    """Bytes that the tree read from disks (``/proc/<pid>/io``), divided by those of the inputs."""
    written_ratio: float | None = None
    peak_bytes: int = 0
    """The most anonymous and shared memory that the tree had at one time; 0: not measured."""


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
        input_bytes=first.input_bytes,
        cpu_per_gib=middle(lambda run: run.cpu_seconds / max(run.input_bytes, 1) * GIB),
        read_ratio=_moved(good, "read_bytes"),
        written_ratio=_moved(good, "written_bytes"),
        peak_bytes=max((run.details.get("peak_bytes", 0) for run in good), default=0),
    )


def _moved(runs: Sequence[Run], what: str) -> float | None:
    found = [
        run.details[what] / run.input_bytes
        for run in runs
        if what in run.details and run.input_bytes
    ]
    return median(found) if found else None


def ratio_of(
    runs: Iterable[Run], suite: str, profile: str, contender: str, base: str
) -> float | None:
    """How many times as fast as ``base`` a contender is: the median of `ratios_of`, if any."""
    ratios = ratios_of(runs, suite, profile, contender, base)
    return median(ratios) if ratios else None


def ratios_of(
    runs: Iterable[Run], suite: str, profile: str, contender: str, base: str
) -> list[float]:
    """How many times as fast as ``base`` a contender was, for each round that both have.

    Rates are paired by round, because a change of the machine's speed affects both rates of a
    round.
    """
    rates: dict[str, dict[int, float]] = {}
    for run in runs:
        if (run.suite, run.profile) == (suite, profile) and run.megabytes_per_second:
            rates.setdefault(run.contender, {})[run.round] = run.megabytes_per_second
    ours, theirs = rates.get(contender, {}), rates.get(base, {})
    return [ours[number] / theirs[number] for number in ours if number in theirs]


def cpu_per_gib(
    runs: Sequence[Run],
    contender: str,
    *,
    suite: str = "s3",
    profile: str = "",
    less_start: bool = False,
    starter: str = "",
) -> float | None:
    """CPU seconds of the whole process tree for each 2^30 input bytes: the median.

    ``less_start``: without the seconds of runs on very little data, which are runs of ``starter``
    (by default of the contender itself).
    """
    starts = good_runs(runs, f"{suite}-start", starter or contender)
    seconds, size_bytes = 0.0, 0
    if less_start:
        if not starts:
            return None
        seconds = median(run.cpu_seconds for run in starts)
        size_bytes = starts[0].input_bytes
    found = [
        (run.cpu_seconds - seconds) / (run.input_bytes - size_bytes) * GIB
        for run in good_runs(runs, suite, contender)
        if (not profile or run.profile == profile) and run.input_bytes > size_bytes
    ]
    return median(found) if found else None


def good_runs(runs: Iterable[Run], suite: str, contender: str) -> list[Run]:
    """The runs of a contender that did not fail."""
    return [
        run for run in runs if (run.suite, run.contender) == (suite, contender) and not run.failure
    ]


def to_json(
    machine: dict[str, str],
    settings: dict[str, Any],
    runs: Sequence[Run],
    skips: Sequence[Skip],
) -> dict[str, Any]:
    """The whole result: every run, and the medians."""
    return {
        "format": JSON_FORMAT,
        "machine": machine,
        "settings": settings,
        "runs": [asdict(run) | {"megabytes_per_second": run.megabytes_per_second} for run in runs],
        "rows": [asdict(row) for row in summarise(runs)],
        "skipped": [asdict(skip) for skip in skips],
    }
