"""What only an S3 store has, against a real server: reads pinned to what was opened, access that is
denied, odd names and long listings."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from dsort.errors import (
    ChangedInputError,
    ObjectNotFoundError,
    StorageAccessError,
    StorageError,
)
from dsort.storage.ref import BucketRef
from dsort.storage.s3.bucket import S3Bucket
from tests.support.object_stores import (
    MIB,
    NO_WAIT,
    SMALL,
    count_requests,
    new_s3_bucket,
    upload,
)
from tests.support.seaweedfs import S3Server

ODD_NAMES = ["a b/ü+%41.tar", "x#y?z&q=1", "日本/語", "~*[]{}^|<>!$'(),;:@", "tab\tx", "a.b-c_d"]


@pytest.fixture
def bucket(s3: S3Server) -> S3Bucket:
    return new_s3_bucket(s3, retry=NO_WAIT)


@pytest.mark.parametrize(
    "act",
    [
        lambda bucket: bucket.read("a"),
        lambda bucket: bucket.write("a", b""),
        lambda bucket: bucket.write_new("a", b""),
        lambda bucket: list(bucket.list()),
        lambda bucket: bucket.discard(".dsort/job1/"),
    ],
)
def test_a_bucket_that_is_not_there_is_not_found(
    s3: S3Server, act: Callable[[S3Bucket], object]
) -> None:
    bucket = S3Bucket(BucketRef("s3", "never-was", endpoint_url=s3.endpoint_url), SMALL)
    assert not bucket.exists()
    with pytest.raises(ObjectNotFoundError, match="never-was"):
        act(bucket)


def test_a_bucket_that_was_seen_is_not_looked_for_again_to_be_made(bucket: S3Bucket) -> None:
    made = count_requests(bucket)
    assert bucket.exists()
    bucket.create()
    assert made == ["HeadBucket"]


def test_who_may_read_only_is_refused_with_the_reason(
    bucket: S3Bucket, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.write("a", b"abc")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.reader_access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.reader_secret_key)
    reader = pickle.loads(pickle.dumps(bucket))
    assert reader.read("a") == b"abc"
    for act in (
        lambda: reader.write("a", b""),
        lambda: reader.delete("a"),
        lambda: upload(reader, "b", b"x"),
    ):
        with pytest.raises(StorageAccessError) as caught:
            act()
        assert "credentials" in caught.value.hint
        assert s3.reader_secret_key not in str(caught.value)


def test_a_wrong_secret_is_an_access_error_that_does_not_show_it(
    bucket: S3Bucket, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "5ec2e7")
    stranger = pickle.loads(pickle.dumps(bucket))
    for act in (lambda: stranger.read("a"), stranger.exists, lambda: list(stranger.list())):
        with pytest.raises(StorageAccessError) as caught:
            act()
        assert "5ec2e7" not in caught.value.message + caught.value.hint
        assert s3.access_key not in caught.value.message


# --- reading -----------------------------------------------------------------------------------


def test_a_whole_read_is_one_request_and_a_large_one_several(
    bucket: S3Bucket, rng: random.Random
) -> None:
    data = rng.randbytes(11 * MIB)
    bucket.write("a", data[: 3 * MIB])
    bucket.write("large", data)
    made = count_requests(bucket)
    assert bucket.read("a") == data[: 3 * MIB]
    assert made == ["GetObject"]
    assert bucket.read("large") == data
    assert made == ["GetObject"] * 4


def test_windows_of_a_large_object_are_one_request(bucket: S3Bucket, rng: random.Random) -> None:
    data = rng.randbytes(11 * MIB)
    bucket.write("large", data)
    made = count_requests(bucket)
    window = memoryview(bytearray(MIB))
    with bucket.open("large") as opened:
        for at in range(0, len(data), MIB):
            opened.read_into(window, at)
            assert window == data[at : at + MIB]
    assert made == ["GetObject"]


@pytest.mark.parametrize("how", ["changed", "shorter", "removed"])
def test_an_object_that_changes_while_it_is_read_is_an_error(bucket: S3Bucket, how: str) -> None:
    bucket.write("a", bytes(3 * MIB))
    with bucket.open("a") as opened:
        opened.read_into(memoryview(bytearray(10)), 0)
        if how == "removed":
            bucket.delete("a")
        else:
            bucket.write("a", b"x" * (3 * MIB if how == "changed" else 5))
        with pytest.raises((ChangedInputError, ObjectNotFoundError), match="a in bucket"):
            opened.read_into(memoryview(bytearray(10)), 2 * MIB)


def test_many_threads_may_use_one_bucket(bucket: S3Bucket) -> None:
    def work(number: int) -> bool:
        name, data = f"n-{number}", b"%d" % number * 1000
        bucket.write(name, data)
        return bucket.read(name) == data and bucket.stat(name).size_bytes == len(data)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(40)))


# --- names and listing -------------------------------------------------------------------------


def test_odd_names_come_back_byte_for_byte(bucket: S3Bucket, s3: S3Server) -> None:
    for name in ODD_NAMES:
        bucket.write(name, name.encode())
    assert [info.name for info in bucket.list()] == sorted(ODD_NAMES)
    keys = [
        each["Key"]
        for each in s3.client().list_objects_v2(Bucket=bucket.uri[len("s3://") :])["Contents"]
    ]
    assert sorted(keys) == sorted(ODD_NAMES)
    for name in ODD_NAMES:
        assert bucket.read(name) == name.encode()
        assert [info.name for info in bucket.list(name[:3])] == [name]
    bucket._objects.delete(ODD_NAMES)
    assert list(bucket.list()) == []


@pytest.mark.exhaustive
def test_all_pages_are_listed(bucket: S3Bucket) -> None:
    names = [f"train/shard-{number:05d}.tar" for number in range(1_100)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: bucket.write(name, b""), names))
    made = count_requests(bucket)
    assert [info.name for info in bucket.list("train/sh")] == names
    assert made == ["ListObjectsV2"] * 2
    del made[:]
    assert bucket.stat_many([*names, "train/shard-x"]).keys() == set(names)
    assert made.count("HeadObject") == 1  # train/shard-x: a listing may lack what is there
    assert set(made) == {"ListObjectsV2", "HeadObject"}
    bucket.discard(".dsort/")


def test_marks_of_folders_are_not_listed(bucket: S3Bucket, s3: S3Server) -> None:
    s3.client().put_object(Bucket=bucket.uri[len("s3://") :], Key="train/", Body=b"")
    bucket.write("train/a", b"")
    assert [info.name for info in bucket.list()] == ["train/a"]


def test_names_that_are_not_unicode_are_refused(bucket: S3Bucket) -> None:
    with pytest.raises(StorageError, match="not Unicode"):
        bucket.write("a\udcff", b"")


def test_a_connection_is_used_again_by_the_next_read(bucket: S3Bucket, rng: random.Random) -> None:
    data = rng.randbytes(3 * MIB)
    bucket.write("a", data)
    manager = bucket._client.api._endpoint.http_session._manager
    [pool] = map(manager.pools.get, manager.pools.keys())
    opened = pool.num_connections
    for _ in range(3):
        assert bucket.read("a") == data
    assert pool.num_connections == opened


def test_buckets_share_what_is_known_of_services_and_nothing_else(
    bucket: S3Bucket, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.write("a", b"abc")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "5ec2e7")
    stranger = pickle.loads(pickle.dumps(bucket))
    with pytest.raises(StorageAccessError):
        stranger.read("a")
    assert bucket.read("a") == b"abc"
