"""A bucket around another one, each of whose operations goes through one method."""

from __future__ import annotations

from collections.abc import Sequence

from dsort.closing import ClosesOnExit
from dsort.storage.bucket import Buffer, ObjectInfo, RandomReads, ReadObject, StagedObject
from dsort.storage.wrapped import WrappedBucket

__all__ = ["HookedBucket", "HookedReadObject", "HookedStagedObject"]


class HookedBucket(WrappedBucket):
    """Passes everything on to ``inner``, reads and writes too, each through ``around``."""

    def opened(self, inner: ReadObject) -> HookedReadObject:
        return HookedReadObject(inner, self)

    def staged(self, inner: StagedObject, name: str) -> HookedStagedObject:
        return HookedStagedObject(inner, self, name)

    def free_bytes(self) -> int | None:
        """Nobody comes in between here."""
        return self.inner.free_bytes()


class _Hooked(ClosesOnExit):
    """What is open, in both directions."""

    def __init__(self, opened: ReadObject | StagedObject) -> None:
        self._opened = opened

    def close(self) -> None:
        self._opened.close()


class HookedReadObject(_Hooked):
    """An open object of a :class:`HookedBucket`."""

    def __init__(self, inner: ReadObject, owner: HookedBucket) -> None:
        super().__init__(inner)
        self.inner = inner
        self.owner = owner
        self.info: ObjectInfo = inner.info
        self.rereads_cheaply: bool = inner.rereads_cheaply

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self.owner.around(
            "read_into", self.inner.info.name, lambda: self.inner.read_into(buffer, offset)
        )

    def forget(self) -> None:
        self.inner.forget()

    def mapping(self) -> memoryview | None:
        return self.inner.mapping()

    def random_reads(self) -> RandomReads | None:
        return self.inner.random_reads()


class HookedStagedObject(_Hooked):
    """A staged object of a :class:`HookedBucket`. ``name``: what it will be published as, or its
    token where that is not known."""

    def __init__(self, inner: StagedObject, owner: HookedBucket, name: str) -> None:
        super().__init__(inner)
        self.inner = inner
        self.owner = owner
        self.name = name

    def write_at(self, offset: int, slices: Sequence[Buffer]) -> None:
        self.owner.around("write_at", self.name, lambda: self.inner.write_at(offset, slices))

    def start_sync(self, offset: int, size_bytes: int) -> None:
        self.inner.start_sync(offset, size_bytes)

    def sync(self) -> None:
        self.inner.sync()

    def finish(self) -> str:
        return self.owner.around("finish", self.name, self.inner.finish)

    def size_bytes(self) -> int:
        return self.inner.size_bytes()

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self.inner.read_into(buffer, offset)
