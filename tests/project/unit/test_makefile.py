"""Which Python `make` and `.ci/run` work with: the newest that is there."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import ROOT

MADE_OF = ("Makefile", "pyproject.toml", "requirements.lock", "requirements-dev.lock")
PYTHON = """#!/bin/sh
case "$1" in
  -c) exit {found} ;;
  *) exit 1 ;;
esac
"""
"""A Python that makes no virtual environment: `make` names it and ends."""


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        ({"python3.13": 0, "python3.12": 0, "python3.11": 0, "python3": 0}, "python3.13"),
        ({"python3.13": 127, "python3.12": 0, "python3.11": 0, "python3": 0}, "python3.12"),
        ({"python3.13": 127, "python3.12": 127, "python3.11": 0, "python3": 0}, "python3.11"),
        ({"python3.13": 127, "python3.12": 127, "python3.11": 127, "python3": 0}, "python3"),
    ],
)
@pytest.mark.parametrize("command", [["make", "test"], [".ci/run"]], ids=" ".join)
def test_the_newest_python_that_runs_is_the_one(
    command: list[str], found: dict[str, int], chosen: str, tmp_path: Path
) -> None:
    for name in MADE_OF:
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    commands = tmp_path / "commands"
    commands.mkdir()
    for name, code in found.items():
        (commands / name).write_text(PYTHON.format(found=code))
        (commands / name).chmod(0o755)
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    # What `make PYTHON=... test` has set is for that run alone.
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MAKE") and name not in ("MFLAGS", "PYTHON")
    }
    ended = subprocess.run(
        command, cwd=tmp_path, env={**env, "PATH": path}, capture_output=True, text=True
    )
    assert ended.returncode != 0
    assert f"{chosen} -m venv" in ended.stdout
    assert not (tmp_path / ".venv").exists()
