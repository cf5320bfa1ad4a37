"""S3 behind a proxy that cuts, delays, drops, or answers in the store's place: whatever comes, it
is a ``StorageError``, or it was tried again and the outcome is right; so for a whole job."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dsort.errors import StorageError
from dsort.retry import RetryPolicy
from dsort.storage.bucket import Bucket
from dsort.storage.limit import StoreLimits
from dsort.storage.ref import BucketRef
from dsort.storage.s3.bucket import S3Bucket
from dsort.storage.transport import Transport
from tests.support.coordinators import Coordinators
from tests.support.faulty_proxy import KINDS, FaultyProxy, faulty_proxy
from tests.support.internals import open_input
from tests.support.object_stores import MIB, count_requests
from tests.support.refusals import raises
from tests.support.seaweedfs import S3Server
from tests.support.surviving import CASES, prepare, start_arguments, undisturbed

TOKEN = ".dsort/job1/staged/0"
TRIES_MAX = 12
LIMITS = StoreLimits(
    requests_in_flight_max=4, part_bytes=5 * MIB, range_bytes=4 * MIB, request_seconds_max=1.0
)
DATA = random.Random(5).randbytes(6 * MIB)
NAMES = [f"many/{number:03}" for number in range(120)]


@pytest.fixture(scope="module")
def stored(s3_server: S3Server) -> str:
    """A bucket with objects to find and to read."""
    name, client = s3_server.new_bucket_name(), s3_server.client()
    client.create_bucket(Bucket=name)
    for each in [*NAMES[::2], "small"]:
        client.put_object(Bucket=name, Key=each, Body=each.encode())
    client.put_object(Bucket=name, Key="large", Body=DATA)
    return name


@pytest.fixture(scope="module")
def shared_proxy(s3_server: S3Server) -> Iterator[FaultyProxy]:
    with faulty_proxy(s3_server.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def proxy(shared_proxy: FaultyProxy) -> Iterator[FaultyProxy]:
    yield shared_proxy
    shared_proxy.heal()


def bucket_behind(proxy: FaultyProxy, name: str, tries_max: int = TRIES_MAX) -> S3Bucket:
    retry = RetryPolicy(tries_max=tries_max, delay_s_min=0.0, delay_s_max=0.0)
    ref = BucketRef("s3", name, endpoint_url=proxy.endpoint_url)
    return S3Bucket(ref, LIMITS, Transport(LIMITS, policy=retry))


def read_large(bucket: Bucket) -> None:
    with bucket.open("large") as opened:
        assert opened.info.size_bytes == len(DATA)
        buffer = bytearray(len(DATA))
        opened.read_into(memoryview(buffer), 0)
        assert buffer == DATA
        opened.read_into(memoryview(buffer)[:1000], 3_000_000)
        assert buffer[:1000] == DATA[3_000_000:3_001_000]


def write_new(bucket: Bucket) -> None:
    assert bucket.write_new("new", b"mine")
    assert not bucket.write_new("new", b"yours")
    assert bucket.read("new") == b"mine"
    bucket.delete("new")
    assert not bucket.stat_many(["new"])


def stage(bucket: Bucket, data: bytes) -> str:
    with bucket.stage(TOKEN, name="out", size_bytes=len(data)) as staged:
        for at in range(0, len(data), MIB):
            staged.write_at(at, [memoryview(data)[at : at + MIB]])
        return staged.finish()


def publish(bucket: Bucket) -> None:
    for overwrite in (False, True):
        receipt = stage(bucket, DATA)
        assert bucket.still_staged({TOKEN: ("out", receipt)}) == {TOKEN}
        bucket.publish(TOKEN, "out", overwrite=overwrite, receipt=receipt)
        assert bucket.stat("out").size_bytes == len(DATA)
        assert bucket.read("out") == DATA
        assert bucket.still_staged({TOKEN: ("out", receipt)}) == {TOKEN}


def abort(bucket: Bucket) -> None:
    receipt = stage(bucket, b"abc")
    bucket.write(".dsort/job1/a", b"a")
    bucket.write(".dsort/job1/b", b"b")
    bucket.discard(".dsort/job1/", names=["out"])
    assert bucket.still_staged({TOKEN: ("out", receipt)}) == set()
    assert list(bucket.list(".dsort/")) == []


def look(bucket: Bucket) -> None:
    assert bucket.exists()
    bucket.create()
    assert [info.name for info in bucket.list("many/")] == NAMES[::2]
    assert bucket.stat("small").size_bytes == 5
    assert bucket.read("small") == b"small"


def stat_many(bucket: Bucket) -> None:
    assert sorted(bucket.stat_many(NAMES)) == NAMES[::2]
    assert sorted(bucket.stat_many(NAMES[:20])) == NAMES[:20:2]


USES: dict[str, Callable[[Bucket], None]] = {
    "look": look,
    "stat many": stat_many,
    "read": read_large,
    "write new": write_new,
    "publish": publish,
    "abort": abort,
}


def clean(server: S3Server, bucket: str) -> None:
    client = server.client()
    for key in ("out", "new", ".dsort/job1/a", ".dsort/job1/b"):
        client.delete_object(Bucket=bucket, Key=key)
    for upload in client.list_multipart_uploads(Bucket=bucket).get("Uploads", []):
        client.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "short"])
@pytest.mark.parametrize("use", USES)
def test_what_passes_changes_nothing(
    use: str, kind: str, s3: S3Server, stored: str, proxy: FaultyProxy
) -> None:
    rate = 0.1 if kind == "delayed" else 0.3
    seed = f"{use} {kind}"
    print(f"seed {seed!r}")
    try:
        proxy.begin(kind, seed=seed, rate=rate, times_max=25)
        USES[use](bucket_behind(proxy, stored))
        assert proxy.heal()
    finally:
        proxy.heal()
        clean(s3, stored)


ALONE: dict[str, Callable[[Bucket], object]] = {
    "exists": lambda bucket: bucket.exists(),
    "list": lambda bucket: list(bucket.list("many/")),
    "stat": lambda bucket: bucket.stat("small"),
    "stat many": lambda bucket: bucket.stat_many(NAMES),
    "open": lambda bucket: bucket.open("small"),
    "read": lambda bucket: bucket.read("large"),
    "write": lambda bucket: bucket.write("new", b"x"),
    "write new": lambda bucket: bucket.write_new("new", b"x"),
    "delete": lambda bucket: bucket.delete("new"),
    "stage": lambda bucket: stage(bucket, b"abc"),
    "discard": lambda bucket: bucket.discard(".dsort/", names=["out"]),
}


@pytest.mark.sample(keep=3)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("short", "delayed")])
def test_what_stays_is_a_storage_error(
    kind: str, s3: S3Server, stored: str, proxy: FaultyProxy
) -> None:
    try:
        silent = []
        for use, action in ALONE.items():
            proxy.begin(kind, seed=f"{use} {kind}")
            with contextlib.suppress(StorageError):
                action(bucket_behind(proxy, stored, tries_max=2))
                silent.append(use)
            assert proxy.heal()
        # Nothing was to be said: an empty 200 is what some stores answer then.
        bare = ["exists", "delete"] if kind.startswith("nothing in 200") else []
        headless = ["exists"] if "200" in kind else []  # the reply to HEAD has no body to look at
        assert kind == "cut" or silent == (bare or headless)
    finally:
        proxy.heal()
        clean(s3, stored)


@pytest.mark.usefixtures("s3")
def test_a_short_answer_is_tried_again_and_never_a_changed_input(
    stored: str, proxy: FaultyProxy
) -> None:
    bucket = bucket_behind(proxy, stored)
    known = bucket.stat("large")
    proxy.begin("short", times_max=2)
    with open_input(bucket, "large", known.size_bytes, known.etag) as opened:
        assert opened.info == known
    assert proxy.heal() == 2
    proxy.begin("short")
    with raises(StorageError, "3,145,728", "6,291,456 bytes"):
        open_input(bucket, "large", known.size_bytes, known.etag)


@pytest.mark.usefixtures("s3")
def test_only_what_was_not_answered_is_asked_for_again(stored: str, proxy: FaultyProxy) -> None:
    bucket = bucket_behind(proxy, stored)
    made = count_requests(bucket)
    proxy.begin("dropped", times_max=3)
    assert len(bucket.stat_many(NAMES[:20])) == 10
    assert proxy.heal() == 3
    assert made == ["HeadObject"] * 23


CASE = "renamed"
FAULTS_MAX = 10


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


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_a_job_ends_right_or_with_a_storage_error(
    kind: str, s3: S3Server, source: str, begun: Coordinators, base: Path, tmp_path: Path
) -> None:
    seed = f"job {kind}"
    print(f"seed {seed!r}")
    target = tmp_path.name
    buckets = {"input_bck": f"s3://{source}/in", "output_bck": f"s3://{source}/{target}"}
    case = replace(CASES[CASE], fields={**CASES[CASE].fields, **buckets})
    with faulty_proxy(s3.endpoint_url) as proxy:
        proxy.delay_s = 0.2
        proxy.begin(kind, seed=seed, rate=0.1, times_max=FAULTS_MAX)
        env = {**s3.environment(), "AWS_ENDPOINT_URL": proxy.endpoint_url}
        scratch = ["--scratch", str(tmp_path / "scratch")]
        ended = begun.run(tmp_path, *start_arguments(case, *scratch), env=env, flush_s=0.2)
        assert proxy.heal()
    print(ended.code, ended.err)
    assert ended.code in (0, 4)
    assert "Traceback" not in ended.err
    found = objects_of(s3, source, target)
    manifests = [name for name in found if name.endswith("manifest.json")]
    assert len(manifests) == (ended.code == 0)
    if manifests:
        expected = undisturbed(CASE, base)
        assert json.loads(found[manifests[0]])["outputs"] == expected.manifest["outputs"]
        shards = {name: data for name, data in found.items() if name.endswith(".tar")}
        assert shards == expected.shards
        assert s3.unfinished_uploads(source) == []


def objects_of(server: S3Server, bucket: str, prefix: str) -> dict[str, bytes]:
    client, found = server.client(), {}
    for each in client.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/").get("Contents", []):
        got = client.get_object(Bucket=bucket, Key=each["Key"])
        found[each["Key"].removeprefix(f"{prefix}/")] = got["Body"].read()
    return found
