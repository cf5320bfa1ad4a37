"""A directory that behaves as an object store does, as far as a job can see."""

from __future__ import annotations

from collections.abc import Sequence

from dsort.errors import InvariantError
from dsort.storage.bucket import Bucket, Buffer, ReadObject, StagedObject
from tests.support.hooked_bucket import HookedBucket, HookedReadObject, HookedStagedObject


class StoreLikeBucket(HookedBucket):
    """A bucket whose staged objects are written from the first byte to the last, are durable once
    they are finished, and cannot be read before they are published."""

    def __init__(self, inner: Bucket) -> None:
        super().__init__(inner)
        self.seals_on_finish = True

    def free_bytes(self) -> None:
        return None

    def opened(self, inner: ReadObject) -> HookedReadObject:
        return _Fetched(inner, self)

    def staged(self, inner: StagedObject, name: str) -> HookedStagedObject:
        return _Uploaded(inner, self, name)


class _Fetched(HookedReadObject):
    def __init__(self, inner: ReadObject, owner: HookedBucket) -> None:
        super().__init__(inner, owner)
        self.rereads_cheaply = False


class _Uploaded(HookedStagedObject):
    def __init__(self, inner: StagedObject, owner: HookedBucket, name: str) -> None:
        super().__init__(inner, owner, name)
        self._end = 0

    def write_at(self, offset: int, slices: Sequence[Buffer]) -> None:
        if offset != self._end:
            raise InvariantError(f"byte {offset} is written after {self._end}")
        self._end += sum(map(len, slices))
        super().write_at(offset, slices)

    def finish(self) -> str:
        self.inner.sync()
        return super().finish()

    def size_bytes(self) -> int:
        raise InvariantError("a store does not report the size of a staged object")

    def read_into(self, buffer: memoryview, offset: int) -> None:
        raise InvariantError("a staged object in a store cannot be read")
