"""A page of a listing that is none is an error, never an end: nothing may be taken for missing."""

from __future__ import annotations

import io
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse

from dsort.errors import StorageError, TransientStorageError
from dsort.storage.limit import StoreLimits
from dsort.storage.ref import BucketRef
from dsort.storage.s3.bucket import S3Bucket

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
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
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
        ("<html><body>Welcome</body></html>", "no listing"),
        (page("<Code>SlowDown</Code>", "Error"), "no listing"),
        (page(LAST + OBJECT, "ListVersionsResult"), "no listing"),
        (page(OBJECT), "more pages"),
        (page(f"<IsTruncated></IsTruncated>{OBJECT}"), "more pages"),
        (page(f"<IsTruncated>perhaps</IsTruncated>{OBJECT}"), "more pages"),
        (page(f"<IsTruncated>true</IsTruncated>{OBJECT}"), "no way to ask"),
        (page(LAST + OBJECT.replace("<Key>a.tar</Key>", "")), "no key"),
        (page(LAST + OBJECT.replace("a.tar", "")), "no key"),
        (page(LAST + OBJECT.replace("<Size>3</Size>", "")), "KeyError"),
        (page(LAST + OBJECT.replace("<Size>3", "<Size>many")), "many"),
        (page(LAST + OBJECT.replace("2026-01-31T", "yesterday")), "yesterday"),
        (page(LAST + OBJECT)[:-10], ""),
        ("", ""),
    ],
)
def test_what_is_no_page_is_an_error_that_passes(body: str, why: str, bucket: S3Bucket) -> None:
    answer_with(bucket, body)
    with pytest.raises(StorageError, match="tried once") as caught:
        list(bucket.list())
    assert isinstance(caught.value.__cause__, TransientStorageError)
    assert why in caught.value.message
    assert not why or "listing cannot be read" in caught.value.message
