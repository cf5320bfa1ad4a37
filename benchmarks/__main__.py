"""Runs the suites and prints the result: figures of dsort beside those of others."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from benchmarks import machine
from benchmarks.contenders import CONTENDERS
from benchmarks.data import PROFILES, NoRoomError
from benchmarks.measure import REPOSITORY, Bench
from benchmarks.results import Run, Skip, to_json
from benchmarks.settings import Settings
from benchmarks.suites import SUITES
from benchmarks.tables import render

__all__ = ["main", "settings_of", "size_bytes"]

SIZE_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
FULL = {"total": 1_100_000_000, "shards": 16, "rounds": 5, "slow_rounds": 3, "timeout": 900.0}
QUICK = {"total": 300_000_000, "shards": 6, "rounds": 3, "slow_rounds": 1, "timeout": 120.0}


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


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="less data, fewer rounds; under three minutes")
    add("--full", action="store_true", help="more data where memory has to stay flat: 9 GB more")
    add("--data", type=Path, default=REPOSITORY / "bench-data", help="where data is made and kept")
    add("--json", type=Path, metavar="FILE", help="write every run, medians and targets there")
    add("--suites", type=_names_of(SUITES), default=tuple(SUITES), help=", ".join(SUITES))
    add("--profiles", type=_names_of(PROFILES), default=tuple(PROFILES), help=", ".join(PROFILES))
    add("--contenders", type=_names_of(CONTENDERS), default=(), help=", ".join(CONTENDERS))
    add("--rounds", type=int, help="rounds of every contender")
    add("--workers", type=int, default=machine.core_count(), help="of dsort, and cp processes")
    add("--total", type=size_bytes, help="bytes of each profile, such as 1.1GB")
    add("--shards", type=int, help="input shards of each profile")
    return parser.parse_args(arguments)


def settings_of(arguments: list[str] | None) -> tuple[Settings, tuple[str, ...], Path | None]:
    """Settings, suites and JSON file of a command line."""
    parsed = _arguments(arguments)
    default = QUICK if parsed.quick else FULL
    total_bytes = parsed.total or int(default["total"])
    settings = Settings(
        directory=parsed.data.resolve(),
        is_quick=parsed.quick,
        total_bytes=total_bytes,
        shards=parsed.shards or int(default["shards"]),
        # A third of less than this does not hold an interpreter for each worker.
        limited_total_bytes=parsed.total or int(FULL["total"]),
        rounds=parsed.rounds or int(default["rounds"]),
        slow_rounds=parsed.rounds or int(default["slow_rounds"]),
        workers=parsed.workers,
        planning_rows=10_000_000,
        timeout_seconds=default["timeout"],
        profiles=parsed.profiles,
        contenders=parsed.contenders,
        is_full=parsed.full,
    )
    return settings, parsed.suites, parsed.json


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 when everything ran, whether or not targets were reached; 1 when a run failed,
    2 when the disk has no room, 130 or 143 when it was stopped."""
    # As Ctrl-C: what runs is ended, and its outputs and its cgroup are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    settings, suites, json_file = settings_of(arguments)
    settings.directory.mkdir(parents=True, exist_ok=True)
    header = machine.describe(settings.directory)
    cp = tuple(machine.cp_command(settings.directory))
    bench = Bench(settings.workers, settings.timeout_seconds, cp)
    runs: list[Run] = []
    skips: list[Skip] = []
    try:
        for suite in suites:
            measured = SUITES[suite](bench, settings)
            runs += measured.runs
            skips += measured.skips
    except NoRoomError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(render(header, runs, skips))
    if json_file is not None:
        # The directory is left out: it says where this machine keeps things, not what it does.
        kept = {name: value for name, value in asdict(settings).items() if name != "directory"}
        json_file.write_text(json.dumps(to_json(header, kept, runs, skips), indent=1) + "\n")
    return 1 if any(run.failure for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
