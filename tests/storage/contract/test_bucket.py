"""Every bucket passes the whole :class:`BucketSuite`: directories, memory, S3 with and without a
prefix, what obstore speaks with (here a store in memory), and one whose requests fail and wait."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import obstore.store
import pytest

from dsort.retry import RetryPolicy
from dsort.storage.bucket import Bucket
from dsort.storage.directory.bucket import LocalBucket
from dsort.storage.limit import StoreLimiter, StoreLimits
from dsort.storage.network_policy import FetchPolicy
from dsort.storage.obstore import ObstoreBucket, ObstoreClient
from dsort.storage.ref import BucketRef
from dsort.storage.s3.bucket import S3Bucket
from tests.support.bucket_suite import BucketSuite
from tests.support.fake_clock import FakeClock
from tests.support.faulty_bucket import RETRIED, TRANSIENT, RandomFaults
from tests.support.faulty_client import FaultyClient, stored_in_memory
from tests.support.memory_bucket import MemoryBucket
from tests.support.object_stores import SMALL, new_s3_bucket
from tests.support.seaweedfs import S3Server


class TestLocalBucket(BucketSuite):
    @pytest.fixture
    def bucket(self, tmp_path: Path) -> LocalBucket:
        bucket = LocalBucket(tmp_path / "data")
        bucket.create()
        return bucket


class TestLocalBucketBehindALink(BucketSuite):
    @pytest.fixture
    def bucket(self, tmp_path: Path) -> LocalBucket:
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to("real")
        return LocalBucket(tmp_path / "link")


class TestLocalBucketUnderAPolicy(BucketSuite):
    """As jobs of a service have it: by descriptors, not by names."""

    @pytest.fixture
    def bucket(self, tmp_path: Path) -> LocalBucket:
        bucket = LocalBucket(
            tmp_path / "data", policy=FetchPolicy(roots=(str(tmp_path.resolve() / "data"),))
        )
        bucket.create()
        return bucket


class TestMemoryBucket(BucketSuite):
    @pytest.fixture
    def bucket(self) -> MemoryBucket:
        return MemoryBucket()


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


KINDS = (*TRANSIENT, "cut")


def bucket_of(client: FaultyClient, *, bytes_per_s: float | None = None) -> Bucket:
    """The bucket of ``client``, with one request at a time."""
    clock = FakeClock()
    limits = StoreLimits(requests_in_flight_max=1, bandwidth_max_bytes_per_s=bytes_per_s)
    return stored_in_memory(
        client,
        limits=limits,
        policy=RetryPolicy(clock=clock.now, sleep=clock.sleep),
        limiter=StoreLimiter(limits, clock=clock.now, sleep=clock.sleep),
    )


class TestEveryFirstTryFails(BucketSuite):
    @pytest.fixture
    def bucket(self) -> Bucket:
        return bucket_of(FaultyClient(RandomFaults("first", rate=1.0, kinds=KINDS, in_a_row_max=1)))


class TestEveryFirstReplyIsLost(BucketSuite):
    @pytest.fixture
    def bucket(self) -> Bucket:
        faults = RandomFaults(
            "lost", rate=1.0, kinds=["reply lost"], operations=RETRIED, in_a_row_max=1
        )
        return bucket_of(FaultyClient(faults))


class TestRequestsThatFailByChance(BucketSuite):
    @pytest.fixture
    def bucket(self, request: pytest.FixtureRequest) -> Bucket:
        seed = f"{request.config.option.hypothesis_seed}/{request.node.nodeid}"
        return bucket_of(FaultyClient(RandomFaults(seed, rate=0.3, kinds=KINDS)))


class TestALowBandwidth(BucketSuite):
    @pytest.fixture
    def bucket(self) -> Bucket:
        return bucket_of(FaultyClient(), bytes_per_s=1000.0)


class TestALowBandwidthAndFaults(BucketSuite):
    @pytest.fixture
    def bucket(self) -> Bucket:
        client = FaultyClient(RandomFaults("both", rate=0.5, kinds=KINDS))
        return bucket_of(client, bytes_per_s=1000.0)
