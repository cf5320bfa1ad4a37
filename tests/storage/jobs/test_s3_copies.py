"""What an S3 bucket keeps while it is replaced: a version where it keeps those, else a copy, in
parts if it is large."""

from __future__ import annotations

import json
import random

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from dsort.errors import StorageError
from dsort.storage.bucket import COPY
from dsort.storage.s3 import copies as s3_copies
from tests.support.object_stores import MIB, TOKEN, count_requests, new_s3_bucket, upload, waiting
from tests.support.seaweedfs import S3Server

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
    with pytest.raises(StorageError, match="cannot keep a while it is replaced"):
        reader.keep_aside("a", KEPT)
