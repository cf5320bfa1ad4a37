"""Objects and buckets of an object store over HTTP: the same as of a directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dsort.service.aistore.object_writes import SMALL_BYTES_MAX
from dsort.settings import Settings, StoreSettings
from dsort.storage.s3.bucket import S3Bucket
from tests.support.object_stores import new_s3_bucket, waiting
from tests.support.seaweedfs import S3Server
from tests.support.service_here import ServiceHere, service_here

LARGE = bytes(range(256)) * (SMALL_BYTES_MAX // 256) + b"more than is held at once"


@pytest.fixture
def bucket(s3: S3Server) -> S3Bucket:
    return new_s3_bucket(s3)


@pytest.fixture
def here(tmp_path: Path, s3: S3Server) -> Iterator[ServiceHere]:
    settings = Settings(stores=(("s3", StoreSettings(endpoint_url=s3.endpoint_url)),))
    with service_here(tmp_path, settings=settings, allow=("s3://*",)) as opened:
        yield opened


def test_objects_of_a_store_are_written_listed_read_and_removed(
    here: ServiceHere, bucket: S3Bucket
) -> None:
    uri = bucket.uri.replace("/", "%2F").replace(":", "%3A")
    name = bucket.uri.removeprefix("s3://")
    bodies = {"a/large.bin": LARGE, "a/small.txt": b"small", "b.txt": b""}
    for path, data in bodies.items():
        put = here.client.put(f"/v1/objects/{name}/{path}?provider=aws", content=data)
        assert put.status_code == 200, put.text
    pages, token = [], ""
    while not pages or token:
        query = {"page_size": 2, "continuation_token": token}
        page = here.client.get(f"/v1/buckets/{uri}", params=query).json()
        pages.append([each["name"] for each in page["entries"]])
        token = page["continuation_token"]
    assert pages == [["a/large.bin", "a/small.txt"], ["b.txt"]]
    for path, data in bodies.items():
        assert here.client.get(f"/v1/objects/{uri}/{path}").content == data
    part = here.client.get(f"/v1/objects/{uri}/a/large.bin", headers={"Range": "bytes=-4"})
    assert (part.status_code, part.content) == (206, b"once")
    kept = here.client.put(
        f"/v1/objects/{uri}/b.txt", content=b"other", headers={"If-None-Match": "*"}
    )
    assert kept.status_code == 409
    assert here.client.head(f"/v1/buckets/{name}?provider=aws").status_code == 200
    for path in bodies:
        assert here.client.delete(f"/v1/objects/{uri}/{path}").status_code == 200
    assert here.client.get(f"/v1/buckets/{uri}").json()["entries"] == []
    assert here.client.delete(f"/v1/objects/{uri}/b.txt").status_code == 404


def test_a_body_that_is_cut_leaves_nothing_in_a_store(here: ServiceHere, bucket: S3Bucket) -> None:
    name = bucket.uri.removeprefix("s3://")

    def breaks() -> Iterator[bytes]:
        for _ in range(12):
            yield LARGE
        raise OSError("the client is gone")

    path = f"/v1/objects/{name}/cut.bin?provider=aws"
    assert here.client.put(path, content=breaks()).status_code == 500
    long = {"Content-Length": str(len(LARGE) + 1)}
    assert here.client.put(path, content=iter([LARGE]), headers=long).status_code == 400
    assert [*bucket.list()] == []
    assert waiting(bucket) == []


def test_what_is_not_there_or_is_not_for_us_in_a_store(here: ServiceHere, s3: S3Server) -> None:
    none = f"/{s3.new_bucket_name()}"
    for method, path in (
        ("GET", f"/v1/buckets{none}"),
        ("HEAD", f"/v1/buckets{none}"),
        ("GET", f"/v1/objects{none}/x"),
        ("PUT", f"/v1/objects{none}/x"),
        ("DELETE", f"/v1/objects{none}/x"),
    ):
        answer = here.client.request(method, path, params={"provider": "aws"})
        assert answer.status_code in (404, 409), (method, path, answer.text)
    for method, action in (("POST", "create-bck"), ("DELETE", "destroy-bck")):
        answer = here.client.request(
            method, f"/v1/buckets{none}", params={"provider": "aws"}, json={"action": action}
        )
        assert answer.status_code == 501
