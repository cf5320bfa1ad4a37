"""Suites that measure by themselves: a module in a process of its own prints one JSON object, which
becomes the details of a run. If it compares programs, they take turns there."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

from benchmarks.contenders import read_report
from benchmarks.measure import REPOSITORY, Bench
from benchmarks.process import run_tree
from benchmarks.results import Run, Skip
from benchmarks.settings import Measured, Settings

__all__ = [
    "loader",
    "planning",
    "service",
]


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


def loader(bench: Bench, settings: Settings) -> Measured:
    """``dsort.loader`` beside webdataset, and its time to resume."""
    megabytes = 16 if settings.is_quick else 128
    directory = settings.directory / f"loader-{megabytes}"
    command = ["benchmarks.loader", "--directory", str(directory), "--megabytes", str(megabytes)]
    if settings.is_quick:
        command += ["--rounds", "1"]
    modules = ("PIL", "webdataset")
    return _after_main(settings, "loader", f"{megabytes} MB", command, modules=modules)


def _after_main(
    settings: Settings,
    suite: str,
    profile: str,
    command: Sequence[str],
    *,
    modules: Sequence[str] = (),
) -> Measured:
    """The run of a module, unless one of ``modules`` is missing, or ``--quick`` leaves it out."""
    if settings.is_quick and not settings.only:
        return Measured([], [Skip(suite, "all", "left out of --quick")])
    if lost := [module for module in modules if find_spec(module) is None]:
        return Measured([], [Skip(suite, "all", f"not installed: {', '.join(lost)}")])
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
        # Results are published, so the path of the data on this machine is left out.
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
