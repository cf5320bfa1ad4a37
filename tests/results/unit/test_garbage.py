"""What dead jobs left is found with its age, and removed; whatever a running job has is not."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import xxhash

from dsort.errors import JobConflictError
from dsort.storage.bucket import Bucket
from dsort.storage.directory.bucket import LocalBucket
from tests.support.internals import (
    OWNER_FILE,
    Committing,
    Garbage,
    InputsResolved,
    Journal,
    Lease,
    Planned,
    PlannedRow,
    ShardCreated,
    find_garbage,
    remove_garbage,
)
from tests.support.machines import BEGIN_S, FakeMachine
from tests.support.refusals import raises

HOUR_S = 3600.0
DEAD, LIVE = "20260101-000000-dead00", "20260131-000000-11fe00"


@dataclass(frozen=True)
class Begun:
    """An unfinished upload."""

    name: str
    upload_id: str
    began_ns: int


class UploadBucket(LocalBucket):
    """A directory that keeps unfinished uploads, as an object store does."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.begun: list[Begun] = []

    def unfinished_uploads(self) -> list[Begun]:
        return list(self.begun)

    def abort_upload(self, name: str, upload_id: str) -> None:
        self.begun = [
            each for each in self.begun if (each.name, each.upload_id) != (name, upload_id)
        ]


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


@pytest.fixture
def bucket(tmp_path: Path) -> UploadBucket:
    bucket = UploadBucket(tmp_path / "out")
    bucket.create()
    return bucket


def written_at(directory: Path, then_s: float) -> None:
    """Have all in ``directory`` look as if it was written then."""
    for path in (directory, *directory.rglob("*")):
        os.utime(path, (then_s, then_s))


def leave_job(
    bucket: LocalBucket, job_id: str, machine: FakeMachine, *, names: list[str], ago_s: float
) -> Lease:
    """A job that was planned, and staged something, and was not heard of since."""
    at = machine.beside(pid=machine.me.pid)
    at.time_s -= ago_s
    lease = Lease.take(bucket, job_id, attempt=1, machine=at)
    journal = Journal(bucket, job_id, 1)
    journal.append(InputsResolved(()))
    journal.append(Planned("d", tuple(PlannedRow(name, 1, 1, 1, 1) for name in names)))
    journal.flush()
    with bucket.stage(f".dsort/{job_id}/staged/0", name=names[0]) as staged:
        staged.write_at(0, [b"x" * 1000])
    bucket.write(f".dsort/{job_id}/scratch/index-0.col", b"y" * 10)
    inside = bucket.local_path(f".dsort/{job_id}/stop")
    assert inside is not None
    written_at(inside.parent, BEGIN_S - ago_s)
    return lease


def names_of(bucket: Bucket) -> list[str]:
    return [found.name for found in bucket.list(".dsort/")]


def only(found: list[Garbage], kind: str) -> list[Garbage]:
    return [each for each in found if each.kind == kind]


def test_a_dead_job_is_found_and_removed_and_a_running_one_is_not(
    bucket: UploadBucket, machine: FakeMachine
) -> None:
    leave_job(bucket, DEAD, machine, names=["a.tar"], ago_s=30 * HOUR_S)
    live = leave_job(bucket, LIVE, machine, names=["a.tar"], ago_s=10)

    def run_on() -> None:
        live._machine.pause(0.5)
        live.renew()

    # The machine's clock is not the store's here, so a lease is watched before it is taken.
    machine.on_pause = run_on
    before = [name for name in names_of(bucket) if LIVE in name]
    (found,) = find_garbage(bucket, machine=machine)
    assert (found.kind, found.job_id, found.where) == ("job", DEAD, f".dsort/{DEAD}/")
    assert found.age_s == pytest.approx(30 * HOUR_S, abs=1)
    assert found.size_bytes > 1010
    assert found.resumable
    remove_garbage(bucket, found, machine=machine)
    assert names_of(bucket) == before
    assert find_garbage(bucket, machine=machine) == []


