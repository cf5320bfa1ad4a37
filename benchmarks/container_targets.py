"""The targets of shuffles in each container. Pure: runs in, targets out."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from benchmarks.results import Run, Target, cpu_per_gib, good_runs, ratio_of

__all__ = ["container_targets"]

RATIO_MIN = 0.8
PARTS_MAX = 1.1
TABLE_CPU_MAX = 2.0
SHORT_LINES_CPU_MAX = 10.0
PARTS = ("decode", "encode", "move")
SAME = {"100k": ("zip", "tfrecord", "mds"), "3k": ("zip", "jsonl", "tfrecord", "mds")}
TABLES = ("100k", "3k-files", "3k")
TABLES_LIMITED = ("100k", "3k")
CONVERTED = ("zip", "tfrecord", "mds")
RIVALS_OF_LINES = {"terashuf": 10.0, "duckdb": 3.0, "polars": 3.0}
WEBDATASET_RATIO_MIN = 5.0
POLARS_RATIO_MIN = 1.5


def container_targets(runs: Sequence[Run]) -> list[Target]:
    """Every target beside what ``runs`` reached."""
    return [
        *_containers(runs),
        *_codecs(runs),
        *_tables(runs),
        *_limited(runs),
        _short_lines(runs),
    ]


def _containers(runs: Sequence[Run]) -> list[Target]:
    found = []
    for profile, names in SAME.items():
        for name in names:
            text = f"{profile}: {name} / tar"
            found.append(_ratio(runs, "containers", profile, text, name, "tar", RATIO_MIN))
        for name in CONVERTED:
            text = f"{profile}: tar to {name} / {name}"
            row = f"tar-{name}"
            found.append(_ratio(runs, "containers", profile, text, row, name, RATIO_MIN))
    for name, wanted in RIVALS_OF_LINES.items():
        text = f"3k: jsonl / {name}"
        found.append(_ratio(runs, "containers", "3k", text, "jsonl", name, wanted))
    return found


def _codecs(runs: Sequence[Run]) -> list[Target]:
    found = []
    for profile in ("tgz", "tar.zst"):
        reached = _parts_ratio(runs, profile)
        text = f"{profile}: CPU, shuffle / its parts"
        row = f"codecs/{profile}/dsort"
        found.append(Target(text, "x", PARTS_MAX, False, reached, row=row))
    text = "tgz: dsort / webdataset"
    return [
        *found,
        _ratio(runs, "codecs", "tgz", text, "dsort", "webdataset", WEBDATASET_RATIO_MIN),
    ]


def _parts_ratio(runs: Sequence[Run], profile: str) -> float | None:
    """CPU of the shuffle over that of its parts. A shuffle of plain tars starts as the shuffle
    does; the other parts are counted without the start of their interpreter."""
    ours = [run.cpu_seconds for run in good_runs(runs, "codecs", "dsort") if run.profile == profile]
    parts = []
    for name in PARTS:
        found = [
            float(run.details.get("work_cpu_seconds", run.cpu_seconds))
            for run in good_runs(runs, "codecs", name)
            if run.profile == profile
        ]
        if not found:
            return None
        parts.append(median(found))
    return median(ours) / sum(parts) if ours else None


def _tables(runs: Sequence[Run]) -> list[Target]:
    found = []
    for profile in TABLES:
        cpu = cpu_per_gib(runs, "dsort", suite="tables", profile=profile)
        less = cpu_per_gib(runs, "dsort", suite="tables", profile=profile, less_start=True)
        note = "" if less is None else f"{less:.2f} without its start"
        row = f"tables/{profile}/dsort"
        text = f"Parquet {profile}: CPU a GiB"
        found.append(Target(text, "s", TABLE_CPU_MAX, False, cpu, note, row))
        text = f"Parquet {profile}: dsort / polars"
        found.append(_ratio(runs, "tables", profile, text, "dsort", "polars", POLARS_RATIO_MIN))
    return found


def _limited(runs: Sequence[Run]) -> list[Target]:
    """Own memory over the limit. A run that failed has reached nothing."""
    found = []
    for profile in TABLES_LIMITED:
        suite = "tables-limited"
        ours = [run for run in good_runs(runs, suite, "dsort") if run.profile == profile]
        peaks = [run.details["peak_bytes"] / run.details["limit_bytes"] for run in ours]
        rivals = [
            f"{run.contender} {'fails' if run.failure else 'ends too'}"
            for run in runs
            if (run.suite, run.profile) == (suite, profile) and run.may_fail
        ]
        text = f"Parquet {profile}: peak / a fifth of the data"
        reached = max(peaks, default=None)
        row = f"{suite}/{profile}/dsort"
        found.append(Target(text, "x", 1.0, False, reached, ", ".join(rivals), row))
    return found


def _short_lines(runs: Sequence[Run]) -> Target:
    """Out of core. The note says what mapped lines take, if they were measured."""
    found = [run.details for run in good_runs(runs, "short-lines", "dsort")]
    spilled = [each["spill"]["cpu_s_a_gb"] for each in found if "spill" in each]
    mapped = [each["map"]["cpu_s_a_gb"] for each in found if "map" in each]
    note = f"map {median(mapped):.1f}" if mapped else ""
    reached = median(spilled) if spilled else None
    return Target("short lines, spilled: CPU a GB", "s", SHORT_LINES_CPU_MAX, False, reached, note)


def _ratio(
    runs: Sequence[Run],
    suite: str,
    profile: str,
    text: str,
    contender: str,
    base: str,
    wanted: float,
) -> Target:
    """A ratio of rates. The note has that of processor seconds, each without its start if that is
    known: it holds on a busy machine, too."""
    reached = ratio_of(runs, suite, profile, contender, base)
    note = ""
    if reached is not None:
        ours, theirs = (
            cpu_per_gib(
                runs,
                name,
                suite=suite,
                profile=profile,
                less_start=suite == "containers" and name not in (*RIVALS_OF_LINES, "python"),
                starter="dsort",
            )
            for name in (contender, base)
        )
        note = f"CPU {theirs / ours:.2f}" if ours and theirs and ours > 0 and theirs > 0 else ""
    row = f"{suite}/{profile}/{contender}"
    return Target(text, "x", wanted, True, reached, note, row)
