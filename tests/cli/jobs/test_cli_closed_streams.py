"""Commands whose standard streams were closed before they began end as they would without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import ROOT
from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.engine import spec_of

CLOSED = [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"]
SPEC = json.dumps(spec_of())


def run(root: Path, closed: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", f'exec "$0" -m dsort "$@" {closed}', sys.executable, *args],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("closed", CLOSED)
def test_a_job_runs_and_nothing_gets_into_its_files(closed: str, tmp_path: Path) -> None:
    write_shards(tmp_path / "in", small_dataset("closed"))
    ended = run(tmp_path, closed, "start", "-f", SPEC, "--workers", "1")
    assert ended.returncode == 0, ended.stderr
    assert (ended.stdout == "") == (closed != "2>&-")
    found = files_of(tmp_path / "out")
    assert len(found) == 8
    assert all(len(data) % 512 == 0 for data in found.values())
    assert run(tmp_path, closed, "verify", "out").returncode == 0


@pytest.mark.sample(keep=4)
@pytest.mark.parametrize("closed", CLOSED)
@pytest.mark.parametrize(
    ("args", "code"),
    [(["--version"], 0), (["ls", "nowhere"], 4), (["start", "-f", "{}", "--json"], 2), (["x"], 2)],
)
def test_an_error_is_that_error(args: list[str], code: int, closed: str, tmp_path: Path) -> None:
    assert run(tmp_path, closed, *args).returncode == code


@pytest.mark.exhaustive
def test_no_room_for_messages_is_no_reason_to_fail(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", small_dataset("full"))
    for number, progress in enumerate(("plain", "json", "none")):
        spec = json.dumps(spec_of(output_bck=f"out-{number}"))
        args = ("start", "-f", spec, "--workers", "1", "--progress", progress)
        ended = run(tmp_path, "2>/dev/full", *args)
        assert ended.returncode == 0, ended.stdout
        assert len(files_of(tmp_path / f"out-{number}")) == 8
    assert run(tmp_path, "2>/dev/full", "verify", "nowhere").returncode != 1
