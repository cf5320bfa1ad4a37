"""A job that was to remove the rest of what it replaced, and died before: the attempt that resumes
it removes the same, or tells what is left."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.coordinators import Coordinators
from tests.support.datasets import files_of
from tests.support.engine import run_local
from tests.support.fault_points import PointFault
from tests.support.surviving import KEY_MAP, Case, prepare, start_arguments

SEVERAL = {"output_format": "out-{0..9}-{0..3}"}
QUIET = {"Config": {"ekm_missing_key": "ignore"}}
CASES = {
    "one template": {},
    "several ranges": SEVERAL,
    "key map": {**KEY_MAP, **QUIET},
}
REPLACING = {"overwrite": True, "remove_stale": True}


def replaced(root: Path, fields: Mapping[str, Any]) -> set[str]:
    """There is a result of many shards; the names of a job's that replaces it by fewer."""
    fewer = root / "undisturbed"
    prepare(fewer, Case("map", fields))
    run_local(fewer, Case("map", fields).spec)
    prepare(root, Case("map", fields))
    run_local(root, Case("map", {**fields, "output_shard_records": 2}).spec)
    assert set(files_of(root / "out")) > set(files_of(fewer / "out"))
    return set(files_of(fewer / "out"))


def die(begun: Coordinators, root: Path, fields: Mapping[str, Any], fault: PointFault) -> str:
    """The job that replaces the result is killed by the fault; its id."""
    before = set((root / "out" / ".dsort").iterdir())
    begun.killed(root, *start_arguments(Case("map", {**fields, **REPLACING})), by=fault)
    (directory,) = set((root / "out" / ".dsort").iterdir()) - before
    return directory.name


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("name", CASES)
def test_a_job_that_only_had_to_commit_removes_the_same(
    name: str, begun: Coordinators, tmp_path: Path
) -> None:
    expected = replaced(tmp_path, CASES[name])
    fault = PointFault("journal:append", about="Committing")
    job_id = die(begun, tmp_path, CASES[name], fault)
    begun.done(tmp_path, "resume", job_id, "--bucket", "out")
    assert set(files_of(tmp_path / "out")) == expected


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("name", ["one template", "key map"])
def test_what_a_job_left_that_died_once_it_was_committed_is_reported(
    name: str, begun: Coordinators, tmp_path: Path
) -> None:
    expected = replaced(tmp_path, CASES[name])
    fault = PointFault("publish:end", about="manifest")
    job_id = die(begun, tmp_path, CASES[name], fault)
    left = sorted(set(files_of(tmp_path / "out")) - expected)
    ended = begun.done(tmp_path, "resume", job_id, "--bucket", "out")
    said = " ".join(ended.err.split())
    assert f"warning: {len(left)} objects of results that job {job_id} replaced" in said
    assert left[0] in said
    assert set(files_of(tmp_path / "out")) - expected == set(left)
    for shard in left:
        (tmp_path / "out" / shard).unlink()
    again = begun.run(tmp_path, "resume", job_id, "--bucket", "out")
    assert (again.code, "warning" in again.err) == (0, False), again.err


def test_what_is_reported_is_not_what_newer_jobs_or_others_wrote(
    begun: Coordinators, tmp_path: Path
) -> None:
    replaced(tmp_path, {})
    job_id = die(begun, tmp_path, {}, PointFault("publish:end", about="manifest"))
    manifest = json.loads((tmp_path / "out" / ".dsort" / job_id / "manifest.json").read_text())
    run_local(tmp_path, Case("map", {"output_shard_records": 2, "overwrite": True}).spec)
    assert len(files_of(tmp_path / "out")) > len(manifest["outputs"])
    ended = begun.done(tmp_path, "resume", job_id, "--bucket", "out")
    assert "output shards were replaced by job" in ended.err
    assert "objects of results that job" not in ended.err