def test_shards_that_were_named_without_a_manifest_are_removed_if_they_are_the_jobs(
    bucket: UploadBucket, machine: FakeMachine
) -> None:
    names = ["a.tar", "b.tar", "c.tar", "d.tar"]
    leave_job(bucket, DEAD, machine, names=names, ago_s=30 * HOUR_S)
    journal = Journal(bucket, DEAD, 2)
    for ordinal in range(3):
        digest = xxhash.xxh3_64_hexdigest(b"shard %d" % ordinal)
        journal.append(ShardCreated(ordinal, digest, "", "", -1))
    journal.flush()
    for ordinal, name in enumerate(names):
        bucket.write(name, b"shard %d" % ordinal)
    bucket.write("b.tar", b"another user's")
    bucket.delete("c.tar")
    before_commit, *_ = find_garbage(bucket, machine=machine)
    journal.append(Committing())
    journal.flush()
    remove_garbage(bucket, before_commit, machine=machine)
    assert [found.name for found in bucket.list()] == ["b.tar", "d.tar"]


def test_before_the_commit_nothing_of_that_name_is_the_jobs(
    bucket: UploadBucket, machine: FakeMachine
) -> None:
    leave_job(bucket, DEAD, machine, names=["a.tar"], ago_s=30 * HOUR_S)
    journal = Journal(bucket, DEAD, 2)
    journal.append(ShardCreated(0, xxhash.xxh3_64_hexdigest(b"x"), "", "", -1))
    journal.flush()
    bucket.write("a.tar", b"x")
    (found,) = find_garbage(bucket, machine=machine)
    remove_garbage(bucket, found, machine=machine)
    assert [found.name for found in bucket.list()] == ["a.tar"]


def test_manifests_and_reports_are_no_garbage(bucket: UploadBucket, machine: FakeMachine) -> None:
    for job_id, document in (("done", "manifest.json"), ("failed", "report.json")):
        bucket.write(f".dsort/{job_id}/{document}", b"{}")
    assert find_garbage(bucket, machine=machine) == []
    for job_id in ("done", "failed"):
        bucket.stage(f".dsort/{job_id}/staged/0", name="a.tar").close()
    found = find_garbage(bucket, machine=machine)
    assert [(each.job_id, each.resumable, each.objects) for each in found] == [
        ("done", False, 1),
        ("failed", False, 1),
    ]
    for each in found:
        remove_garbage(bucket, each, machine=machine)
    assert names_of(bucket) == [".dsort/done/manifest.json", ".dsort/failed/report.json"]


def test_a_job_that_was_resumed_meanwhile_is_not_removed(
    bucket: UploadBucket, machine: FakeMachine
) -> None:
    leave_job(bucket, DEAD, machine, names=["a.tar"], ago_s=30 * HOUR_S)
    (found,) = find_garbage(bucket, machine=machine)
    Lease.take(bucket, DEAD, attempt=2, machine=machine)
    before = names_of(bucket)
    with raises(JobConflictError, DEAD):
        remove_garbage(bucket, found, machine=machine.beside())
    assert names_of(bucket) == before


def test_a_damaged_job_can_be_removed(bucket: UploadBucket, machine: FakeMachine) -> None:
    bucket.write(f".dsort/{DEAD}/journal/0001-000000.json", b"{")
    bucket.begun = [Begun("a.tar", "u", 0)]
    job, upload = find_garbage(bucket, machine=machine)
    assert (job.kind, upload.kind, upload.job_id) == ("job", "upload", "")
    remove_garbage(bucket, job, machine=machine)
    assert names_of(bucket) == []


def test_a_write_that_was_cut_short_is_found(bucket: UploadBucket, machine: FakeMachine) -> None:
    bucket.write(".dsort/write-0a", b"123")
    (found,) = find_garbage(bucket, machine=machine)
    assert (found.kind, found.where, found.size_bytes) == ("file", ".dsort/write-0a", 3)
    remove_garbage(bucket, found, machine=machine)
    assert names_of(bucket) == []


