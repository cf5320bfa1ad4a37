"""A store that heeds ``If-None-Match`` as uploads are completed need not be asked for each name."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError

from dsort.errors import NamesTakenError, StorageError
from dsort.storage.limit import StoreLimits
from dsort.storage.ref import BucketRef
from dsort.storage.s3.bucket import S3Bucket
from tests.support.object_stores import NO_WAIT, TOKEN, count_requests, new_s3_bucket, upload
from tests.support.object_stores import waiting as waiting_in
from tests.support.seaweedfs import S3Server


@pytest.fixture
def bucket(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Bucket:
    monkeypatch.setattr("dsort.storage.s3.bucket.PROBED_AFTER", 1)
    return new_s3_bucket(s3, retry=NO_WAIT)


def publish(bucket: S3Bucket, name: str, data: bytes = b"abc") -> None:
    receipt = upload(bucket, name, data)
    bucket.publish(f"{TOKEN}-{name}", name, overwrite=False, receipt=receipt)


def test_after_a_probe_a_name_takes_one_request(bucket: S3Bucket) -> None:
    publish(bucket, "first")
    publish(bucket, "second")
    receipt = upload(bucket, "third", b"abc")
    made = count_requests(bucket)
    bucket.publish(TOKEN, "third", overwrite=False, receipt=receipt)
    assert made == ["CompleteMultipartUpload"]
    assert [each.name for each in bucket.list()] == ["first", "second", "third"]
    assert list(bucket.list(".dsort/")) == [], "the probe leaves nothing"
    assert waiting_in(bucket) == []


def test_what_was_published_meanwhile_is_not_replaced(bucket: S3Bucket) -> None:
    publish(bucket, "first")
    publish(bucket, "second")
    ours, theirs = upload(bucket, "a", b"ours"), upload(bucket, "a", b"theirs")
    bucket.publish(f"{TOKEN}1", "a", overwrite=False, receipt=theirs)
    with pytest.raises(NamesTakenError):
        bucket.publish(f"{TOKEN}2", "a", overwrite=False, receipt=ours)
    assert bucket.read("a") == b"theirs"
    bucket.publish(f"{TOKEN}1", "a", overwrite=False, receipt=theirs)  # again is no error
    bucket.publish(f"{TOKEN}2", "a", overwrite=True, receipt=ours)
    assert bucket.read("a") == b"ours"


@pytest.mark.parametrize("how", ["ignored", "not offered", "failing"])
def test_a_store_that_does_not_heed_it_is_asked_for_each_name(
    bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    api = bucket._client.api
    complete = api.complete_multipart_upload

    def complete_as_others_do(**request: Any) -> Any:
        if request.pop("IfNoneMatch", "") and how != "ignored":
            code = {"not offered": "NotImplemented", "failing": "InternalError"}[how]
            if how == "not offered" or ".dsort/" in request["Key"]:
                raise ClientError({"Error": {"Code": code}}, "CompleteMultipartUpload")
        return complete(**request)

    monkeypatch.setattr(api, "complete_multipart_upload", complete_as_others_do)
    for name in ("first", "second", "third"):
        publish(bucket, name)
    with pytest.raises(StorageError, match="exists already"):
        publish(bucket, "first", b"other")
    assert bucket.read("first") == b"abc"


def test_aws_is_known_to_heed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    known = S3Bucket(BucketRef("s3", "images", region="eu-central-1"), StoreLimits())
    assert known._condition.is_heeded(TOKEN)
    other = BucketRef("s3", "images", endpoint_url="https://amazonaws.com.example")
    assert not S3Bucket(other, StoreLimits())._condition.is_heeded(TOKEN)


def test_of_all_who_write_over_an_object_one_does(bucket: S3Bucket) -> None:
    bucket.write("lease", b"before")
    etag = bucket.stat("lease").etag
    with ThreadPoolExecutor(8) as threads:
        written = list(
            threads.map(lambda n: bucket.write_over("lease", b"by %d" % n, etag), range(8))
        )
    assert written.count(True) == 1
    assert bucket.read("lease") == b"by %d" % written.index(True)


def test_a_store_that_refuses_conditions_that_hold_is_written_to_without_any(
    bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = bucket._client.api
    put = api.put_object

    def put_as_radosgw_16_does(**request: Any) -> Any:
        if "IfMatch" in request:
            said = {"Error": {"Code": "PreconditionFailed"}}
            raise ClientError({**said, "ResponseMetadata": {"HTTPStatusCode": 412}}, "PutObject")
        return put(**request)

    bucket.write("lease", b"before")
    etag = bucket.stat("lease").etag
    monkeypatch.setattr(api, "put_object", put_as_radosgw_16_does)
    assert bucket.write_over("lease", b"after it", etag)
    assert bucket.read("lease") == b"after it"
    assert not bucket.write_over("lease", b"too late", etag)
    assert bucket.read("lease") == b"after it"
    assert not bucket.write_over("none", b"", etag)
    assert list(bucket.list(".dsort/")) == [], "the probe leaves nothing"
