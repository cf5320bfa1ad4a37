"""The result as plain text of at most 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from statistics import median

from benchmarks.results import GIB, Row, Run, Skip, cpu_per_gib, ratio_of, summarise

__all__ = ["render"]

WIDTH = 96
PHASES = ("resolve", "extract", "plan", "create", "commit")
COST_SUITES = (
    "containers-start",
    "containers",
    "codecs",
    "tables-start",
    "tables",
    "tables-limited",
)
COST_HEAD = (
    *("n", "whole s", "work s", "sync s", "MB/s", "CPU s/GiB", "peak MB"),
    "disk x",
)
TITLES = {
    "warm": "warm page cache",
    "limited": "memory limited to a third of the data, caches dropped",
    "limited-tenth": "memory limited to a tenth of the data, caches dropped",
    "small": "small job, 10 MB",
    "nodes": "Ray nodes on this machine",
}


def render(machine: dict[str, str], runs: Sequence[Run], skips: Sequence[Skip]) -> str:
    """Header, one table for each suite and profile, and the list of skipped measurements."""
    parts = [_header(machine)]
    rows = summarise(runs)
    for suite, title in TITLES.items():
        for profile in dict.fromkeys(row.profile for row in rows if row.suite == suite):
            chosen = [row for row in rows if (row.suite, row.profile) == (suite, profile)]
            group = [run for run in runs if (run.suite, run.profile) == (suite, profile)]
            size = group[0].input_bytes / 1e9
            parts.append(f"{title}: {profile} records, {size:.2f} GB\n" + _rates(chosen))
            parts.extend(_phases(group))
            if suite.startswith("limited"):
                parts.append(_limited(group))
    parts.extend(_flatness(runs))
    parts.extend(_store(runs))
    parts.extend(_costs(runs))
    parts.append(_notes(runs, skips))
    return "\n\n".join(part for part in parts if part) + "\n"


def _header(machine: dict[str, str]) -> str:
    width = max(map(len, machine))
    lines = []
    for name, value in machine.items():
        first, *more = textwrap.wrap(value, WIDTH - width - 2) or [""]
        lines.append(f"{name:{width}}  {first}")
        lines += [" " * (width + 2) + line for line in more]
    return "\n".join(lines)


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    return "\n".join(
        "  ".join(
            f"{cell:{'<' if place == 0 else '>'}{width}}"
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in [head, *body]
    )


def _rates(rows: Sequence[Row]) -> str:
    head = (
        *("contender", "n", "MB/s", "min", "max", "x cp", "work s", "sync s", "whole s"),
        *("CPU/GiB", "read x", "wrote", "peak MB"),
    )
    body = []
    for row in rows:
        ratio = "-" if row.cp_ratio is None else f"{row.cp_ratio:.2f}"
        rates = (row.megabytes_per_second, row.megabytes_per_second_min)
        seconds = (row.work_seconds, row.sync_seconds, row.whole_seconds)
        cells = [f"{rate:.0f}" for rate in (*rates, row.megabytes_per_second_max)]
        if row.rounds == 0:
            body.append([row.contender, "failed", *["-"] * (len(head) - 2)])
            continue
        moved = (row.read_ratio, row.written_ratio)
        body.append(
            [
                *(row.contender, str(row.rounds), *cells, ratio),
                *(f"{each:.2f}" for each in (*seconds, row.cpu_per_gib)),
                *("-" if each is None else f"{each:.2f}" for each in moved),
                f"{row.peak_bytes / 1e6:.0f}" if row.peak_bytes else "-",
            ]
        )
    return _table(head, body)


def _phases(runs: Sequence[Run]) -> list[str]:
    """The median seconds of each phase of dsort."""
    by_name: dict[str, list[dict[str, float]]] = {}
    for run in runs:
        if "phase_seconds" in run.details:
            by_name.setdefault(run.contender, []).append(run.details["phase_seconds"])
    if not by_name:
        return []
    body = [
        [name, *(f"{median(each.get(phase, 0.0) for each in found):.3f}" for phase in PHASES)]
        for name, found in by_name.items()
    ]
    return [_table(["seconds of each phase", *PHASES], body)]


def _limited(runs: Sequence[Run]) -> str:
    by_name: dict[str, list[Run]] = {}
    for run in runs:
        by_name.setdefault(run.contender, []).append(run)
    body = [
        [
            name,
            str(found[0].details.get("move", "-")),
            *(
                f"{max(run.details[kind] for run in found) / 1e6:.0f}"
                for kind in ("limit_bytes", "group_peak_bytes", "own_peak_bytes")
            ),
            str(sum(run.details["kill_count"] for run in found)),
        ]
        for name, found in by_name.items()
    ]
    head = ("memory, MB", "move", "limit", "peak with cache", "peak without", "killed")
    return _table(head, body)


def _flatness(runs: Sequence[Run]) -> list[str]:
    body = []
    for run in runs:
        if run.suite != "flatness" or run.failure:
            continue
        worker, coordinator = run.details["worker"], run.details["coordinator"]
        kinds = ("rss_bytes", "pss_bytes", "own_bytes")
        body.append(
            [
                f"{run.contender}, {run.profile}, {run.input_bytes / 1e9:.1f} GB",
                *(f"{worker[kind] / 1e6:.0f}" for kind in kinds),
                f"{coordinator['own_bytes'] / 1e6:.0f}",
            ]
        )
    head = ("peak memory, MB", "worker RSS", "PSS", "own", "coordinator own")
    return [_table(head, body)] if body else []


def _store(runs: Sequence[Run]) -> list[str]:
    """Runs between buckets: rates, CPU of client and server, memory."""
    good = [run for run in runs if run.suite.startswith("s3") and not run.failure]
    groups: dict[tuple[str, str, int], list[Run]] = {}
    for run in good:
        groups.setdefault((run.suite, run.contender, run.input_bytes), []).append(run)
    if not groups:
        return []
    body = []
    for (suite, name, input_bytes), found in groups.items():
        ratio = ratio_of(runs, "s3", found[0].profile, name, "floor") if suite == "s3" else None
        gib = input_bytes / GIB
        figures = (
            median(run.cpu_seconds / gib for run in found),
            median(run.details["server_cpu_seconds"] / gib for run in found),
        )
        peaks = (
            max(run.details["worker"]["own_bytes"] for run in found),
            max(run.details["own_bytes_sum"] for run in found),
        )
        body.append(
            [
                f"{suite}: {name}, {input_bytes / 1e9:.1f} GB",
                str(len(found)),
                f"{median(run.megabytes_per_second for run in found):.0f}",
                "-" if ratio is None else f"{ratio:.2f}",
                *(f"{figure:.2f}" for figure in figures),
                *(f"{peak / 1e6:.0f}" for peak in peaks),
            ]
        )
    head = ("bucket to bucket", "rounds", "MB/s", "x floor", "CPU s/GiB", "server")
    return [
        _table((*head, "worker MB", "all MB"), body),
        *_phases([run for run in good if run.suite == "s3"]),
    ]


def _costs(runs: Sequence[Run]) -> list[str]:
    """Shuffles in each container: seconds, CPU, memory and disk of each row."""
    parts = []
    rows = [row for row in summarise(runs) if row.suite in COST_SUITES]
    for suite, profile in dict.fromkeys((row.suite, row.profile) for row in rows):
        body = [
            [row.contender, str(row.rounds), *_cost_cells(row, runs)]
            for row in rows
            if (row.suite, row.profile) == (suite, profile)
        ]
        title = suite if profile == "start" else f"{suite}: {profile}"
        parts.append(_table((title, *COST_HEAD), body))
    return parts


def _cost_cells(row: Row, runs: Sequence[Run]) -> list[str]:
    if row.rounds == 0:
        return ["failed", *["-"] * (len(COST_HEAD) - 2)]
    group = [
        run
        for run in runs
        if (run.suite, run.profile, run.contender) == (row.suite, row.profile, row.contender)
        and not run.failure
    ]
    cpu = cpu_per_gib(runs, row.contender, suite=row.suite, profile=row.profile) or 0.0
    peak_bytes = max(run.details.get("peak_bytes", 0) for run in group)
    moved = [
        (run.details["read_bytes"] + run.details["written_bytes"]) / run.input_bytes
        for run in group
        if "read_bytes" in run.details
    ]
    return [
        f"{row.whole_seconds:.2f}",
        f"{row.work_seconds:.2f}",
        f"{row.sync_seconds:.2f}",
        f"{row.megabytes_per_second:.0f}",
        f"{cpu:.2f}",
        f"{peak_bytes / 1e6:.0f}",
        f"{median(moved):.2f}" if moved else "-",
    ]


def _notes(runs: Sequence[Run], skips: Sequence[Skip]) -> str:
    lines = [f"not measured: {skip.suite} {skip.what}: {skip.reason}" for skip in skips]
    lines += [
        f"failed: {run.suite} {run.profile} {run.contender}: {run.failure}"
        for run in runs
        if run.failure
    ]
    shares = [run.other_cpu_seconds / run.whole_seconds for run in runs if run.whole_seconds]
    if shares:
        lines.append(
            "others on this machine, the kernel's writing back included, used "
            f"{median(shares):.2f} cores in the middle run and {max(shares):.2f} in the worst"
        )
    return "\n".join(line for text in lines for line in textwrap.wrap(text, WIDTH))