def test_uploads_are_the_dead_jobs_or_ownerless_but_never_a_running_jobs(
    bucket: UploadBucket, machine: FakeMachine
) -> None:
    leave_job(bucket, DEAD, machine, names=["a.tar", "shared.tar"], ago_s=30 * HOUR_S)
    leave_job(bucket, LIVE, machine, names=["b.tar", "shared.tar"], ago_s=10)
    long_ago = int((BEGIN_S - 100 * HOUR_S) * 1e9)
    names = ["a.tar", "b.tar", "shared.tar", "other.bin", f".dsort/{DEAD}/manifest.json"]
    bucket.begun = [Begun(name, f"u-{name}", long_ago) for name in names]
    found = only(find_garbage(bucket, machine=machine), "upload")
    assert {(each.where, each.job_id) for each in found} == {
        ("a.tar", DEAD),
        ("other.bin", ""),
        (f".dsort/{DEAD}/manifest.json", DEAD),
    }
    ages = {each.where: each.age_s for each in found}
    # Of a job that died yesterday, what is older may be wanted still.
    assert ages["a.tar"] == pytest.approx(30 * HOUR_S, abs=1)
    assert ages["other.bin"] == pytest.approx(100 * HOUR_S, abs=1)
    for each in found:
        remove_garbage(bucket, each, machine=machine)
    assert [each.name for each in bucket.begun] == ["b.tar", "shared.tar"]


def make_scratch(base: Path, job_id: str, owner: object, ago_s: float = 30 * HOUR_S) -> Path:
    directory = base / f"dsort-{job_id}"
    (directory / "deep").mkdir(parents=True)
    (directory / OWNER_FILE).write_text(json.dumps(owner))
    (directory / "deep" / "spill").write_bytes(b"z" * 100)
    written_at(directory, BEGIN_S - ago_s)
    return directory


def test_scratch_of_dead_jobs_of_this_bucket_is_found(
    bucket: UploadBucket, machine: FakeMachine, tmp_path: Path
) -> None:
    base = tmp_path / "tmp"
    base.mkdir()
    leave_job(bucket, LIVE, machine, names=["a.tar"], ago_s=10)
    owner = {"job_id": DEAD, "output_uri": bucket.uri, "created": "2026-01-01T00:00:00+00:00"}
    orphan = make_scratch(base, DEAD, owner)
    kept = [
        make_scratch(base, LIVE, {**owner, "job_id": LIVE}),
        make_scratch(base, "elsewhere", {**owner, "output_uri": "s3://other"}),
        make_scratch(base, "strange", [1]),
    ]
    (base / "dsort-link").symlink_to(orphan)
    found = find_garbage(bucket, scratch_bases=[base, tmp_path / "nowhere"], machine=machine)
    (scratch,) = only(found, "scratch")
    assert (scratch.where, scratch.job_id, scratch.objects) == (str(orphan), DEAD, 2)
    assert scratch.age_s == pytest.approx(30 * HOUR_S, abs=1)
    assert scratch.size_bytes > 100
    remove_garbage(bucket, scratch, machine=machine)
    remove_garbage(bucket, scratch, machine=machine)
    assert not orphan.exists()
    assert all(path.exists() for path in kept)


def test_scratch_is_as_young_as_its_job(
    bucket: UploadBucket, machine: FakeMachine, tmp_path: Path
) -> None:
    leave_job(bucket, DEAD, machine, names=["a.tar"], ago_s=2 * HOUR_S)
    make_scratch(tmp_path, DEAD, {"job_id": DEAD, "output_uri": bucket.uri})
    (scratch,) = only(find_garbage(bucket, scratch_bases=[tmp_path], machine=machine), "scratch")
    assert scratch.age_s == pytest.approx(2 * HOUR_S, abs=1)
