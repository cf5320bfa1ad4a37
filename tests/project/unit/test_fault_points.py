"""A fault that cannot strike fails the test that armed it, or a crash test could not fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import armed
from tests.support.armed import NoSuchPointError
from tests.support.commands import ROOT
from tests.support.fault_points import (
    POINTS,
    Point,
    PointFault,
    arm,
    check_point,
    points_environment,
    struck,
)
from tests.support.faulty_bucket import ALWAYS
from tests.support.faulty_store import OPENED, StoreFaults, arm_store
from tests.support.forked_commands import run_pytest

PASS = """
from pathlib import Path
from dsort.results.lease import Machine
from dsort.storage.open import LocalBucket
LocalBucket(Path("."))
Machine().pause(0)
"""


def test_every_point_is_a_function_that_there_is() -> None:
    for point in POINTS.values():
        check_point(point)


@pytest.mark.parametrize(
    ("module", "function"),
    [
        ("dsort.job.gone", "commit"),
        ("dsort.job.commit", "gone"),
        ("dsort.job.commit", "Gone.commit"),
        ("dsort.results.lease", "Lease.gone"),
    ],
)
def test_a_point_at_nothing_cannot_be_armed(
    module: str, function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(POINTS, "commit:start", Point(module, function, "before"))
    with pytest.raises(NoSuchPointError, match=r"gone|Gone"):
        arm(tmp_path, PointFault("commit:start"))
    assert armed.missed() == []


def test_a_process_with_a_point_at_nothing_does_not_begin(tmp_path: Path) -> None:
    """Nor does one of a job that is begun without ``arm``."""
    program = (
        "from tests.support import fault_points as f\n"
        "f.POINTS['lease:take'] = f.Point('dsort.results.lease', 'Lease.gone', 'after')\n"
        "import dsort.results.lease"
    )
    ended = run(tmp_path, program)
    assert ended.returncode == 1
    assert "NoSuchPointError: there is no dsort.results.lease: Lease.gone" in ended.stderr


def run(points: Path, program: str) -> subprocess.CompletedProcess[str]:
    """A process that meets the faults in ``points``."""
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, **points_environment(points)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_what_has_struck_is_expected_no_more(tmp_path: Path) -> None:
    points = arm(tmp_path, PointFault("lease:pause", action="raise"))
    denied = {"operation": "exists", "kind": "denied", "times": ALWAYS}
    arm_store(points, StoreFaults([denied]))
    ended = run(points, PASS + "LocalBucket(Path('.')).exists('x')")
    assert "a bug that a test put here" in ended.stderr
    assert struck(points) == ["lease:pause"]
    (missed,) = armed.missed()
    assert "denied" in missed  # the bug came first
    assert (points / OPENED).exists()


def test_what_has_not_struck_is_reported_once(tmp_path: Path) -> None:
    fault = PointFault("commit:start", 2)
    arm(tmp_path / "a", fault, PointFault("lease:take"))
    arm(tmp_path / "b", fault, may_miss=True)
    assert armed.missed() == [
        f"{each} in {tmp_path / 'a'}" for each in (fault, PointFault("lease:take"))
    ]
    assert armed.missed() == []


ARMED_IN_VAIN = """
from pathlib import Path
from tests.support.fault_points import PointFault, arm

def test_armed_in_vain(tmp_path: Path) -> None:
    arm(tmp_path, PointFault("commit:start"))

def test_that_arms_nothing() -> None:
    pass
"""


@pytest.mark.exhaustive
def test_a_test_whose_fault_does_not_strike_fails(tmp_path: Path) -> None:
    (tmp_path / "test_vain.py").write_text(ARMED_IN_VAIN)
    plugins = ["-p", "tests.conftest", "-p", "no:cacheprovider"]
    ended = run_pytest(
        ["-q", *plugins, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ended.code == 1
    assert "these faults have not struck: [\"PointFault(point='commit:start'" in ended.out
    assert "1 failed, 1 passed" in ended.out
