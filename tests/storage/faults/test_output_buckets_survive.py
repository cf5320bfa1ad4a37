"""A job whose outputs have buckets of their own, and whose coordinator dies: what is where then,
who may touch it, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsort import api
from dsort.errors import JobConflictError, StorageError
from dsort.options import RunOptions, open_with_settings
from dsort.settings import Settings
from dsort.storage.bucket import Bucket
from dsort.storage.directory.bucket import LocalBucket
from tests.support.coordinators import Coordinators
from tests.support.datasets import files_of, small_dataset, tree_of, write_shards
from tests.support.engine import run_local, spec_of
from tests.support.fault_points import PointFault, arm
from tests.support.internals import elsewhere_name, find_garbage, journal_prefix, remove_garbage
from tests.support.surviving import job_in

OUTPUTS = [
    {"name": "train", "fraction": 0.6},
    {"name": "val", "fraction": 0.4, "output_bck": "val"},
]
SPEC: dict[str, Any] = spec_of(
    output_format="s-%d",
    algorithm={"kind": "shuffle", "seed": 3},
    outputs=OUTPUTS,
    overwrite=True,
)
OLD = {"s-0.tar": b"old", "s-1.tar": b"older"}


def died(begun: Coordinators, root: Path, fault: PointFault) -> str:
    """A job that is killed; its id."""
    write_shards(root / "in", small_dataset("in", shards=4, records=12))
    write_shards(root / "val", OLD)
    points = arm(root / "points", fault)
    arguments = ["start", "-f", json.dumps(SPEC), "--workers", "1"]
    assert begun.run(root, *arguments, points=points).code == -9
    assert list(root.glob("out/.dsort/*/manifest.json")) == []
    return job_in(root / "out")


def opened(root: Path) -> Any:
    def opening(ref: Any) -> Bucket:
        return open_with_settings(ref, root=root, settings=Settings())

    return opening


def test_a_resumed_job_gives_the_names_that_are_left(begun: Coordinators, tmp_path: Path) -> None:
    job_id = died(begun, tmp_path, PointFault("publish:end", 8, "kill", ".tar"))
    assert files_of(tmp_path / "val").keys() - OLD.keys() or files_of(tmp_path / "out")
    assert find_garbage(LocalBucket(tmp_path / "val")) == []  # the job may go on
    ended = begun.run(tmp_path, "resume", job_id, "--bucket", "out")
    assert ended.code == 0, ended.err
    again = tmp_path / "again"
    write_shards(again / "in", small_dataset("in", shards=4, records=12))
    run_local(again, SPEC)
    for bucket in ("out", "val"):
        assert files_of(tmp_path / bucket) == files_of(again / bucket)
    kept = [path.name for path in (tmp_path / "val").glob(".dsort/*/*")]
    assert kept == ["result.json"]


def test_what_a_dead_job_replaced_comes_back_to_each_bucket(
    begun: Coordinators, tmp_path: Path
) -> None:
    died(begun, tmp_path, PointFault("publish:start", 1, "kill", "manifest"))
    assert files_of(tmp_path / "val")["s-0.tar"] != b"old"
    main = LocalBucket(tmp_path / "out")
    for garbage in find_garbage(main):
        remove_garbage(main, garbage, opened=opened(tmp_path))
    assert tree_of(tmp_path / "val").keys() == OLD.keys()
    assert files_of(tmp_path / "val") == OLD
    assert files_of(tmp_path / "out") == {}


def test_a_bucket_in_which_the_job_never_was_is_not_touched(
    begun: Coordinators, tmp_path: Path
) -> None:
    """Who can write to the main bucket can have written what the job is."""
    job_id = died(begun, tmp_path, PointFault("publish:start", 1, "kill", "manifest"))
    (tmp_path / "val" / elsewhere_name(job_id)).write_text('{"output_uri": "file:///elsewhere"}')
    before = tree_of(tmp_path / "val")
    assert [*(tmp_path / "out" / journal_prefix(job_id)).iterdir()]
    with pytest.raises(JobConflictError, match="but nothing of it is there"):
        api.resume(job_id, "out", options=RunOptions(root=tmp_path, workers=1))
    assert tree_of(tmp_path / "val") == before
    main = LocalBucket(tmp_path / "out")
    (garbage,) = find_garbage(main)
    with pytest.raises(StorageError, match="in the bucket of no output"):
        remove_garbage(main, garbage, opened=opened(tmp_path))
    assert tree_of(tmp_path / "val") == before
