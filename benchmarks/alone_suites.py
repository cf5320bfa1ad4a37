"""Suites that measure by themselves: a module in a process of its own prints one JSON object, which
becomes the details of a run. What it compares takes turns in there."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec

from benchmarks.contenders import read_report
from benchmarks.data import require_room
from benchmarks.measure import REPOSITORY, Bench
from benchmarks.process import run_tree
from benchmarks.results import Run, Skip
from benchmarks.settings import Measured, Settings

__all__ = [
    "exchange",
    "filters",
    "loader",
    "node_death",
    "planning",
    "service",
    "short_lines",
    "small_shards",
    "user_code",
]

SHORT_LINES_SECONDS_MAX = 3600.0
SMALL_SHARDS, OUTPUTS = 1_000, 100_000
QUICK_SMALL_SHARDS, QUICK_OUTPUTS = 50, 1_000
SMALL_SHARD_BYTES, OUTPUT_BYTES = 1_000_000, 100_000
COPIES = 2.2
"""What is read, what is written, and a little."""
ROOM_BYTES, QUICK_ROOM_BYTES = 3_000_000_000, 300_000_000
"""For records of a few KB, and for what becomes of them."""


def planning(bench: Bench, settings: Settings) -> Measured:
    """Planning alone, in a process of its own, on synthetic index rows."""
    rows = settings.planning_rows
    command = ["benchmarks.planning", "--rows", str(rows)]
    return Measured([_alone(settings, "planning", f"{rows / 1e6:g} M rows", command)], [])


def service(bench: Bench, settings: Settings) -> Measured:
    """The job service under load: submissions, lists, event streams."""
    submissions = 1500 if settings.is_quick else 5000
    command = ["benchmarks.service", "--submissions", str(submissions)]
    return Measured([_alone(settings, "service", f"{submissions:,} jobs", command)], [])


def short_lines(bench: Bench, settings: Settings) -> Measured:
    """Lines of 66 bytes, mapped and spilled; with ``--full`` 10^8 of them in 2 GB of memory."""
    lines = 10**8 if settings.is_full else 5 * 10**6 if settings.is_quick else 10**7
    directory = settings.directory / f"short-lines-{lines}"
    directory.mkdir(parents=True, exist_ok=True)
    command = ["benchmarks.short_lines", "--lines", str(lines), "--data", str(directory)]
    patient = settings
    if settings.is_full:
        command += ["--limit", "2GB"]
        patient = replace(settings, timeout_seconds=SHORT_LINES_SECONDS_MAX)
    return Measured([_alone(patient, "short-lines", f"{lines:,} lines", command)], [])


def filters(bench: Bench, settings: Settings) -> Measured:
    """Filters and several outputs, beside the plain shuffle."""
    command = ["benchmarks.filters", "--directory", str(settings.directory)]
    if settings.is_quick:
        command += ["--shards", "2", "--rounds", "1"]
    return _after_main(settings, "filters", "3 KB records", command, room_bytes=_room(settings))


def user_code(bench: Bench, settings: Settings) -> Measured:
    """Steps that run code, beside webdataset, Ray Data and a bare loop over Pillow."""
    command = ["benchmarks.user_code", "--directory", str(settings.directory), "--rounds"]
    sizes = ("--shards", "2", "--records", "1000", "--images", "20")
    command += ["1", *sizes] if settings.is_quick else ["2"]
    room_bytes, modules = _room(settings), ("PIL",)
    return _after_main(
        settings, "user-code", "6 KB records", command, modules=modules, room_bytes=room_bytes
    )


def small_shards(bench: Bench, settings: Settings) -> Measured:
    """A thousand small shards beside ``cp``, and a hundred thousand outputs."""
    shards = QUICK_SMALL_SHARDS if settings.is_quick else SMALL_SHARDS
    outputs = QUICK_OUTPUTS if settings.is_quick else OUTPUTS
    directory = settings.directory / f"small-shards-{shards}-{outputs}"
    command = ["benchmarks.small_shards", "--directory", str(directory)]
    command += ["--shards", str(shards), "--outputs", str(outputs)]
    room_bytes = int(COPIES * (shards * SMALL_SHARD_BYTES + outputs * OUTPUT_BYTES))
    try:
        return _after_main(settings, "small-shards", "1 MB shards", command, room_bytes=room_bytes)
    finally:  # ten gigabytes, which no other suite reads, and which are made in no time
        shutil.rmtree(directory, ignore_errors=True)


def loader(bench: Bench, settings: Settings) -> Measured:
    """``dsort.loader`` beside webdataset, and where it goes on."""
    megabytes = 16 if settings.is_quick else 128
    directory = settings.directory / f"loader-{megabytes}"
    command = ["benchmarks.loader", "--directory", str(directory), "--megabytes", str(megabytes)]
    if settings.is_quick:
        command += ["--rounds", "1"]
    modules = ("PIL", "webdataset")
    return _after_main(settings, "loader", f"{megabytes} MB", command, modules=modules)


def exchange(bench: Bench, settings: Settings) -> Measured:
    """Spill of another node: straight, by Ray's object store, and by a bare socket."""
    command = ["benchmarks.exchange", "--data", str(settings.directory)]
    if settings.is_quick:
        command += ["--total", "0.25", "--rounds", "1"]
    if find_spec("ray") is None:
        command += ["--skip-ray"]
    room_bytes = QUICK_ROOM_BYTES
    return _after_main(settings, "exchange", "16 MiB blocks", command, room_bytes=room_bytes)


