"""A bucket in S3 passes the whole :class:`BucketSuite`, with and without a prefix, as does a store
that obstore speaks with (here one in memory)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import obstore.store
import pytest

from dsort.storage.obstore import ObstoreBucket, ObstoreClient
from dsort.storage.ref import BucketRef
from dsort.storage.s3.bucket import S3Bucket
from tests.support.bucket_suite import BucketSuite
from tests.support.object_stores import SMALL, new_s3_bucket
from tests.support.seaweedfs import S3Server

_NUMBERS = count()


@pytest.fixture(scope="module")
def shared(s3_server: S3Server) -> str:
    name = s3_server.new_bucket_name()
    client = s3_server.client()
    client.create_bucket(Bucket=name)
    client.put_object(Bucket=name, Key="pré fix+%41/other", Body=b"x")
    return name


class TestS3Bucket(BucketSuite):
    @pytest.fixture
    def bucket(self, s3: S3Server) -> Iterator[S3Bucket]:
        bucket = new_s3_bucket(s3)
        yield bucket
        bucket.discard(".dsort/", names=["a"])
        assert list(bucket.unfinished_uploads()) == []


class TestS3BucketWithPrefix(BucketSuite):
    """All tests share one bucket of the store, each below a prefix of its own."""

    @pytest.fixture
    def bucket(self, s3: S3Server, shared: str) -> S3Bucket:
        path = f"{shared}/pré fix+%41/{next(_NUMBERS)}"
        return S3Bucket(BucketRef("s3", path, endpoint_url=s3.endpoint_url), SMALL)


class TestObstoreBucket(BucketSuite):
    @pytest.fixture
    def bucket(self) -> ObstoreBucket:
        client = ObstoreClient(obstore.store.MemoryStore(), uri="gs://test", scheme="gs")
        return ObstoreBucket(client, SMALL)


class TestObstoreBucketWithPrefix(BucketSuite):
    @pytest.fixture
    def bucket(self) -> ObstoreBucket:
        store = obstore.store.MemoryStore()
        obstore.put(store, "some/other", b"x")
        client = ObstoreClient(
            store, uri="az://test/some/prefix", scheme="az", prefix="some/prefix"
        )
        return ObstoreBucket(client, SMALL)
