"""Runs the suites and prints the result: figures of dsort beside those of other programs."""

from __future__ import annotations

import argparse
import compileall
import json
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.contenders import CONTENDERS
from benchmarks.data import PROFILES, NoRoomError
from benchmarks.measure import REPOSITORY, Bench
from benchmarks.results import Run, Skip, to_json
from benchmarks.settings import Measured, Settings
from benchmarks.suites import MAIN_SUITES, QUICK_SUITES, SUITES
from benchmarks.tables import render

__all__ = ["main", "settings_of", "size_bytes"]

SIZE_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
FULL = {"total": 1_100_000_000, "shards": 16, "rounds": 3, "slow_rounds": 2, "timeout": 900.0}
QUICK = {"total": 300_000_000, "shards": 6, "rounds": 3, "slow_rounds": 1, "timeout": 120.0}
FULL_MINUTES, QUICK_MINUTES = 40.0, 2.5
"""The minutes after which no second round begins. First rounds, and suites that measure by
themselves, may take longer."""
SUITE_ERRORS = (OSError, RuntimeError, ValueError, KeyError)
"""The errors that end a suite, such as that of a server that does not start."""


def size_bytes(text: str) -> int:
    """Bytes of ``1.1GB`` or ``300MB``, in powers of ten, or of a plain number."""
    number, factor = text.upper(), 1
    for unit, unit_bytes in SIZE_UNITS.items():
        if number.endswith(unit):
            number, factor = number.removesuffix(unit), unit_bytes
    try:
        return int(float(number) * factor)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is no size; write 300MB or 1.1GB") from None


def _names_of(known: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    """An argument type: names out of ``known``, with commas between them."""
    names = tuple(known)

    def parse(text: str) -> tuple[str, ...]:
        wanted = tuple(text.split(","))
        if wrong := [name for name in wanted if name not in names]:
            raise argparse.ArgumentTypeError(f"{', '.join(wrong)}: not among {', '.join(names)}")
        return wanted

    return parse


def _rows(text: str) -> tuple[str, ...]:
    """An argument type: rows of known suites."""
    rows = tuple(text.split(","))
    for row in rows:
        suite = row.partition("/")[0]
        if not any(fnmatchcase(name, suite) for name in SUITES):
            raise argparse.ArgumentTypeError(f"{suite}: not among {', '.join(SUITES)}")
    return rows


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="less data, fewer rounds")
    add("--data", type=Path, default=REPOSITORY / "bench-data", help="where data is made and kept")
    add("--json", type=Path, metavar="FILE", help="write every run and the medians there")
    add("--results", type=Path, metavar="DIR", help="the same, in a file for each suite")
    add(
        "--only",
        type=_rows,
        default=(),
        metavar="ROWS",
        help="as in tables,containers/3k,warm/*/cp: suite, suite/profile, suite/profile/contender",
    )
    add("--require-quiet", action="store_true", help="measure nothing on a busy machine")
    add("--suites", type=_names_of(SUITES), default=(), help=", ".join(SUITES))
    add("--all", action="store_true", help="all suites, not only those that pages quote")
    add("--minutes", type=float, help="begin no second round after this many minutes")
    add("--profiles", type=_names_of(PROFILES), default=tuple(PROFILES), help=", ".join(PROFILES))
    add("--contenders", type=_names_of(CONTENDERS), default=(), help=", ".join(CONTENDERS))
    add("--rounds", type=int, help="rounds of every contender")
    add("--workers", type=int, default=machine.core_count(), help="of dsort; processes of cp")
    add("--total", type=size_bytes, help="bytes of each profile, such as 1.1GB")
    add("--shards", type=int, help="input shards of each profile")
    return parser.parse_args(arguments)


