"""Uploads to S3, against a real server: they show nothing until they are published, appear whole,
are sent again where they fail, and leave nothing behind."""

from __future__ import annotations

import base64
import random
from typing import Any

import pytest
from awscrt.checksums import crc32c
from botocore.exceptions import ClientError
from msgspec.structs import replace

from dsort.errors import InvariantError, NamesTakenError, StorageError
from dsort.storage.s3 import upload as s3_receipt
from dsort.storage.s3 import upload as s3_upload
from dsort.storage.s3.bucket import S3Bucket
from dsort.storage.s3.upload import Receipt
from tests.support.object_stores import (
    MIB,
    NO_WAIT,
    SMALL,
    TOKEN,
    answer,
    count_requests,
    new_s3_bucket,
    upload,
    waiting,
)
from tests.support.refusals import raises
from tests.support.seaweedfs import S3Server


@pytest.fixture
def bucket(s3: S3Server) -> S3Bucket:
    return new_s3_bucket(s3, retry=NO_WAIT)


def test_an_upload_of_several_parts_appears_whole(bucket: S3Bucket, rng: random.Random) -> None:
    data = rng.randbytes(13 * MIB + 5)
    receipt = upload(bucket, "a b/out.tar", data)
    assert list(bucket.list()) == []
    assert waiting(bucket) == ["a b/out.tar"]
    made = count_requests(bucket)
    bucket.publish(TOKEN, "a b/out.tar", overwrite=False, receipt=receipt)
    assert made == ["HeadObject", "CompleteMultipartUpload"]  # the store checked the whole
    assert bucket.read("a b/out.tar") == data
    assert waiting(bucket) == []


@pytest.fixture
def no_etags_in_receipts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_receipt, "ETAGS_KEPT_MAX", 1)


@pytest.mark.usefixtures("no_etags_in_receipts")
def test_parts_that_are_not_in_the_receipt_are_asked_for(
    bucket: S3Bucket, rng: random.Random
) -> None:
    data = rng.randbytes(11 * MIB)
    receipt = upload(bucket, "a b/ü.tar", data)
    assert Receipt.parse(receipt).etags == ()
    made = count_requests(bucket)
    for _ in range(2):
        bucket.publish(TOKEN, "a b/ü.tar", overwrite=False, receipt=receipt)
    assert made[:3] == ["HeadObject", "ListParts", "CompleteMultipartUpload"]
    assert made.count("CompleteMultipartUpload") == 1
    assert bucket.read("a b/ü.tar") == data
    bucket.publish(TOKEN, "a b/ü.tar", overwrite=True, receipt=receipt)  # it is gone: its result
    assert bucket.still_staged({TOKEN: ("a b/ü.tar", receipt)}) == {TOKEN}


@pytest.mark.usefixtures("no_etags_in_receipts")
def test_a_part_that_another_writer_wrote_is_not_published(bucket: S3Bucket) -> None:
    receipt = upload(bucket, "a", bytes(11 * MIB))
    client = bucket._client
    client.api.upload_part(
        **client.target("a"), UploadId=Receipt.parse(receipt).upload_id, PartNumber=2, Body=b"other"
    )
    with raises(StorageError, "4 parts"):
        bucket.publish(TOKEN, "a", overwrite=False, receipt=receipt)
    assert list(bucket.list()) == []
    bucket.discard(".dsort/", names=["a"])


@pytest.mark.parametrize("overwrite", [False, True])
def test_publishing_again_what_a_lost_call_published_is_no_error(
    bucket: S3Bucket, overwrite: bool
) -> None:
    receipt = upload(bucket, "a", b"abc")
    for _ in range(2):
        bucket.publish(TOKEN, "a", overwrite=overwrite, receipt=receipt)
    assert bucket.read("a") == b"abc"
    bucket.write("a", b"abcd")
    bucket.discard(".dsort/", names=["a"])
    with pytest.raises(StorageError):
        bucket.publish(TOKEN, "a", overwrite=False, receipt=receipt)
    assert bucket.read("a") == b"abcd"


def test_the_same_content_by_another_writer_is_in_the_way(bucket: S3Bucket) -> None:
    ours, theirs = upload(bucket, "a", b"abc"), upload(bucket, "a", b"abc")
    bucket.publish(TOKEN, "a", overwrite=False, receipt=theirs)
    with raises(NamesTakenError, bucket.uri):
        bucket.publish(TOKEN, "a", overwrite=False, receipt=ours)


