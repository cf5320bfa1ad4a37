"""Which suites are measured, how many rounds, and what those are asked that measure alone."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks import alone_suites
from benchmarks.__main__ import settings_of
from benchmarks.data import NoRoomError
from benchmarks.measure import REPOSITORY, Bench
from benchmarks.process import Finished
from benchmarks.results import Skip
from benchmarks.settings import Measured, Settings
from benchmarks.store_suites import turns
from benchmarks.suites import MAIN_SUITES, QUICK_SUITES, SUITES

ALONE = ("loader",)
BENCH = Bench(workers=2, timeout_seconds=60, cp=("cp",))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """The commands of suites that measure alone; each prints a figure, and none is run."""
    commands: list[Sequence[str]] = []

    def run_tree(command: Sequence[str], **_: Any) -> Finished:
        commands.append(command)
        return Finished(0, 1.0, 1.5, 0.0, 'a line\n{"figure": 7}\n', "", False)

    monkeypatch.setattr(alone_suites, "run_tree", run_tree)
    return commands


def test_what_pages_quote_is_measured_where_nobody_says_what(tmp_path: Path) -> None:
    _, suites, _ = settings_of(["--data", str(tmp_path)])
    assert suites == MAIN_SUITES
    assert {*ALONE, "planning", "s3-flat", "nodes", "codecs", "ingest"} < {*suites}
    _, everything, _ = settings_of(["--all"])
    assert {*everything} == {*SUITES} > {*suites}
    _, quick, _ = settings_of(["--quick"])
    assert quick == QUICK_SUITES


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", ALONE)
def test_a_module_measures_alone_and_its_json_is_kept(
    name: str, quick: bool, tmp_path: Path, asked: list[Sequence[str]]
) -> None:
    line = ["--data", str(tmp_path), "--suites", name, *(["--quick"] if quick else [])]
    settings, suites, _ = settings_of(line)
    assert suites == (name,)
    measured = SUITES[name](BENCH, settings)
    if measured.skips:
        assert measured.skips[0].reason.startswith("not installed")
        return
    (run,) = measured.runs
    assert (run.suite, run.failure, run.details) == (name, "", {"figure": 7})
    ((_, _, module, *options),) = asked
    assert find_spec(module) is not None
    source = (REPOSITORY / f"{module.replace('.', '/')}.py").read_text()
    for option in options:
        assert not option.startswith("--") or f'"{option}"' in source
    assert json.loads(json.dumps(run.details)) == run.details


@pytest.mark.parametrize("name", ALONE)
def test_quick_leaves_out_what_measures_long(
    name: str, tmp_path: Path, asked: list[Sequence[str]]
) -> None:
    settings, _, _ = settings_of(["--data", str(tmp_path), "--quick"])
    assert SUITES[name](BENCH, settings) == Measured([], [Skip(name, "all", "left out of --quick")])
    assert asked == []


def test_a_module_that_fails_is_a_failed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, _, _ = settings_of(["--data", str(tmp_path), "--suites", "loader"])

    def run_tree(command: Sequence[str], **_: Any) -> Finished:
        return Finished(1, 1.0, 1.0, 0.0, "", f"Traceback\nOSError: {tmp_path}/x", False)

    monkeypatch.setattr(alone_suites, "run_tree", run_tree)
    (run,) = SUITES["loader"](BENCH, settings).runs
    assert run.failure == "OSError: DATA/x"


def rounds_of(most: int, least: int, until_s: float) -> int:
    return len({number for number, _ in turns(most, least, until_s)})


@pytest.mark.parametrize(
    ("until_s", "rounds"), [(lambda: math.inf, 5), (lambda: time.monotonic() - 1, 3)]
)
def test_between_buckets_there_are_three_rounds_and_five_where_there_is_time(
    until_s: Callable[[], float], rounds: int
) -> None:
    assert rounds_of(5, 3, until_s()) == rounds


def test_toy_data_stays_toy_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import store_suites

    wanted: list[int] = []

    def full(directory: Path, wanted_bytes: int) -> None:
        wanted.append(wanted_bytes)
        raise NoRoomError

    monkeypatch.setattr(store_suites, "missing", lambda: "")
    monkeypatch.setattr(store_suites, "require_room", full)

    def ask(*more: str) -> None:
        settings: Settings = settings_of(["--data", str(tmp_path), *more])[0]
        with pytest.raises(NoRoomError):
            store_suites.s3_flat(BENCH, settings)

    ask()
    ask("--total", "10MB")
    assert wanted[0] > 8 << 30
    assert wanted[1] < 40_000_000
