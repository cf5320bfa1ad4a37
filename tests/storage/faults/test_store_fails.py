"""A store that fails, and a job whose outputs have buckets of their own and whose coordinator
dies: what passes changes nothing, what stays ends the job by a clear error, and afterwards the
job can be resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsort import api
from dsort.errors import (
    ChangedInputError,
    DsortError,
    JobConflictError,
    StorageAccessError,
    StorageError,
    StorageFullError,
)
from dsort.options import RunOptions, open_with_settings
from dsort.settings import Settings
from dsort.storage.bucket import Bucket
from dsort.storage.directory.bucket import LocalBucket
from tests.support.coordinators import Coordinators
from tests.support.datasets import files_of, small_dataset, tree_of, write_shards
from tests.support.engine import run_local, spec_of
from tests.support.fault_points import PointFault, arm, struck
from tests.support.faulty_bucket import ALWAYS, TRANSIENT
from tests.support.faulty_store import DOWN, StoreFaults, arm_store
from tests.support.internals import elsewhere_name, find_garbage, journal_prefix, remove_garbage
from tests.support.refusals import raises
from tests.support.surviving import Trial, job_in, only_a_report

PASSING: dict[str, dict[str, Any]] = {
    "no answer": {"kinds": ["timeout", "reset"]},
    "errors": {"kinds": ["429", "500", "502", "503"]},
    "streams cut short": {"kinds": ["cut"]},
    "replies lost": {"kinds": ["reply lost"]},
    "everything": {"kinds": [*TRANSIENT, "cut", "reply lost"], "rate": 0.3},
}


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize(
    ("what", "case", "like_store"),
    [
        *((what, "renamed", True) for what in PASSING),
        ("everything", "replacing", False),
        ("everything", "verified", True),
    ],
)
def test_what_passes_changes_nothing(what: str, case: str, like_store: bool, trial: Trial) -> None:
    points = trial.root / "points"
    arm_store(points, StoreFaults(seed=f"{what} {case}", like_store=like_store, **PASSING[what]))
    scratch = trial.root / "scratch"
    trial.done(*trial.prepare(case), "--scratch", str(scratch), points=points)
    trial.is_whole()
    assert list(scratch.iterdir()) == []


def always(operation: str, kind: str, name: str = "*", first: int = 1) -> dict[str, Any]:
    return {"operation": operation, "kind": kind, "name": name, "first": first, "times": ALWAYS}


STAYING: list[tuple[dict[str, Any], type[DsortError], str]] = [
    (always("open", "denied", "in-2.tar"), StorageAccessError, "in-2.tar"),
    (always("read_into", "reset", "in-1.tar"), StorageError, "in-1.tar"),
    (always("read_into", "cut", "in-1.tar"), StorageError, "in-1.tar"),
    (always("open", "size", "in-1.tar"), StorageError, "in-1.tar"),
    (always("open", "etag", "in-1.tar"), ChangedInputError, "in-1.tar"),
    (always("stat_many", "etag", first=2), ChangedInputError, "in-0.tar"),  # resolve asks first
    (always("stage", "503", "out-2.tar"), StorageError, "503"),
    (always("write_at", "full", "out-1.tar"), StorageFullError, "out-1.tar"),
    (always("finish", "denied", "out-1.tar"), StorageAccessError, "out-1.tar"),
    (always("write", "full", "*journal/0001-000004*"), StorageFullError, "journal"),
    (always("publish", "denied", "out-3.tar"), StorageAccessError, "out-3.tar"),
    (always("publish", "500", "out-4.tar"), StorageError, "out-4.tar"),
    (always("publish", "timeout", "*manifest.json"), StorageError, "manifest"),
    (always("publish", "reply lost", "*manifest.json"), StorageError, "manifest"),
    (always("make_durable", "500"), StorageError, "500"),
    (always("make_durable", "500", first=2), StorageError, "500"),
]


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("number", range(len(STAYING)), ids=lambda at: STAYING[at][0]["kind"])
def test_a_lasting_failure_ends_the_job_and_it_can_be_resumed(number: int, trial: Trial) -> None:
    fault, error, word = STAYING[number]
    like_store = bool(number % 3)
    points = trial.root / "points"
    arm_store(points, StoreFaults([fault], like_store=like_store))
    scratch = ["--scratch", str(trial.root / "scratch")]
    ended = trial.run(*trial.prepare("spilled"), *scratch, points=points)
    assert f'"{error.__name__}"' in ended.out, ended.err
    assert ended.code == error.exit_code
    assert word in ended.err
    if error is not StorageFullError:  # which keeps what the job has done
        only_a_report(trial.out)
        assert list((trial.root / "scratch").iterdir()) == []
    arm_store(points, StoreFaults(like_store=like_store))
    found = ["--bucket", "out", *scratch]
    trial.done("resume", job_in(trial.out), *found, points=points)
    trial.is_whole()


GOES = [
    ("extract:end", 2, "spilled", True),
    ("order:end", 2, "renamed", False),
    ("create:end", 3, "spilled", True),
    ("commit:start", 1, "verified", True),
    ("publish:end", 3, "spilled", False),
    ("publish:end", 3, "renamed", True),
    ("make_durable", 1, "renamed", True),
]


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize(("point", "nth", "case", "like_store"), GOES)
def test_a_store_that_goes_away_leaves_a_job_that_can_be_resumed(
    point: str, nth: int, case: str, like_store: bool, trial: Trial
) -> None:
    points = arm(trial.root / "points", PointFault(point, nth, "store down"))
    arm_store(points, StoreFaults(like_store=like_store))
    ended = trial.run(*trial.prepare(case), points=points)
    assert struck(points) == [point]
    assert ended.code == StorageError.exit_code, ended.err
    assert "503" in ended.err
    assert "Traceback" not in ended.err
    (points / DOWN).unlink()
    trial.done("resume", job_in(trial.out), "--bucket", "out", points=points)
    trial.is_whole()


def test_a_job_that_cannot_begin_leaves_nothing(trial: Trial) -> None:
    points = trial.root / "points"
    arm_store(points, StoreFaults([always("write_new", "denied")], about="out"))
    ended = trial.run(*trial.prepare("spilled"), points=points)
    assert ended.code == StorageAccessError.exit_code
    assert files_of(trial.out, "**/*") == {}


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
    begun.killed(root, "start", "-f", json.dumps(SPEC), "--workers", "1", by=fault)
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
    begun.done(tmp_path, "resume", job_id, "--bucket", "out")
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
    with raises(JobConflictError, job_id):
        api.resume(job_id, "out", options=RunOptions(root=tmp_path, workers=1))
    assert tree_of(tmp_path / "val") == before
    main = LocalBucket(tmp_path / "out")
    (garbage,) = find_garbage(main)
    with raises(StorageError, job_id):
        remove_garbage(main, garbage, opened=opened(tmp_path))
    assert tree_of(tmp_path / "val") == before
