"""A job whose coordinator died knows in the end where its records went; the journal of an older
version, which does not say, is gone on with all the same."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
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


@pytest.mark.parametrize("older", [False, True])
def test_a_job_that_died_before_its_commit_knows_how_it_mixed(
    older: bool, begun: Coordinators, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path, CASES["shuffle"])
    points = arm(tmp_path / "points", PointFault("commit:start"))
    ended = begun.run(tmp_path, *start_arguments(CASES["shuffle"]), points=points, flush_s=0.0)
    assert ended.code == -signal.SIGKILL, ended.err
    expected = undisturbed("shuffle", base)
    assert expected.manifest["mixing"]["counts"]
    if older:
        (kept,) = tmp_path.glob("out/.dsort/*/journal/shared-planned.json")
        facts = json.loads(kept.read_text())
        del facts["mixing"]
        kept.write_text(json.dumps(facts))
        expected = replace(expected, manifest={**expected.manifest, "mixing": None})
    resumed = resume_here(tmp_path, monkeypatch)
    assert resumed.error is None
    assert resumed.created == set()
    assert_whole(tmp_path / "out", expected)
