"""Writes measured figures into the pages that quote them: ``-m benchmarks.pages``.

What stands between ``<!-- measured: NAME -->`` and ``<!-- end of NAME -->`` is made of
``benchmarks/results``; a block of which there is no result stays as it is. A test compares pages
with results, so no figure in a block can be written by hand.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import REPOSITORY
from benchmarks.plots import SUITES

__all__ = ["BLOCKS", "PAGES", "Results", "main", "read_results", "updated"]

PAGES = ("README.md", "docs/performance.md")
RESULTS = REPOSITORY / "benchmarks" / "results"
PROFILES = {"1k": "1 KB", "32k": "32 KB", "100k": "100 KB", "4m": "4 MB"}
PLACES = {"warm": "in memory", "limited": "in a third", "limited-tenth": "in a tenth"}
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


def read_results(directory: Path) -> dict[str, dict[str, Any]]:
    """All results in a directory, by suite."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))}


def updated(text: str, results: Results) -> str:
    """A page with the figures of ``results`` in its blocks. ``ValueError`` for a block without an
    end, or of a name that nobody knows."""
    for name in re.findall(r"<!-- measured: ([\w-]+) -->", text):
        begin, end = f"<!-- measured: {name} -->", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found or name not in BLOCKS:
            raise ValueError(f"{begin} has no end, or is none of {', '.join(BLOCKS)}")
        if (content := BLOCKS[name](results)) is not None:
            text = f"{before}{begin}{content}{end}{after}"
    return text


def _summary(results: Results) -> str | None:
    """How fast beside ``cp``, in one sentence."""
    words = []
    for suite, place in (
        ("warm", "where the data fits in memory"),
        ("limited", "where it does not"),
    ):
        name = "dsort-map" if suite == "warm" else "dsort"
        ratios = [
            row["cp_ratio"]
            for row in _rows(results, suite)
            if row["contender"] == name and row["cp_ratio"] and row["profile"] in PROFILES
        ]
        if not ratios:
            return None
        words.append(f"at {min(ratios):.2g} to {max(ratios):.2g} times the speed {place}")
    return f"Beside `cp` of the same tars, it runs {words[0]},\n{words[1]}."


def _rates(results: Results) -> str | None:
    """MB/s of each contender on each kind of records, with ratios to ``cp``."""
    return _by_profile(
        results, lambda row: _rate(row) + (f" ({row['cp_ratio']:.2f} ×)" if _compared(row) else "")
    )


def _costs(results: Results) -> str | None:
    """What each took besides time."""
    return _by_profile(results, _cost)


def _cost(row: Row) -> str:
    read, written = (row[f"{what}_ratio"] for what in ("read", "written"))
    moved = " + ".join("–" if each is None else f"{each:.1f}" for each in (read, written))
    peak = f"{row['peak_bytes'] / 1e6:.0f} MB" if row["peak_bytes"] else "–"
    return f"{row['cpu_per_gib']:.1f} · {moved} · {peak}"


def _tables(results: Results) -> str | None:
    """Rows of Parquet, beside databases."""
    lines = []
    for suite, place in (("tables", "in memory"), ("tables-limited", "in a fifth")):
        lines += [
            [
                f"{_name(row)}, {row['profile']}, {place}",
                *((_rate(row), f"{row['cpu_per_gib']:.1f}") if row["rounds"] else ("failed", "–")),
            ]
            for row in _rows(results, suite)
        ]
    return _framed(("", "MB/s", "CPU s/GiB"), lines, results.get("tables"))


def _stores(results: Results) -> str | None:
    """From bucket to bucket."""
    rows = [
        [
            _name(row),
            _rate(row),
            f"{row['cpu_per_gib']:.1f}",
        ]
        for row in _rows(results, "s3")
    ]
    return _framed(("", "MB/s", "CPU s/GiB of the client"), rows, results.get("s3"))


def _control(results: Results) -> str | None:
    """The coordinator alone."""
    runs = [run for run in results.get("control", {}).get("runs", ()) if not run["failure"]]
    phases = ("resolve", "extract", "plan", "create", "commit")
    rows = [
        [
            run["profile"],
            *(f"{run['details']['phase_seconds'].get(phase, 0.0):.1f}" for phase in phases),
            f"{run['details']['seconds']:.0f}",
            f"{run['details']['peak_bytes'] / 1e9:.2f} GB",
        ]
        for run in runs
    ]
    return _framed(("", *phases, "CPU s", "peak"), rows, results.get("control"))


def _plots(results: Results) -> str | None:
    """The pictures that there are."""
    drawn = [suite for suite in SUITES if _rows(results, suite)]
    lines = [f"![{suite}: MB/s of each contender](performance/{suite}.svg)" for suite in drawn]
    return "\n" + "\n\n".join(lines) + "\n" if lines else None


BLOCKS: Mapping[str, Callable[[Results], str | None]] = {
    "summary": _summary,
    "rates": _rates,
    "costs": _costs,
    "tables": _tables,
    "stores": _stores,
    "control": _control,
    "plots": _plots,
}


def _rows(results: Results, suite: str) -> list[Row]:
    return [row for row in results.get(suite, {}).get("rows", ()) if row["suite"] == suite]


def _by_profile(results: Results, cell: Callable[[Row], str]) -> str | None:
    """A line for each contender in each place, a column for each kind of records."""
    found = {
        (suite, row["contender"], row["profile"]): row
        for suite in PLACES
        for row in _rows(results, suite)
    }
    profiles = [each for each in PROFILES if any(key[2] == each for key in found)]
    lines = []
    for suite, contender in dict.fromkeys(key[:2] for key in found):
        cells = [found.get((suite, contender, profile)) for profile in profiles]
        shown = ["" if row is None else cell(row) if row["rounds"] else "failed" for row in cells]
        lines.append([f"{NAMES.get(contender, contender)}, {PLACES[suite]}", *shown])
    head = ("", *(f"{PROFILES[each]} records" for each in profiles))
    return _framed(head, lines, results.get("warm") or results.get("limited"))


def _name(row: Row) -> str:
    return NAMES.get(row["contender"], str(row["contender"]))


def _rate(row: Row) -> str:
    rate = float(row["megabytes_per_second"])
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"


def _compared(row: Row) -> bool:
    return row["cp_ratio"] is not None and row["contender"] != "cp"


def _framed(
    head: Sequence[str], rows: Iterable[Sequence[str]], result: Mapping[str, Any] | None
) -> str | None:
    """A table, and under it where and when it was measured; None for no rows."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if not lines or result is None:
        return None
    head_lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    machine = result["machine"]
    rounds = sorted({row["rounds"] for row in result["rows"] if row["rounds"]}) or [1]
    several = f"rounds: {rounds[0]}" + (f" to {rounds[-1]}" if len(rounds) > 1 else "")
    said = (
        f"Measured {machine.get('date', 'on a day unknown')}, {machine['cpu']}, "
        f"{machine['memory']}, {machine['kernel']}, {machine['file system']}; medians, {several}; "
        f"others kept {machine.get('busy cores before', '?')} cores busy before."
    )
    return "\n" + "\n".join([*head_lines, *lines, "", said]) + "\n"


def main(arguments: list[str] | None = None) -> None:
    """Write all blocks of which there are results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    results = read_results(parser.parse_args(arguments).results)
    for name in PAGES:
        page = REPOSITORY / name
        text = page.read_text()
        if (now := updated(text, results)) != text:
            page.write_text(now)
            print(name)


if __name__ == "__main__":
    main()
