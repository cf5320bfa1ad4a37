"""What wraps a bucket is a bucket: retries over a store whose every first try fails, and limits,
each pass the whole :class:`BucketSuite`."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsort.retry import RetryPolicy
from dsort.storage.bucket import Bucket
from dsort.storage.directory.bucket import LocalBucket
from dsort.storage.limit import LimitedBucket, StoreLimiter, StoreLimits
from dsort.storage.retry import RetryingBucket
from tests.contract.bucket_suite import BucketSuite
from tests.support.fake_clock import FakeClock
from tests.support.faulty_bucket import RETRIED, TRANSIENT, FaultyBucket, RandomFaults
from tests.support.memory_bucket import MemoryBucket


def retrying(inner: Bucket) -> RetryingBucket:
    clock = FakeClock()
    return RetryingBucket(inner, RetryPolicy(clock=clock.now, sleep=clock.sleep))


def limited(inner: Bucket, *, bytes_per_s: float | None) -> LimitedBucket:
    clock = FakeClock()
    limits = StoreLimits(requests_in_flight_max=1, bandwidth_max_bytes_per_s=bytes_per_s)
    return LimitedBucket(inner, StoreLimiter(limits, clock=clock.now, sleep=clock.sleep))


def local(directory: Path) -> LocalBucket:
    bucket = LocalBucket(directory)
    bucket.create()
    return bucket


class TestEveryFirstTryFails(BucketSuite):
    @pytest.fixture
    def bucket(self) -> Bucket:
        kinds = (*TRANSIENT, "cut", "cut silently")
        faults = RandomFaults("first", rate=1.0, kinds=kinds, in_a_row_max=1)
        return retrying(FaultyBucket(MemoryBucket(), faults))


class TestEveryFirstReplyIsLost(BucketSuite):
    """But for that of ``publish``: what is in memory cannot be asked whether it was published."""

    @pytest.fixture
    def bucket(self) -> Bucket:
        operations = set(RETRIED) - {"publish"}
        faults = RandomFaults(
            "lost", rate=1.0, kinds=["reply lost"], operations=operations, in_a_row_max=1
        )
        return retrying(FaultyBucket(MemoryBucket(), faults))


class TestADirectoryThatFailsByChance(BucketSuite):
    @pytest.fixture
    def bucket(self, tmp_path: Path, request: pytest.FixtureRequest) -> Bucket:
        seed = f"{request.config.option.hypothesis_seed}/{request.node.nodeid}"
        faults = RandomFaults(seed, rate=0.3, kinds=(*TRANSIENT, "cut", "cut silently"))
        return retrying(FaultyBucket(local(tmp_path / "data"), faults))


class TestOneRequestAtATime(BucketSuite):
    @pytest.fixture
    def bucket(self) -> Bucket:
        return limited(MemoryBucket(), bytes_per_s=None)


class TestALowBandwidth(BucketSuite):
    @pytest.fixture
    def bucket(self, tmp_path: Path) -> Bucket:
        return limited(local(tmp_path / "data"), bytes_per_s=1000.0)


class TestRetriesAroundLimitsAroundFaults(BucketSuite):
    @pytest.fixture
    def bucket(self) -> Bucket:
        kinds = (*TRANSIENT, "cut", "cut silently")
        faults = RandomFaults("both", rate=0.5, kinds=kinds)
        return retrying(limited(FaultyBucket(MemoryBucket(), faults), bytes_per_s=1000.0))
