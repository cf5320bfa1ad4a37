"""A bucket's address is a URI or a directory under the data root; all else is a user's mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsort.errors import SpecError
from dsort.spec.buckets import parse_bucket
from dsort.storage.addresses import parse_address
from dsort.storage.limit import StoreLimiter, StoreLimits
from dsort.storage.open import open_bucket
from dsort.storage.ref import BucketRef
from dsort.storage.registry import STORES, Store
from dsort.storage.transport import Transport
from tests.support.memory_bucket import MemoryBucket


@pytest.mark.parametrize(
    ("uri", "directory"),
    [
        ("images", "/root/images"),
        ("images/train", "/root/images/train"),
        ("./images/", "/root/images"),
        (".", "/root"),
        ("100%", "/root/100%"),
        ("file:///data/images", "/data/images"),
        ("file:///data/images/", "/data/images"),
        ("file://localhost/data", "/data"),
        ("file:///data/two%20words", "/data/two words"),
        ("file:///data/100%", "/data/100%"),
        ("file:///", "/"),
    ],
)
def test_addresses_of_directories(uri: str, directory: str) -> None:
    bucket = open_bucket(uri, root=Path("/root"))
    assert bucket.local_path("a") == Path(directory) / "a"
    assert open_bucket(bucket.uri, root=Path("/other")).uri == bucket.uri


def test_names_that_are_not_utf8_survive_the_uri() -> None:
    bucket = open_bucket("caf\udce9", root=Path("/root"))
    assert bucket.uri == "file:///root/caf%E9"
    again = open_bucket(bucket.uri, root=Path("/other"))
    assert again.local_path("a") == Path("/root/caf\udce9/a")


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("memory:", "not the name of a directory"),
        ("C:/data", "not the name of a directory"),
        ("file://server/data", "is not absolute"),
        ("file://", "is not absolute"),
        ("", "not the name of a directory"),
        ("/data/images", "not the name of a directory"),
        ("../images", "not the name of a directory"),
        ("images/../..", "not the name of a directory"),
        ("a\0b", "zero byte"),
    ],
)
def test_what_is_no_address_is_refused_with_a_hint(uri: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        open_bucket(uri, root=Path("/root"))
    assert "file:///" in caught.value.hint


def test_an_absolute_path_is_answered_with_its_uri() -> None:
    with pytest.raises(SpecError) as caught:
        open_bucket("/data/images", root=Path("/root"))
    assert caught.value.hint == "write file:///data/images"


@pytest.mark.parametrize(
    ("uri", "message", "hint"),
    [
        ("file:/data", "is no bucket name", 'did you mean "file:///data"?'),
        ("s3:/images", "is no bucket name", 'did you mean "s3://images"?'),
        ("gs:images", "is no bucket name", 'did you mean "gs://images"?'),
        ("s3://", "names no bucket", 'write "s3://bucket/prefix"'),
        ("S3://Images_", "no bucket can be called", "S3 bucket names"),
        ("s4://images", "unknown scheme", "known: file:// s3://"),
        ("s3://images/a\0b", "cannot be printed", "file:///"),
        ("s3://images/\udce9", "cannot be printed|not UTF-8", "file:///"),
    ],
)
def test_what_was_meant_as_a_uri_is_answered_with_the_right_one(
    uri: str, message: str, hint: str
) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        open_bucket(uri, root=Path("/root"))
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "uri",
    ["images", "images/train", ".", "file:///data/a b", "s3://images", "s3://images/a%20b/",
     "gs://images/x", "az://images", "ais://images/x", "https://host:80/images"],
)  # fmt: skip
def test_an_address_means_what_it_means_in_a_spec(uri: str) -> None:
    assert parse_address(uri) == parse_bucket(uri)


def test_a_reference_to_a_directory_is_that_directory() -> None:
    root = Path("/root")
    for ref, path in ((BucketRef("", "images"), "/root/images"), (BucketRef("", "."), "/root"),
                      (BucketRef("file", "/data/100%"), "/data/100%")):  # fmt: skip
        assert open_bucket(ref, root=root).local_path("a") == Path(path) / "a"


class OpenedBucket(MemoryBucket):
    """A bucket in memory, opened with ``transport``."""

    def __init__(self, transport: Transport) -> None:
        super().__init__()
        self.transport = transport


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[BucketRef, StoreLimits]]:
    """What the backend of object stores was asked to open; it gives buckets in memory."""
    asked: list[tuple[BucketRef, StoreLimits]] = []

    def open_object_bucket(
        ref: BucketRef, limits: StoreLimits, transport: Transport
    ) -> OpenedBucket:
        asked.append((ref, limits))
        return OpenedBucket(transport)

    monkeypatch.setattr("dsort.storage.open.open_object_bucket", open_object_bucket)
    return asked


@pytest.mark.parametrize("where", ["s3://images/train", "gs://images", "https://host/images"])
def test_object_stores_are_opened_with_their_transport(
    opened: list[tuple[BucketRef, StoreLimits]], where: str
) -> None:
    limits = StoreLimits(requests_in_flight_max=3, tries_max=5, retry_seconds_max=7.0)
    bucket = open_bucket(where, root=Path("/root"), limits=limits)
    assert opened == [(parse_address(where), limits)]
    assert isinstance(bucket, OpenedBucket)
    policy = bucket.transport.policy
    assert (policy.tries_max, policy.seconds_max) == (5, 7.0)


def test_buckets_of_one_process_may_share_a_limiter(
    opened: list[tuple[BucketRef, StoreLimits]],
) -> None:
    limiter = StoreLimiter(StoreLimits())
    ref = BucketRef("s3", "images", "http://10.0.0.1:8333", "eu-west-1", "lab")
    for _ in range(2):
        bucket = open_bucket(ref, root=Path("/root"), limiter=limiter)
        assert isinstance(bucket, OpenedBucket)
        assert bucket.transport.limiter is limiter
    assert opened == [(ref, StoreLimits())] * 2


def test_aistore_is_not_opened_without_its_endpoint(
    opened: list[tuple[BucketRef, StoreLimits]],
) -> None:
    with pytest.raises(SpecError, match="not known where AIStore is") as caught:
        open_bucket("ais://images", root=Path("/root"))
    assert "AIS_ENDPOINT" in caught.value.hint
    assert opened == []
    open_bucket(BucketRef("ais", "images", "http://host/s3"), root=Path("/root"))
    assert len(opened) == 1


def test_a_store_with_the_scheme_of_directories_is_refused() -> None:
    class Other(Store):
        schemes = ("other", "file")

    with pytest.raises(ValueError, match="'file'"):
        STORES.register(Other())
    assert "other" not in STORES
