"""What the blocks of pages are made of: runs and rows of results, ranges, names, tables. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.results import Run

__all__ = [
    "FAILED",
    "NAMES",
    "NONE",
    "Results",
    "Row",
    "framed",
    "from_report",
    "good",
    "is_compared",
    "least_of",
    "name_of",
    "rate_of",
    "rows_of",
    "runs_of",
    "spread",
]

FAILED = "failed"
NONE = "–"
NAMES = {
    "cp": "`cp`",
    "rsync": "`rsync`",
    "dsort": "**dsort**, choosing by itself",
    "dsort-map": "**dsort** (`map`)",
    "dsort-range": "**dsort** (`range`)",
    "dsort-spill": "**dsort** (`spill`)",
    "tarfile": "a Python script with `tarfile`",
    "webdataset": "webdataset `.shuffle(5000)` + `ShardWriter` (no real shuffle)",
    "ray": "Ray Data `random_shuffle`",
    "ray-tuned": "the same with as many blocks as shards",
    "duckdb": "DuckDB",
    "polars": "Polars",
    "pyarrow": "pyarrow: read, take, write",
    "floor": "fetch and store every shard, no more",
}

Results = Mapping[str, Mapping[str, Any]]
Row = Mapping[str, Any]
"""By suite, as they stand in files."""


def least_of(rounds: int) -> str:
    """How often it was measured where the best round counts."""
    return "one round" if rounds == 1 else f"the best of {rounds} rounds"


def runs_of(results: Results, suite: str) -> list[Run]:
    """The runs of a result, those on next to no data included."""
    return [
        Run(**{name: value for name, value in run.items() if name != "megabytes_per_second"})
        for run in results.get(suite, {}).get("runs", ())
    ]


def good(runs: Iterable[Run]) -> list[Run]:
    """Those that did not fail."""
    return [run for run in runs if not run.failure]


def from_report(
    results: Results, suite: str, words_of: Callable[[Mapping[str, Any]], str | None]
) -> str | None:
    """What ``words_of`` makes of the first good run of a suite that measures by itself."""
    if not (runs := runs_of(results, suite)):
        return None
    done = good(runs)
    return words_of(done[0].details) if done else FAILED


def spread(values: Sequence[float], unit: str = "", *, digits: int = 2) -> str:
    """The median, and the least and the most of several."""
    if not values:
        return FAILED
    middle = f"{median(values):.{digits}f}{unit}"
    if len(values) == 1:
        return middle
    return f"{middle} (rounds: {min(values):.{digits}f} to {max(values):.{digits}f})"


def rows_of(results: Results, suite: str) -> list[Row]:
    """The medians of a suite, without those of its start."""
    return [row for row in results.get(suite, {}).get("rows", ()) if row["suite"] == suite]


def name_of(row: Row) -> str:
    """Of its contender, for a reader."""
    return NAMES.get(row["contender"], str(row["contender"]))


def rate_of(row: Row) -> str:
    """MB/s."""
    rate = float(row["megabytes_per_second"])
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"


def is_compared(row: Row) -> bool:
    """Whether it has a ratio to ``cp``, and is not ``cp`` itself."""
    return row["cp_ratio"] is not None and row["contender"] != "cp"


def framed(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    result: Mapping[str, Any] | None,
    how: str = "",
) -> str | None:
    """A table, and under it where and when it was measured, and how often; None for no rows."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if not lines or result is None:
        return None
    head_lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    machine = result["machine"]
    if not how:
        counts = {row["rounds"] for row in result["rows"] if not row["suite"].endswith("-start")}
        rounds = sorted(counts - {0}) or [1]
        how = f"medians, rounds: {rounds[0]}"
        how += f" to {rounds[-1]}" if len(rounds) > 1 else ""
    said = (
        f"Measured {machine.get('date', 'on a day unknown')}, {machine['cpu']}, "
        f"{machine['memory']}, {machine['kernel']}, {machine['file system']}; {how}; "
        f"others kept {machine.get('busy cores before', '?')} cores busy before."
    )
    return "\n" + "\n".join([*head_lines, *lines, "", said]) + "\n"
