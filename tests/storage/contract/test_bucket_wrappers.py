"""A store whose requests fail, wait for their turn and for the bandwidth passes the whole
:class:`BucketSuite`, as if nothing had happened."""

from __future__ import annotations

import pytest

from dsort.retry import RetryPolicy
from dsort.storage.bucket import Bucket
from dsort.storage.limit import StoreLimiter, StoreLimits
from tests.support.bucket_suite import BucketSuite
from tests.support.fake_clock import FakeClock
from tests.support.faulty_bucket import RETRIED, TRANSIENT, RandomFaults
from tests.support.faulty_client import FaultyClient, stored_in_memory

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
