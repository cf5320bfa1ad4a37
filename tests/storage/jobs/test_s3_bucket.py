"""What only an S3 store has, against a real server: reads pinned to what was opened, access that is
denied, odd names, long listings, conditions that it may not heed, and what it keeps while an object
is replaced."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from dsort.errors import (
    ChangedInputError,
    NamesTakenError,
    ObjectNotFoundError,
    StorageAccessError,
    StorageError,
)
from dsort.storage.bucket import COPY
from dsort.storage.limit import StoreLimits
from dsort.storage.ref import BucketRef
from dsort.storage.s3 import copies as s3_copies
from dsort.storage.s3.bucket import S3Bucket
from tests.support.object_stores import (
    MIB,
    NO_WAIT,
    SMALL,
    TOKEN,
    count_requests,
    new_s3_bucket,
    upload,
    waiting,
)
from tests.support.object_stores import waiting as waiting_in
from tests.support.refusals import raises
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
        with raises(StorageAccessError, hint="credentials") as caught:
            act()
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
    with raises(StorageError, repr("a\udcff")):
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


@pytest.fixture
def asked(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Bucket:
    monkeypatch.setattr("dsort.storage.s3.bucket.PROBED_AFTER", 1)
    return new_s3_bucket(s3, retry=NO_WAIT)


def publish(asked: S3Bucket, name: str, data: bytes = b"abc") -> None:
    receipt = upload(asked, name, data)
    asked.publish(f"{TOKEN}-{name}", name, overwrite=False, receipt=receipt)


def test_after_a_probe_a_name_takes_one_request(asked: S3Bucket) -> None:
    publish(asked, "first")
    publish(asked, "second")
    receipt = upload(asked, "third", b"abc")
    made = count_requests(asked)
    asked.publish(TOKEN, "third", overwrite=False, receipt=receipt)
    assert made == ["CompleteMultipartUpload"]
    assert [each.name for each in asked.list()] == ["first", "second", "third"]
    assert list(asked.list(".dsort/")) == [], "the probe leaves nothing"
    assert waiting_in(asked) == []


def test_what_was_published_meanwhile_is_not_replaced(asked: S3Bucket) -> None:
    publish(asked, "first")
    publish(asked, "second")
    ours, theirs = (
        upload(asked, "a", b"ours"),
        upload(asked, "a", b"theirs"),
    )
    asked.publish(f"{TOKEN}1", "a", overwrite=False, receipt=theirs)
    with pytest.raises(NamesTakenError):
        asked.publish(f"{TOKEN}2", "a", overwrite=False, receipt=ours)
    assert asked.read("a") == b"theirs"
    asked.publish(f"{TOKEN}1", "a", overwrite=False, receipt=theirs)  # again is no error
    asked.publish(f"{TOKEN}2", "a", overwrite=True, receipt=ours)
    assert asked.read("a") == b"ours"


@pytest.mark.parametrize("how", ["ignored", "not offered", "failing"])
def test_a_store_that_does_not_heed_it_is_asked_for_each_name(
    asked: S3Bucket, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    api = asked._client.api
    complete = api.complete_multipart_upload

    def complete_as_others_do(**request: Any) -> Any:
        if request.pop("IfNoneMatch", "") and how != "ignored":
            code = {"not offered": "NotImplemented", "failing": "InternalError"}[how]
            if how == "not offered" or ".dsort/" in request["Key"]:
                raise ClientError({"Error": {"Code": code}}, "CompleteMultipartUpload")
        return complete(**request)

    monkeypatch.setattr(api, "complete_multipart_upload", complete_as_others_do)
    for name in ("first", "second", "third"):
        publish(asked, name)
    with raises(NamesTakenError, "first"):
        publish(asked, "first", b"other")
    assert asked.read("first") == b"abc"


def test_aws_is_known_to_heed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    known = S3Bucket(BucketRef("s3", "images", region="eu-central-1"), StoreLimits())
    assert known._condition.is_heeded(TOKEN)
    other = BucketRef("s3", "images", endpoint_url="https://amazonaws.com.example")
    assert not S3Bucket(other, StoreLimits())._condition.is_heeded(TOKEN)


def test_of_all_who_write_over_an_object_one_does(asked: S3Bucket) -> None:
    asked.write("lease", b"before")
    etag = asked.stat("lease").etag
    with ThreadPoolExecutor(8) as threads:
        written = list(
            threads.map(lambda n: asked.write_over("lease", b"by %d" % n, etag), range(8))
        )
    assert written.count(True) == 1
    assert asked.read("lease") == b"by %d" % written.index(True)


def test_a_store_that_refuses_conditions_that_hold_is_written_to_without_any(
    asked: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = asked._client.api
    put = api.put_object

    def put_as_radosgw_16_does(**request: Any) -> Any:
        if "IfMatch" in request:
            said = {"Error": {"Code": "PreconditionFailed"}}
            raise ClientError({**said, "ResponseMetadata": {"HTTPStatusCode": 412}}, "PutObject")
        return put(**request)

    asked.write("lease", b"before")
    etag = asked.stat("lease").etag
    monkeypatch.setattr(api, "put_object", put_as_radosgw_16_does)
    assert asked.write_over("lease", b"after it", etag)
    assert asked.read("lease") == b"after it"
    assert not asked.write_over("lease", b"too late", etag)
    assert asked.read("lease") == b"after it"
    assert not asked.write_over("none", b"", etag)
    assert list(asked.list(".dsort/")) == [], "the probe leaves nothing"


KEPT = ".dsort/job1/replaced/0"


def test_a_copy_has_the_bytes_and_what_is_said_of_them(s3: S3Server) -> None:
    bucket, client = new_s3_bucket(s3), s3.client()
    where = {"Bucket": bucket._client.bucket, "Key": "a b+%41/é"}
    client.put_object(**where, Body=b"old", ContentType="text/x-old", Metadata={"who": "me"})
    assert bucket.keep_aside(where["Key"], KEPT) == COPY
    bucket.publish(
        TOKEN, where["Key"], overwrite=True, receipt=upload(bucket, where["Key"], b"new")
    )
    bucket.put_back(KEPT, where["Key"], receipt=COPY)
    found = client.get_object(**where)
    assert (found["Body"].read(), found["ContentType"]) == (b"old", "text/x-old")
    assert found["Metadata"] == {"who": "me"}


def test_a_version_is_kept_where_the_bucket_keeps_versions(s3: S3Server) -> None:
    bucket, client = new_s3_bucket(s3), s3.client()
    name = bucket._client.bucket
    client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    first = client.put_object(Bucket=name, Key="a", Body=b"old")["VersionId"]
    made = count_requests(bucket)
    receipt = bucket.keep_aside("a", KEPT)
    assert json.loads(receipt) == {"version": first}
    assert "CopyObject" not in made
    assert list(bucket.list(".dsort/")) == []
    bucket.publish(TOKEN, "a", overwrite=True, receipt=upload(bucket, "a", b"new and longer"))
    assert bucket.read("a") == b"new and longer"
    bucket.put_back(KEPT, "a", receipt=receipt)
    assert bucket.read("a") == b"old"


def test_a_large_object_is_copied_in_parts(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_copies, "COPIED_AT_ONCE_BYTES_MAX", 6 * MIB)
    monkeypatch.setattr(s3_copies, "PART_BYTES", 5 * MIB)
    bucket, data = new_s3_bucket(s3), random.Random(8).randbytes(12 * MIB + 7)
    bucket.write("a", data)
    made = count_requests(bucket)
    assert bucket.keep_aside("a", KEPT) == COPY
    assert made.count("UploadPartCopy") == 3
    assert bucket.read(KEPT) == data
    bucket.delete("a")
    bucket.put_back(KEPT, "a", receipt=COPY)
    assert bucket.read("a") == data
    assert waiting(bucket) == []


def test_a_copy_in_parts_is_made_again_after_a_lost_reply(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upload is complete by then, so that it cannot be aborted."""
    monkeypatch.setattr(s3_copies, "COPIED_AT_ONCE_BYTES_MAX", 6 * MIB)
    monkeypatch.setattr(s3_copies, "PART_BYTES", 5 * MIB)
    bucket, data = new_s3_bucket(s3), random.Random(9).randbytes(12 * MIB + 7)
    bucket.write("a", data)
    lost = []

    def lose(**reply: object) -> None:
        if not lost:
            lost.append(reply)
            raise ConnectionClosedError(endpoint_url="s3")

    def refuse(**request: object) -> None:
        raise ClientError({"Error": {"Code": "NoSuchUpload"}}, "AbortMultipartUpload")

    events = bucket._client.api.meta.events
    events.register("after-call.s3.CompleteMultipartUpload", lose)
    events.register("before-call.s3.AbortMultipartUpload", refuse)  # SeaweedFS does not mind
    assert bucket.keep_aside("a", KEPT) == COPY
    assert lost
    assert bucket.read(KEPT) == data


def test_who_may_not_write_is_refused_before_anything_is_replaced(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = new_s3_bucket(s3)
    bucket.write("a", b"old")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.reader_access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.reader_secret_key)
    reader = type(bucket)(bucket._ref, bucket._limits)
    with raises(StorageAccessError, "AccessDenied"):
        reader.keep_aside("a", KEPT)
