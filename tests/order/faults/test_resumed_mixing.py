"""A resumed job reports how it mixed its records, as a job that was not interrupted does."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.coordinators import Coordinators
from tests.support.fault_points import PointFault, arm
from tests.support.surviving import (
    CASES,
    assert_whole,
    prepare,
    resume_here,
    start_arguments,
    undisturbed,
)


def test_a_job_that_died_before_its_commit_knows_how_it_mixed(
    begun: Coordinators, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path, CASES["shuffle"])
    points = arm(tmp_path / "points", PointFault("commit:start"))
    ended = begun.run(tmp_path, *start_arguments(CASES["shuffle"]), points=points, flush_s=0.0)
    assert ended.code == -signal.SIGKILL, ended.err
    expected = undisturbed("shuffle", base)
    assert expected.manifest["mixing"]["counts"]
    resumed = resume_here(tmp_path, monkeypatch)
    assert resumed.error is None
    assert resumed.created == set()
    assert_whole(tmp_path / "out", expected)
