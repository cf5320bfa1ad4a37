"""A bucket in memory can be missing and can be full, so that tests can make it so."""

from __future__ import annotations

import pytest

from dsort.errors import ObjectNotFoundError, StorageFullError
from tests.support.memory_bucket import MemoryBucket


def test_room_is_counted_and_given_back() -> None:
    bucket = MemoryBucket(room_bytes=10)
    bucket.write("a", b"12345")
    with bucket.stage(".dsort/0", size_bytes=5) as staged:
        staged.write_at(0, [b"123"])
        assert bucket.free_bytes() == 2
        with pytest.raises(StorageFullError, match="3 bytes were needed"):
            staged.write_at(0, [b"123456"])
        staged.write_at(0, [b"abc"])  # over what is there already
    with pytest.raises(StorageFullError):
        bucket.write("b", b"123")
    with pytest.raises(StorageFullError):
        bucket.stage(".dsort/1", size_bytes=3)
    bucket.discard(".dsort/")
    assert bucket.free_bytes() == 5


def test_nothing_can_be_stored_before_the_bucket_is_made() -> None:
    bucket = MemoryBucket(exists=False)
    assert not bucket.exists()
    with pytest.raises(ObjectNotFoundError):
        bucket.write("a", b"")
    with pytest.raises(ObjectNotFoundError):
        bucket.stage(".dsort/0")
    bucket.create()
    bucket.write("a", b"")
