"""A job that writes a view, whose coordinator dies, and a view that is only half materialized."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsort import api
from dsort.errors import JobConflictError, NamesTakenError, StorageError
from dsort.options import RunOptions
from tests.support.coordinators import Coordinators
from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.engine import run_local
from tests.support.fault_points import PointFault
from tests.support.seaweedfs import S3Server
from tests.support.surviving import job_in

SPEC = {
    "input_bck": "in",
    "output_bck": "out",
    "output": "view",
    "output_format": "out-%d",
    "output_shard_records": 4,
    "algorithm": {"kind": "shuffle", "seed": 3},
}


@pytest.mark.parametrize("point", ["publish:end", "journal:append"])
def test_a_resumed_job_writes_the_same_view(
    point: str, begun: Coordinators, tmp_path: Path
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    for root in (there, here):
        write_shards(root / "in", small_dataset("view", shards=3, records=12))
    run_local(there, SPEC)
    arguments = ["start", "-f", json.dumps(SPEC), "--workers", "1"]
    begun.killed(here, *arguments, by=PointFault(point, 5))
    begun.done(here, "resume", job_in(here / "out"), "--bucket", "out")
    made = files_of(here / "out", "**/*.view")
    assert len(made) == 9
    assert made == files_of(there / "out", "**/*.view")


def test_shards_of_a_view_get_their_names_together_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards(tmp_path / "in", small_dataset("view", shards=3, records=12))
    options = RunOptions(root=tmp_path)
    report = api.run(SPEC, options=options)

    def full(*args: object, **options: object) -> None:
        raise StorageError("there is no room")

    monkeypatch.setattr("dsort.materialization.write_manifest", full)
    with pytest.raises(StorageError):
        api.materialize(report, "made", options=options)
    assert not [each for each in (tmp_path / "made").rglob("*") if each.is_file()]


MATERIALIZE = ("materialize", "out", "made")
COPYING = PointFault("file:sync", 2, about="staged")
NAMING = PointFault("publish:end", 3)
LAST = PointFault("publish:start", about="manifest")
NAMED = PointFault("publish:end", about="manifest")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A data root with a view, and its shards in the bucket ``direct``."""
    write_shards(tmp_path / "in", small_dataset("view", shards=3, records=12))
    run_local(tmp_path, SPEC)
    run_local(tmp_path, {**SPEC, "output": "shards", "output_bck": "direct"})
    return tmp_path


@pytest.mark.parametrize("fault", [COPYING, NAMING, LAST, NAMED], ids=lambda fault: str(fault))
def test_a_second_materialize_completes_what_a_killed_one_left(
    fault: PointFault, begun: Coordinators, here: Path
) -> None:
    begun.killed(here, *MATERIALIZE, by=fault)
    begun.done(here, *MATERIALIZE)
    assert files_of(here / "made") == files_of(here / "direct")
    left = [path for path in (here / "made").rglob("*") if path.is_file() and path.suffix != ".tar"]
    assert [path.name for path in left] == ["manifest.json"]


def test_gc_removes_what_a_killed_materialize_named(begun: Coordinators, here: Path) -> None:
    begun.killed(here, *MATERIALIZE, by=NAMING)
    assert len(files_of(here / "made")) == 3
    ended = begun.run(here, "resume", job_in(here / "made"), "--bucket", "made")
    assert ended.code == JobConflictError.exit_code
    for command in (("gc", "made", "--older-than", "0s"), ("show", "--bucket", "made")):
        ended = begun.run(here, *command)
        assert "dsort resume" not in ended.out
        assert ("dsort materialize" in ended.out) is (command[0] == "gc")
    begun.done(here, "gc", "made", "--older-than", "0s", "--remove")
    assert [path for path in (here / "made").rglob("*") if path.is_file()] == []


def test_what_others_have_stored_since_stays(begun: Coordinators, here: Path) -> None:
    begun.killed(here, *MATERIALIZE, by=NAMING)
    name = min(files_of(here / "made"))
    (here / "made" / name).unlink()
    (here / "made" / name).write_bytes(b"of another writer")
    ended = begun.run(here, *MATERIALIZE)
    assert ended.code == NamesTakenError.exit_code, ended.err
    assert files_of(here / "made") == {name: b"of another writer"}


def test_another_view_may_be_materialized_after_a_kill(begun: Coordinators, here: Path) -> None:
    run_local(here, {**SPEC, "output_bck": "other", "algorithm": {"kind": "shuffle", "seed": 4}})
    begun.killed(here, *MATERIALIZE, by=NAMING)
    begun.done(here, "materialize", "other", "made")
    assert len(files_of(here / "made")) == 9
    assert files_of(here / "made") != files_of(here / "direct")


def test_a_job_that_died_beside_it_is_kept(begun: Coordinators, here: Path) -> None:
    spec = {**SPEC, "output": "shards", "output_bck": "made", "output_format": "other-%d"}
    start = ["start", "-f", json.dumps(spec), "--workers", "1"]
    begun.killed(here, *start, by=PointFault("journal:append", 5))
    job_id = job_in(here / "made")
    begun.done(here, *MATERIALIZE)
    begun.done(here, "resume", job_id, "--bucket", "made")


def test_a_second_materialize_completes_what_a_killed_one_left_in_a_store(
    s3: S3Server, begun: Coordinators, here: Path
) -> None:
    bucket = s3.new_bucket_name()
    env = {**s3.environment(), "AWS_ENDPOINT_URL": s3.endpoint_url}
    materialize = ["materialize", "out", f"s3://{bucket}/made"]
    begun.killed(here, *materialize, by=PointFault("s3 publish:end", 3), env=env)
    begun.done(here, *materialize, env=env)
    found = s3.client().list_objects_v2(Bucket=bucket)["Contents"]
    assert len([each for each in found if each["Key"].endswith(".tar")]) == 9
    assert len(found) == 10
    assert s3.unfinished_uploads(bucket) == []
