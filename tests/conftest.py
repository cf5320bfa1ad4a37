"""What all tests share: seeds that are printed and can be given again, and the command line."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest

from dsort.cli.main import main
from tests.support.commands import ROOT, CommandLine, Ended

SEED_VARIABLE = "DSORT_TEST_SEED"
SEED = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(2**32))

hypothesis.settings.register_profile("dsort", derandomize=False, print_blob=True, deadline=None)
hypothesis.settings.load_profile("dsort")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """One seed for everything random, hypothesis included."""
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(SEED)


def pytest_report_header(config: pytest.Config) -> str:
    return (
        f"seeds: {SEED_VARIABLE}={SEED}, --hypothesis-seed={config.option.hypothesis_seed} "
        "(give them again to repeat this run)"
    )


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Random numbers of a test's own, from the seed in the header of the run."""
    return random.Random(f"{SEED}/{request.node.nodeid}")


@pytest.fixture
def cli(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """Run a command line in this process, in the test's own directory. An exception that is no
    error of dsort comes out of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DSORT_ROOT", raising=False)

    def run(*args: str | Path) -> Ended:
        capfd.readouterr()
        code = main([str(arg) for arg in args])
        out, err = capfd.readouterr()
        return Ended(code, out, err)

    return run


@pytest.fixture
def command(tmp_path: Path) -> CommandLine:
    """Run a command line in a process of its own, in the test's own directory."""

    def run(*args: str | Path, env: dict[str, str] | None = None, stdin: str = "") -> Ended:
        surroundings = {k: v for k, v in os.environ.items() if not k.startswith("DSORT_")}
        done = subprocess.run(
            [sys.executable, "-m", "dsort", *map(str, args)],
            cwd=tmp_path,
            env=surroundings | {"PYTHONPATH": str(ROOT), "COLUMNS": "80"} | (env or {}),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    return run
