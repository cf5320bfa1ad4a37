"""Sizes of parts, the buffers that uploads share, and what a receipt carries; a page of a listing
that is broken is an error, never an end: nothing may be taken for missing."""

from __future__ import annotations

import io
import json
import threading
from typing import Any

import numpy as np
import pytest
from botocore.awsrequest import AWSResponse

from dsort.errors import StorageError, TransientStorageError
from dsort.storage.limit import StoreLimits, part_room
from dsort.storage.ref import BucketRef
from dsort.storage.request_counts import part_bytes_for, requests_of_uploads
from dsort.storage.s3.bucket import S3Bucket
from dsort.storage.s3.upload import (
    ETAGS_KEPT_MAX,
    Part,
    PartBuffers,
    Receipt,
    even_part_bytes,
)
from tests.support.refusals import raises

MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40


@pytest.mark.parametrize(
    ("size_bytes", "part_bytes_max", "part_bytes"),
    [
        (None, 16 * MIB, 16 * MIB),
        (0, 64 * MIB, 16 * MIB),
        (GIB, 64 * MIB, 16 * MIB),
        (GIB + 1, 64 * MIB, 64 * MIB),
        (GIB + 1, 16 * MIB, 16 * MIB),
        (100 * GIB, 64 * MIB, 64 * MIB),
        (160_000 * MIB, 16 * MIB, 16 * MIB),
        (160_000 * MIB + 1, 16 * MIB, 17 * MIB),
        (5 * TIB, 64 * MIB, 525 * MIB),
    ],
)
def test_parts_are_as_large_as_they_may_where_there_are_many_and_ten_thousand_do(
    size_bytes: int | None, part_bytes_max: int, part_bytes: int
) -> None:
    limits = StoreLimits(part_bytes=16 * MIB, part_bytes_max=part_bytes_max)
    assert part_bytes_for(size_bytes, limits) == part_bytes
    assert (size_bytes or 0) <= 10_000 * part_bytes


def test_parts_are_never_smaller_than_was_asked_for() -> None:
    limits = StoreLimits(part_bytes=100 * MIB, part_bytes_max=64 * MIB)
    assert part_bytes_for(7 * GIB, limits) == 100 * MIB
    assert limits.upload_bytes == 200 * MIB * 17 // 16


def test_buffers_of_both_sizes_are_reckoned_with() -> None:
    limits = StoreLimits(part_bytes=16 * MIB, part_bytes_max=64 * MIB, parts_in_flight_max=3)
    assert limits.upload_bytes == 240 * MIB * 17 // 16


