"""A job that writes a view, whose coordinator dies, and a view that is only half materialized."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from dsort import api
from dsort.errors import JobConflictError, NamesTakenError, StorageError
from dsort.options import RunOptions
from tests.support.coordinators import Coordinators
from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.engine import run_local
from tests.support.fault_points import PointFault, arm, struck
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
    fault = PointFault(point, 5)
    points = arm(here / "points", fault)
    arguments = ["start", "-f", json.dumps(SPEC), "--workers", "1"]
    ended = begun.run(here, *arguments, points=points, flush_s=0.0)
    assert ended.code == -signal.SIGKILL, ended.err
    assert struck(points) == [fault.point]
    ended = begun.run(here, "resume", job_in(here / "out"), "--bucket", "out")
    assert ended.code == 0, ended.err
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


def killed(begun: Coordinators, here: Path, fault: PointFault, destination: str = "made") -> None:
    """``dsort materialize out DESTINATION``, killed where ``fault`` says."""
    points = arm(here / "points", fault)
    ended = begun.run(here, "materialize", "out", destination, points=points)
    assert ended.code == -signal.SIGKILL, ended.err
    assert struck(points) == [fault.point]


@pytest.mark.parametrize("fault", [COPYING, NAMING, LAST, NAMED], ids=lambda fault: str(fault))
def test_a_second_materialize_completes_what_a_killed_one_left(
    fault: PointFault, begun: Coordinators, here: Path
) -> None:
    killed(begun, here, fault)
    ended = begun.run(here, "materialize", "out", "made")
    assert ended.code == 0, ended.err
    assert files_of(here / "made") == files_of(here / "direct")
    left = [path for path in (here / "made").rglob("*") if path.is_file() and path.suffix != ".tar"]
    assert [path.name for path in left] == ["manifest.json"]


def test_gc_removes_what_a_killed_materialize_named(begun: Coordinators, here: Path) -> None:
    killed(begun, here, NAMING)
    assert len(files_of(here / "made")) == 3
    ended = begun.run(here, "resume", job_in(here / "made"), "--bucket", "made")
    assert ended.code == JobConflictError.exit_code
    for command in (("gc", "made", "--older-than", "0s"), ("show", "--bucket", "made")):
        ended = begun.run(here, *command)
        assert "dsort resume" not in ended.out
        assert ("dsort materialize" in ended.out) is (command[0] == "gc")
    ended = begun.run(here, "gc", "made", "--older-than", "0s", "--remove")
    assert ended.code == 0, ended.err
    assert [path for path in (here / "made").rglob("*") if path.is_file()] == []


def test_what_others_have_stored_since_stays(begun: Coordinators, here: Path) -> None:
    killed(begun, here, NAMING)
    name = min(files_of(here / "made"))
    (here / "made" / name).unlink()
    (here / "made" / name).write_bytes(b"of another writer")
    ended = begun.run(here, "materialize", "out", "made")
    assert ended.code == NamesTakenError.exit_code, ended.err
    assert files_of(here / "made") == {name: b"of another writer"}


def test_another_view_may_be_materialized_after_a_kill(begun: Coordinators, here: Path) -> None:
    run_local(here, {**SPEC, "output_bck": "other", "algorithm": {"kind": "shuffle", "seed": 4}})
    killed(begun, here, NAMING)
    ended = begun.run(here, "materialize", "other", "made")
    assert ended.code == 0, ended.err
    assert len(files_of(here / "made")) == 9
    assert files_of(here / "made") != files_of(here / "direct")


def test_a_job_that_died_beside_it_is_kept(begun: Coordinators, here: Path) -> None:
    points = arm(here / "job", PointFault("journal:append", 5))
    spec = {**SPEC, "output": "shards", "output_bck": "made", "output_format": "other-%d"}
    ended = begun.run(here, "start", "-f", json.dumps(spec), "--workers", "1", points=points)
    assert ended.code == -signal.SIGKILL, ended.err
    job_id = job_in(here / "made")
    assert begun.run(here, "materialize", "out", "made").code == 0
    ended = begun.run(here, "resume", job_id, "--bucket", "made")
    assert ended.code == 0, ended.err


def test_a_second_materialize_completes_what_a_killed_one_left_in_a_store(
    s3: S3Server, begun: Coordinators, here: Path
) -> None:
    bucket = s3.new_bucket_name()
    points = arm(here / "points", PointFault("s3 publish:end", 3))
    env = {**s3.environment(), "AWS_ENDPOINT_URL": s3.endpoint_url}
    ended = begun.run(here, "materialize", "out", f"s3://{bucket}/made", points=points, env=env)
    assert ended.code == -signal.SIGKILL, ended.err
    assert struck(points) == ["s3 publish:end"]
    ended = begun.run(here, "materialize", "out", f"s3://{bucket}/made", env=env)
    assert ended.code == 0, ended.err
    found = s3.client().list_objects_v2(Bucket=bucket)["Contents"]
    assert len([each for each in found if each["Key"].endswith(".tar")]) == 9
    assert len(found) == 10
    assert s3.unfinished_uploads(bucket) == []