def settings_of(
    arguments: list[str] | None,
) -> tuple[Settings, tuple[str, ...], argparse.Namespace]:
    """Settings and suites of a command line, and the line itself."""
    parsed = _arguments(arguments)
    default = QUICK if parsed.quick else FULL
    total_bytes = parsed.total or int(default["total"])
    usual_minutes = QUICK_MINUTES if parsed.quick else FULL_MINUTES
    settings = Settings(
        directory=parsed.data.resolve(),
        is_quick=parsed.quick,
        total_bytes=total_bytes,
        shards=parsed.shards or int(default["shards"]),
        # With less data, a third of it could not hold an interpreter for each worker.
        limited_total_bytes=parsed.total or int(FULL["total"]),
        rounds=parsed.rounds or int(default["rounds"]),
        slow_rounds=min(parsed.rounds or sys.maxsize, int(default["slow_rounds"])),
        workers=parsed.workers,
        planning_rows=10_000_000,
        timeout_seconds=default["timeout"],
        profiles=parsed.profiles,
        contenders=parsed.contenders,
        # A suite that the user names is not left out of --quick.
        only=parsed.only or (() if parsed.all else parsed.suites),
        until_s=time.monotonic() + 60 * (parsed.minutes or usual_minutes),
    )
    usual = QUICK_SUITES if parsed.quick else MAIN_SUITES
    asked = tuple(SUITES) if parsed.all or parsed.only else parsed.suites or usual
    suites = tuple(suite for suite in asked if settings.wants(suite))
    return settings, suites, parsed


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 if all runs succeeded; 1 if a run failed, 2 if the disk had no room for a suite,
    3 if the machine was not quiet (``--require-quiet``), 130 or 143 if the benchmark was stopped. A
    failed run with ``may_fail`` counts as a result."""
    # Like Ctrl-C, SIGTERM ends the running command and removes its outputs and its cgroup.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    settings, suites, parsed = settings_of(arguments)
    busy_cores = machine.busy_cores()
    if busy_cores > machine.QUIET_CORES_MAX:
        words = f"other programs keep {busy_cores:.2f} cores busy: use processor seconds only"
        print(words, file=sys.stderr)
        if parsed.require_quiet:
            return 3
    settings.directory.mkdir(parents=True, exist_ok=True)
    # As pip does. Under PYTHONDONTWRITEBYTECODE, each run would compile the modules again.
    compileall.compile_dir(REPOSITORY / "dsort", quiet=2)
    header = machine.describe(settings.directory) | {"busy cores before": f"{busy_cores:.2f}"}
    header["date"] = time.strftime("%Y-%m-%d")
    cp = tuple(machine.cp_command(settings.directory))
    bench = Bench(settings.workers, settings.timeout_seconds, cp)
    # The directory is left out: the place of data on this machine is no setting of a measurement.
    kept = asdict(settings)
    for name in ("directory", "until_s"):
        del kept[name]
    runs: list[Run] = []
    skips: list[Skip] = []
    lacks_room = False
    try:
        for suite in suites:
            try:
                measured = SUITES[suite](bench, settings)
            except NoRoomError as error:
                print(error, file=sys.stderr)
                lacks_room = True
                reason = str(error).replace(str(settings.directory), "DATA")
                measured = Measured([], [Skip(suite, "all", reason)])
            except SUITE_ERRORS as error:  # the other suites are still measured
                traceback.print_exc()
                reason = f"failed: {type(error).__name__}"
                measured = Measured([Run(suite, "all", "dsort", 0, 0, failure=reason)], [])
            runs += measured.runs
            skips += measured.skips
            if parsed.results is not None:  # now: later suites may take an hour
                result = to_json(header, kept, measured.runs, measured.skips)
                _write(parsed.results / f"{suite}.json", result)
    except KeyboardInterrupt:
        return 130
    print(render(header, runs, skips))
    if parsed.json is not None:
        _write(parsed.json, to_json(header, kept, runs, skips))
    if lacks_room:
        return 2
    return 1 if any(run.failure and not run.may_fail for run in runs) else 0


def _write(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
