"""Reports of aborted jobs from which something is missing: they are refused, and named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dsort
from dsort.errors import StorageError, StrayMemberError
from dsort.options import RunOptions
from tests.support.datasets import Member, Shard, write_shards
from tests.support.engine import refused, run_local, shard_of, spec_of
from tests.support.refusals import raises


@pytest.mark.parametrize("name", ["job_id", "dsort_version", "spec", "created"])
def test_a_report_that_lacks_a_fact_of_its_job_is_damaged(name: str, tmp_path: Path) -> None:
    stray = Shard((Member("README", b"x"),))
    write_shards(tmp_path / "in", {"in-0.tar": shard_of("a", "b"), "in-1.tar": stray})
    with refused(tmp_path, StrayMemberError, "1 stray member,"):
        run_local(tmp_path, spec_of(stray_members="abort"))
    (path,) = (tmp_path / "out" / ".dsort").glob("*/report.json")
    report = json.loads(path.read_text())
    del report["resume"]["accepted"][name]
    path.write_text(json.dumps(report))
    with raises(StorageError, name):
        dsort.resume(path.parent.name, "out", options=RunOptions(root=tmp_path, workers=1))
