"""A job from one S3 bucket to another that dies, against a real server: resumed, it gives the
bytes that directories give, and never leaves an unfinished upload behind."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.support.coordinators import Coordinators, Ended
from tests.support.fault_points import PointFault, arm
from tests.support.seaweedfs import S3Server
from tests.support.surviving import CASES, Case, prepare, start_arguments, undisturbed

CASE = "renamed"


@pytest.fixture(scope="module")
def source(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A bucket with the inputs in ``in/``."""
    root, name = tmp_path_factory.mktemp("source"), s3_server.new_bucket_name()
    prepare(root, CASES[CASE])
    client = s3_server.client()
    client.create_bucket(Bucket=name)
    for path in sorted((root / "in").iterdir()):
        client.upload_file(str(path), name, f"in/{path.name}")
    return name


@dataclass
class Store:
    """The server, and where in its one bucket a job reads and writes."""

    server: S3Server
    bucket: str
    target: str
    begun: Coordinators
    root: Path

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/{self.target}"

    def run(self, *arguments: str, points: Path | None = None) -> Ended:
        scratch = [] if arguments[0] == "stop" else ["--scratch", str(self.root / "scratch")]
        env = {**self.server.environment(), "AWS_ENDPOINT_URL": self.server.endpoint_url}
        return self.begun.run(self.root, *arguments, *scratch, points=points, env=env, flush_s=0.2)

    def start(self, *faults: PointFault, **fields: object) -> Ended:
        points = arm(self.root / "points", *faults)
        buckets = {"input_bck": f"s3://{self.bucket}/in", "output_bck": self.uri}
        case: Case = replace(CASES[CASE], fields={**CASES[CASE].fields, **buckets, **fields})
        return self.run(*start_arguments(case), points=points)

    def job(self) -> str:
        (job,) = {name.split("/")[1] for name in self.objects() if name.startswith(".dsort/")}
        return job

    def objects(self) -> dict[str, bytes]:
        client, found = self.server.client(), {}
        listed = client.list_objects_v2(Bucket=self.bucket, Prefix=f"{self.target}/")
        for each in listed.get("Contents", []):
            got = client.get_object(Bucket=self.bucket, Key=each["Key"])
            found[each["Key"].removeprefix(f"{self.target}/")] = got["Body"].read()
        return found

    def is_whole(self, base: Path) -> None:
        """The result is there, and nothing else."""
        expected = undisturbed(CASE, base)
        found, job = self.objects(), self.job()
        manifest = json.loads(found.pop(f".dsort/{job}/manifest.json"))
        index = json.loads(found.pop(f"{job}-index.json"))
        assert found.pop(manifest["reactions_file"]).decode() == expected.names
        assert found == expected.shards
        assert {**index, "name": ""} == expected.index
        assert manifest["outputs"] == expected.manifest["outputs"]
        assert manifest["reactions"] == expected.manifest["reactions"]
        self.is_tidy()

    def is_tidy(self) -> None:
        assert self.server.unfinished_uploads(self.bucket) == []
        assert list((self.root / "scratch").glob("*")) == []


@pytest.fixture
def store(s3: S3Server, source: str, begun: Coordinators, tmp_path: Path) -> Store:
    return Store(s3, source, tmp_path.name, begun, tmp_path)


DEATHS = [
    PointFault("create:finish", 2, "kill parent"),
    PointFault("commit:start"),
    PointFault("s3 publish:end", 2),
    PointFault("s3 publish:start", about="manifest"),
]


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("fault", DEATHS, ids=lambda fault: fault.point)
def test_a_killed_job_is_resumed(fault: PointFault, store: Store, base: Path) -> None:
    assert store.start(fault).code == -signal.SIGKILL
    assert [name for name in store.objects() if name.endswith("manifest.json")] == []
    ended = store.run("resume", store.job(), "--bucket", store.uri, "--workers", "2")
    assert ended.code == 0, ended.err
    store.is_whole(base)


@pytest.mark.exhaustive
@pytest.mark.parametrize("then", ["gc", "resume"])
@pytest.mark.parametrize(
    "fault",
    [
        PointFault("s3 keep:end", about="out-2"),
        PointFault("s3 publish:end", about="out-2"),
        PointFault("s3 publish:start", about="manifest"),
    ],
    ids=lambda fault: fault.point,
)
def test_what_a_killed_job_replaced_is_kept(
    fault: PointFault, then: str, store: Store, base: Path
) -> None:
    old = {"out-0.tar": b"old", "out-2.tar": b"older", "out-3.tar": b"o" * 10_000}
    client = store.server.client()
    for name, data in old.items():
        client.put_object(Bucket=store.bucket, Key=f"{store.target}/{name}", Body=data)
    assert store.start(fault, overwrite=True).code == -signal.SIGKILL
    if then == "gc":
        ended = store.run("gc", store.uri, "--remove", "--older-than", "0s")
        assert store.objects() == old
        store.is_tidy()
    else:
        ended = store.run("resume", store.job(), "--bucket", store.uri, "--workers", "2")
        store.is_whole(base)
    assert ended.code == 0, ended.err


def test_a_killed_worker_leaves_no_upload(store: Store, base: Path) -> None:
    ended = store.start(PointFault("create:finish", 2))
    assert ended.code == 0, ended.err
    store.is_whole(base)


@pytest.mark.exhaustive
@pytest.mark.parametrize("point", ["create:finish", "s3 publish:end"])
def test_a_killed_job_is_removed(point: str, store: Store) -> None:
    action = "kill" if point.startswith("s3") else "kill parent"
    assert store.start(PointFault(point, 3, action)).code == -signal.SIGKILL
    ended = store.run("gc", store.uri, "--remove", "--older-than", "0s")
    assert ended.code == 0, ended.err
    assert store.objects() == {}
    store.is_tidy()


def test_a_stopped_job_keeps_its_uploads_and_is_resumed(store: Store, base: Path) -> None:
    ended = store.start(PointFault("create:finish", 3, "interrupt parent"))
    assert ended.code == 130, ended.err
    assert "of its work are kept" in ended.err
    shards = len(undisturbed(CASE, base).shards)
    assert len(store.server.unfinished_uploads(store.bucket)) >= 2
    written = arm(store.root / "written", PointFault("create:finish", shards + 1), may_miss=True)
    ended = store.run("resume", store.job(), "--bucket", store.uri, points=written)
    assert ended.code == 0, ended.err
    store.is_whole(base)
    assert len([*written.glob("0-*")]) <= shards - 2  # those that were uploaded stay


@pytest.mark.exhaustive
def test_a_stopped_job_is_discarded_by_the_command_of_its_message(store: Store) -> None:
    ended = store.start(PointFault("create:finish", 3, "interrupt parent"))
    assert f"dsort gc {store.uri} --job {store.job()} --remove" in " ".join(ended.err.split())
    ended = store.run("gc", store.uri, "--job", store.job(), "--remove")
    assert ended.code == 0, ended.err
    assert store.objects() == {}
    store.is_tidy()