def test_a_store_that_ignores_the_condition_is_asked_before(bucket: S3Bucket) -> None:
    bucket.write("a", b"old")
    receipt = upload(bucket, "a", b"abc")
    made = count_requests(bucket)
    with raises(NamesTakenError, bucket.uri):
        bucket.publish(TOKEN, "a", overwrite=False, receipt=receipt)
    assert "CompleteMultipartUpload" not in made


def test_a_receipt_is_of_one_name(bucket: S3Bucket) -> None:
    receipt = upload(bucket, "a", b"abc")
    with pytest.raises(InvariantError):
        bucket.publish(TOKEN, "b", overwrite=True, receipt=receipt)
    bucket.discard(".dsort/", names=["a"])


def test_an_upload_that_is_not_finished_is_aborted_when_closed(bucket: S3Bucket) -> None:
    for _ in range(2):  # the second time, its buffers are free again
        with bucket.stage(TOKEN, name="a") as staged:
            staged.write_at(0, [bytes(11 * MIB)])
            assert waiting(bucket) == ["a"]
        assert waiting(bucket) == []


def test_nothing_is_begun_before_there_is_a_part(bucket: S3Bucket) -> None:
    made = count_requests(bucket)
    with bucket.stage(TOKEN, name="a") as staged:
        staged.write_at(0, [b"abc"])
    assert made == []


def test_discard_aborts_uploads_of_the_named_and_below_the_token_only(s3: S3Server) -> None:
    bucket = new_s3_bucket(s3, prefix="some/prefix")
    names = ["out/a", "out/b", "out/c", "x", ".dsort/job1/manifest.json", ".dsort/job2/x"]
    for name in names:
        upload(bucket, name, b"abc")
    s3.client().create_multipart_upload(Bucket=bucket.uri.split("/")[2], Key="some/other")
    bucket.discard(".dsort/job1/", names=["out/a", "out/c", "never"])
    assert waiting(bucket) == [".dsort/job2/x", "out/b", "x"]
    for left in list(bucket.unfinished_uploads()):
        assert left.began_ns > 1_700_000_000_000_000_000
        bucket.abort_upload(left.name, left.upload_id)
        bucket.abort_upload(left.name, left.upload_id)
    assert s3.unfinished_uploads(bucket.uri.split("/")[2]) == ["some/other"]


def test_what_can_still_be_published_is_waiting_or_was_published(bucket: S3Bucket) -> None:
    tokens = {}
    for name in ("published", "waiting", "aborted", "overwritten"):
        tokens[f".dsort/job1/{name}"] = (name, upload(bucket, name, b"abc"))
    for name in ("published", "overwritten"):
        token = f".dsort/job1/{name}"
        bucket.publish(token, name, overwrite=False, receipt=tokens[token][1])
    bucket.write("overwritten", b"abd")
    bucket.discard(".dsort/job9/", names=["aborted"])
    found = bucket.still_staged(tokens)
    assert found == {".dsort/job1/published", ".dsort/job1/waiting"}


def test_uploads_at_once_share_the_buffers(bucket: S3Bucket, rng: random.Random) -> None:
    datas = [rng.randbytes(6 * MIB + number) for number in range(4)]
    staged = [bucket.stage(f"{TOKEN}{number}", name=f"s-{number}") for number in range(4)]
    for at in range(0, 7 * MIB, MIB):  # all at the same pace: more of them than buffers
        for each, data in zip(staged, datas, strict=True):
            each.write_at(min(at, len(data)), [memoryview(data)[at : at + MIB]])
    for number, each in enumerate(staged):
        receipt = each.finish()
        each.close()
        bucket.publish(TOKEN, f"s-{number}", overwrite=False, receipt=receipt)
    assert [bucket.read(f"s-{number}") for number in range(4)] == datas


def test_parts_are_larger_where_there_would_be_too_many(s3: S3Server) -> None:
    bucket = new_s3_bucket(s3, limits=replace(SMALL, part_bytes=5 * MIB))
    staged = bucket.stage(TOKEN, name="a", size_bytes=10_000 * 6 * MIB)
    assert staged._buffers.part_bytes == 6 * MIB
    staged.close()


def test_a_part_that_fails_is_sent_again(bucket: S3Bucket, rng: random.Random) -> None:
    data = rng.randbytes(11 * MIB)
    left = answer(bucket, "UploadPart", [503, 500])
    receipt = upload(bucket, "a", data)
    assert left == []
    bucket.publish(TOKEN, "a", overwrite=False, receipt=receipt)
    assert bucket.read("a") == data