def test_a_small_rest_goes_with_the_parts_before_it_and_they_fit_in_a_buffer() -> None:
    part = 16 * MIB
    for size in (None, 0, 1, part - 1, part, part + MIB + 1, 3 * part, 4 * part - 1):
        assert even_part_bytes(size, part) == part
    limits = StoreLimits(part_bytes=part)
    for count in (1, 2, 3, 4, 7, 64):
        for rest in (1, 2, count, MIB - 1, MIB):
            size = count * part + rest
            each = even_part_bytes(size, part)
            assert part < each <= part_room(part)
            assert -(-size // each) == count
            assert requests_of_uploads(np.array([size]), limits)["part"] == count
    assert len(PartBuffers(part, 1).take()) == part_room(part)


def test_buffers_are_used_again_and_bounded_by_those_that_come_back() -> None:
    buffers = PartBuffers(10, 2)
    first, second = buffers.take(), buffers.take()
    buffers.uploading()
    taken: list[memoryview] = []
    waiting = threading.Thread(target=lambda: taken.append(buffers.take()))
    waiting.start()
    buffers.give_back(first, uploaded=True)
    waiting.join()
    assert taken[0] is first
    buffers.give_back(second, uploaded=False)
    assert buffers.take() is second


def test_uploads_that_each_fill_a_buffer_do_not_wait_for_each_other() -> None:
    buffers = PartBuffers(10, 2)
    held = [buffers.take() for _ in range(5)]
    assert len({id(each) for each in held}) == 5
    for each in held:
        buffers.give_back(each, uploaded=False)
    kept = [buffers.take(), buffers.take()]
    assert all(any(each is one for one in held) for each in kept)
    assert not any(buffers.take() is one for one in held), "more than two were kept"


def _receipt(parts: list[Part]) -> Receipt:
    return Receipt.of("train/ü.tar", "id/1+", parts, size_bytes=5, began_s=1_700_000_000)


def test_a_receipt_survives_being_text() -> None:
    receipt = _receipt([Part('"a"', "AAAAAA=="), Part('"b"', "AAAAAQ==")])
    assert Receipt.parse(receipt.text()) == receipt
    assert receipt.completion()[1] == {"PartNumber": 2, "ETag": '"b"', "ChecksumCRC32C": "AAAAAQ=="}
    unchecked = _receipt([Part('"a"', ""), Part('"b"', "")])
    assert Receipt.parse(unchecked.text()) == unchecked
    assert unchecked.completion()[1] == {"PartNumber": 2, "ETag": '"b"'}


def test_the_etag_of_an_object_is_the_md5_of_those_of_its_parts() -> None:
    empty = "d41d8cd98f00b204e9800998ecf8427e"
    assert _receipt([Part(f'"{empty}"', "")]).digest == "59adb24ef3cdbe0297f05b395827453f-1"


def test_parts_whose_etags_are_no_md5s_are_known_again_too() -> None:
    etags = [f'"no-md5-{number}"' for number in range(20)]
    receipt = _receipt([Part(etag, "") for etag in etags])
    assert receipt.etags == ()
    assert receipt.completion(etags)[0] == {"PartNumber": 1, "ETag": etags[0]}
    with pytest.raises(StorageError):
        receipt.completion(etags[::-1])


def test_a_receipt_does_not_grow_with_many_parts_and_knows_them_again() -> None:
    etags = [f'"{number:032x}"' for number in range(10_000)]
    receipt = _receipt([Part(etag, "") for etag in etags])
    assert len(receipt.text()) < 200
    assert Receipt.parse(receipt.text()) == receipt
    completion = receipt.completion([etag.strip('"') for etag in etags])
    assert completion[-1] == {"PartNumber": 10_000, "ETag": f"{9_999:032x}"}
    swapped = [etags[1], etags[0], *etags[2:]]
    for wrong in ([], etags[:-1], [*etags, etags[0]], swapped):
        with raises(StorageError, "10,000"):
            receipt.completion(wrong)


def test_checksums_are_kept_since_not_all_stores_list_them() -> None:
    parts = [Part(f'"{number:032x}"', "AAAAAQ==") for number in range(1_000)]
    receipt = _receipt(parts)
    assert len(receipt.text()) < 200 + 5.5 * 1_000
    completion = receipt.completion([part.etag for part in parts])
    assert {part["ChecksumCRC32C"] for part in completion} == {"AAAAAQ=="}


def test_one_checksum_of_the_whole_is_kept_in_place_of_those_of_parts() -> None:
    parts = [Part(f'"{number:032x}"', "AAAAAQ==") for number in range(1_000)]
    receipt = Receipt.of("a", "id", parts, size_bytes=5, began_s=1, checksum="AAAAAg==")
    assert len(receipt.text()) < 200
    assert Receipt.parse(receipt.text()) == receipt
    assert receipt.whole == {"ChecksumCRC32C": "AAAAAg==", "ChecksumType": "FULL_OBJECT"}
    assert receipt.completion([part.etag for part in parts])[0].keys() == {"PartNumber", "ETag"}


def test_receipts_of_older_versions_have_checksums_of_parts() -> None:
    receipt = _receipt([Part('"a"', "AAAAAA==")])
    older = json.dumps(json.loads(receipt.text())[:8])
    assert Receipt.parse(older) == receipt
    assert Receipt.parse(older).whole == {}


def test_few_parts_are_all_in_the_receipt() -> None:
    parts = [Part(f'"{number:032x}"', "AAAAAA==") for number in range(ETAGS_KEPT_MAX)]
    receipt = _receipt(parts)
    assert Receipt.parse(receipt.text()).etags == tuple(part.etag for part in parts)
    assert len(receipt.text()) < 200 + 50 * ETAGS_KEPT_MAX


@pytest.mark.parametrize("text", ["x", "{}", "[]", "null", "[1]", '["a",1,2,3,4,5,null,7]'])
def test_what_is_no_receipt_is_reported(text: str) -> None:
    with raises(StorageError):
        Receipt.parse(text)


SPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
OBJECT = (
    "<Contents><Key>a.tar</Key><Size>3</Size><ETag>&quot;0a&quot;</ETag>"
    "<LastModified>2026-01-31T00:00:00.000Z</LastModified></Contents>"
)
LAST = "<IsTruncated>false</IsTruncated>"


def page(inside: str, root: str = "ListBucketResult") -> str:
    return f"<{root} {SPACE}>{inside}</{root}>"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> S3Bucket:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "unknown")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    return S3Bucket(
        BucketRef("s3", "data", endpoint_url="http://127.0.0.1:9"), StoreLimits(tries_max=1)
    )


def answer_with(bucket: S3Bucket, *bodies: str) -> None:
    """Let the listing's pages be these; no request is made."""
    waiting = list(bodies)

    def before_send(request: Any, **_: object) -> AWSResponse:
        body = waiting.pop(0).encode()
        raw = io.BytesIO(body)
        raw.stream = lambda: iter([body])  # type: ignore[attr-defined]
        return AWSResponse(request.url, 200, {}, raw)

    bucket._client.api.meta.events.register("before-send.s3.ListObjectsV2", before_send)


def test_pages_are_read_to_the_last(bucket: S3Bucket) -> None:
    more = "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
    answer_with(bucket, page(more + OBJECT), page(LAST + OBJECT.replace("a.tar", "b.tar")))
    assert [info.name for info in bucket.list()] == ["a.tar", "b.tar"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("<html><body>Welcome</body></html>", ""),
        (page("<Code>SlowDown</Code>", "Error"), ""),
        (page(LAST + OBJECT, "ListVersionsResult"), ""),
        (page(OBJECT), ""),
        (page(f"<IsTruncated></IsTruncated>{OBJECT}"), ""),
        (page(f"<IsTruncated>perhaps</IsTruncated>{OBJECT}"), ""),
        (page(f"<IsTruncated>true</IsTruncated>{OBJECT}"), ""),
        (page(LAST + OBJECT.replace("<Key>a.tar</Key>", "")), ""),
        (page(LAST + OBJECT.replace("a.tar", "")), ""),
        (page(LAST + OBJECT.replace("<Size>3</Size>", "")), "KeyError"),
        (page(LAST + OBJECT.replace("<Size>3", "<Size>many")), "many"),
        (page(LAST + OBJECT.replace("2026-01-31T", "yesterday")), "yesterday"),
        (page(LAST + OBJECT)[:-10], ""),
        ("", ""),
    ],
)
def test_what_is_no_page_is_an_error_that_passes(body: str, why: str, bucket: S3Bucket) -> None:
    answer_with(bucket, body)
    with raises(StorageError, "s3://data", why) as caught:
        list(bucket.list())
    assert isinstance(caught.value.__cause__, TransientStorageError)