def node_death(bench: Bench, settings: Settings) -> Measured:
    """A job of which a node dies halfway, in simulated time."""
    shards = 800 if settings.is_quick else 8000
    command = ["benchmarks.node_death", "--shards", str(shards)]
    return _after_main(settings, "node-death", f"{shards:,} shards", command)


def _room(settings: Settings) -> int:
    return QUICK_ROOM_BYTES if settings.is_quick else ROOM_BYTES


def _after_main(
    settings: Settings,
    suite: str,
    profile: str,
    command: Sequence[str],
    *,
    modules: Sequence[str] = (),
    room_bytes: int = 0,
) -> Measured:
    """The run of a module, unless what it imports is missing, or ``--quick`` leaves it out.
    Raises `NoRoomError`."""
    if settings.is_quick and not settings.only:
        return Measured([], [Skip(suite, "all", "left out of --quick")])
    if lost := [module for module in modules if find_spec(module) is None]:
        return Measured([], [Skip(suite, "all", f"not installed: {', '.join(lost)}")])
    require_room(settings.directory, room_bytes)
    return Measured([_alone(settings, suite, profile, command)], [])


def _alone(settings: Settings, suite: str, profile: str, command: Sequence[str]) -> Run:
    """The run of a module that measures by itself, and prints one JSON object."""
    print(f"{suite} {profile}", file=sys.stderr, flush=True)
    finished = run_tree(
        [sys.executable, "-m", *command],
        cwd=REPOSITORY,
        timeout_seconds=settings.timeout_seconds,
    )
    if finished.timed_out:
        failure = f"did not end in {finished.wall_seconds:.0f} s"
        return Run(suite, profile, "dsort", 0, 0, failure=failure)
    if finished.exit_code != 0:
        last = " ".join(finished.stderr.strip().splitlines()[-1:])
        # Results are published: where this machine keeps its data is left out.
        last = last.replace(str(settings.directory), "DATA")
        failure = last or f"exit code {finished.exit_code}"
        return Run(suite, profile, "dsort", 0, 0, failure=failure)
    report = read_report(finished.stdout)
    return Run(
        suite,
        profile,
        "dsort",
        0,
        0,
        float(report.get("plan_seconds", 0.0)),
        finished.wall_seconds,
        cpu_seconds=finished.cpu_seconds,
        other_cpu_seconds=finished.other_cpu_seconds,
        details=report,
    )