def test_a_part_that_keeps_failing_fails_the_upload_and_leaves_nothing(bucket: S3Bucket) -> None:
    answer(bucket, "UploadPart", [503] * 20)
    with raises(StorageError, "3 times"):
        upload(bucket, "a", bytes(21 * MIB))
    assert waiting(bucket) == []
    assert list(bucket.list()) == []


def test_a_part_that_is_damaged_on_the_way_is_refused_and_sent_again(
    bucket: S3Bucket, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = rng.randbytes(6 * MIB)
    read = s3_upload._PartBody.read
    damaged: list[int] = []

    def read_damaged(self: Any, size: int = -1) -> memoryview:
        piece = read(self, size)
        if not damaged and len(piece):
            damaged.append(1)
            return memoryview(bytes(len(piece)))
        return piece

    monkeypatch.setattr(s3_upload._PartBody, "read", read_damaged)
    receipt = upload(bucket, "a", data)
    assert damaged
    bucket.publish(TOKEN, "a", overwrite=False, receipt=receipt)
    assert bucket.read("a") == data


def test_the_store_compares_the_whole_with_what_was_combined_of_its_parts(
    bucket: S3Bucket, rng: random.Random
) -> None:
    data = rng.randbytes(13 * MIB + 5)
    whole = base64.b64encode(crc32c(data).to_bytes(4, "big")).decode()
    good = Receipt.parse(upload(bucket, "a", data))
    assert (good.checksum, good.checksums) == (whole, "")
    with pytest.raises(StorageError, match="BadDigest"):
        bucket.publish(
            TOKEN, "a", overwrite=False, receipt=replace(good, checksum="AAAAAA==").text()
        )
    bucket.publish(TOKEN, "a", overwrite=False, receipt=good.text())
    assert bucket.read("a") == data


@pytest.mark.parametrize("how", ["refused", "ignored"])
def test_a_store_without_checksums_of_the_whole_is_given_those_of_parts(
    s3: S3Server, how: str, rng: random.Random
) -> None:
    bucket = new_s3_bucket(s3, retry=NO_WAIT)
    api = bucket._client.api
    begin = api.create_multipart_upload

    def begin_as_older(**request: Any) -> Any:
        if request.pop("ChecksumType", "") and how == "refused":
            said = {"Error": {"Code": "InvalidRequest", "Message": "no such type"}}
            raise ClientError(said, "CreateMultipartUpload")
        return begin(**request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "create_multipart_upload", begin_as_older)
        data = rng.randbytes(6 * MIB)
        receipt = upload(bucket, "a", data)
    assert Receipt.parse(receipt).whole == {}
    assert all("ChecksumCRC32C" in part for part in Receipt.parse(receipt).completion())
    made = count_requests(bucket)
    bucket.publish(TOKEN, "a", overwrite=False, receipt=receipt)
    assert made[-1] == "HeadObject", "the whole is unchecked"
    assert bucket.read("a") == data


@pytest.mark.parametrize("how", ["refused", "not wanted"])
def test_a_store_without_checksums_gets_none(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "not wanted":
        monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    bucket = new_s3_bucket(s3, retry=NO_WAIT)
    if how == "refused":
        answer(bucket, "CreateMultipartUpload", [501, 501])
    receipt = upload(bucket, "a", bytes(6 * MIB))
    assert "Checksum" not in str(Receipt.parse(receipt).completion())
    bucket.publish(TOKEN, "a", overwrite=False, receipt=receipt)
    assert bucket.read("a") == bytes(6 * MIB)


def test_a_lost_reply_to_the_completion_is_made_good(bucket: S3Bucket) -> None:
    receipt = upload(bucket, "a", b"abc")
    client = bucket._client
    complete = client.api.complete_multipart_upload

    def complete_and_lose(**request: Any) -> None:
        complete(**request)
        raise ConnectionResetError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client.api, "complete_multipart_upload", complete_and_lose)
        bucket.publish(TOKEN, "a", overwrite=False, receipt=receipt)
    bucket.publish(TOKEN, "a", overwrite=False, receipt=receipt)
    assert bucket.read("a") == b"abc"


def test_an_abort_that_fails_does_not_hide_the_error_of_the_body(
    bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def fail(client: object, name: str, upload_id: str) -> None:
        asked.append(name)
        raise StorageError("no abort today")

    def write_and_fail() -> None:
        with bucket.stage(TOKEN, name="out.tar", size_bytes=6 * MIB) as staged:
            staged.write_at(0, [memoryview(bytes(6 * MIB))])
            raise ZeroDivisionError

    monkeypatch.setattr(s3_upload, "abort", fail)
    with pytest.raises(ZeroDivisionError):
        write_and_fail()
    assert asked == ["out.tar"]
