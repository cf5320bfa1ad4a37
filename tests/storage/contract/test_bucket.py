"""Directories and memory are buckets alike: each passes the whole :class:`BucketSuite`."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsort.storage.directory.bucket import LocalBucket
from dsort.storage.network_policy import FetchPolicy
from tests.support.bucket_suite import BucketSuite
from tests.support.memory_bucket import MemoryBucket


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
