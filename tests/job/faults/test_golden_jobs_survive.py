"""Pinned jobs give what is pinned also where their command dies at any point, and is resumed."""

from __future__ import annotations

import json
from dataclasses import astuple
from pathlib import Path
from typing import Final

import pytest

from dsort.errors import JobConflictError
from tests.golden.features import feature_job
from tests.golden.jobs import JOBS, digest_of
from tests.golden.test_golden_jobs import PINNED
from tests.support.coordinators import Coordinators
from tests.support.fault_points import IN_WORKERS, PointFault, arm, struck
from tests.support.surviving import resume_here

DIES: Final = (
    ".tar shuffle",
    ".jsonl alphanumeric",
    ".tar to .parquet",
    "several inputs + deduplicate by key",
    "`join`",
    "`mix` + `stratify`",
    "outputs in two buckets",
    "`like` another result",
)
POINTS: Final = (
    "lease:take",
    "journal:append",
    "journal:flush",
    "extract:start",
    "index:write",
    "extract:end",
    "plan:start",
    "order:start",
    "order:end",
    "cut:end",
    "create:end",
    "commit:start",
    "publish:start",
    "publish:end",
)


@pytest.mark.sample(keep=5)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("name", DIES)
def test_a_pinned_job_that_is_resumed_gives_what_is_pinned(
    name: str, point: str, begun: Coordinators, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, root = JOBS.get(name) or feature_job(name), tmp_path / "job"
    root.mkdir()
    job.prepare(root)
    action = "kill parent" if point in IN_WORKERS else "kill"
    points = arm(tmp_path / "points", PointFault(point, 1, action))
    given = ["-f", json.dumps(dict(job.spec)), "--workers", "2", "--progress", "none"]
    ended = begun.run(root, "start", *given, points=points)
    assert (ended.code, struck(points)) == (-9, [point])
    resumed, pinned = resume_here(root, monkeypatch), PINNED[name]
    if isinstance(resumed.error, JobConflictError):  # it died before it wrote down what it was
        assert point in ("lease:take", "journal:append", "journal:flush")
        assert begun.run(root, "start", *given).code == 0
        pinned = pinned[:2]  # what is left of the dead job is beside it
    else:
        assert resumed.error is None
    for said in root.glob("coordinator-*"):
        said.unlink()
    assert [*astuple(digest_of(root))][: len(pinned)] == pinned
