"""A bucket around another one, each of whose operations goes through one method."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from dsort.closing import Closing
from dsort.storage.bucket import Bucket, Buffer, ObjectInfo, ReadObject, StagedObject

__all__ = ["HookedBucket", "HookedReadObject", "HookedStagedObject"]

T = TypeVar("T")


class HookedBucket:
    """Passes everything on to ``inner``. Override ``around`` to come in between."""

    def __init__(self, inner: Bucket) -> None:
        self.inner = inner
        self.uri: str = inner.uri
        self.seals_on_finish: bool = inner.seals_on_finish

    def around(self, operation: str, name: str, action: Callable[[], T]) -> T:
        """Do ``action``: what ``operation`` on the object ``name`` ("": on none) comes to."""
        return action()

    def exists(self) -> bool:
        return self.around("exists", "", self.inner.exists)

    def create(self) -> None:
        self.around("create", "", self.inner.create)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        yield from self.around("list", prefix, lambda: self.inner.list(prefix))

    def stat(self, name: str) -> ObjectInfo:
        return self.around("stat", name, lambda: self.inner.stat(name))

    def stat_many(self, names: Collection[str]) -> dict[str, ObjectInfo]:
        return self.around("stat_many", "", lambda: self.inner.stat_many(names))

    def open(self, name: str) -> ReadObject:
        return self.around("open", name, lambda: self.opened(self.inner.open(name)))

    def read(self, name: str) -> bytes:
        return self.around("read", name, lambda: self.inner.read(name))

    def write(self, name: str, data: bytes) -> None:
        self.around("write", name, lambda: self.inner.write(name, data))

    def write_new(self, name: str, data: bytes) -> bool:
        return self.around("write_new", name, lambda: self.inner.write_new(name, data))

    def delete(self, name: str) -> None:
        self.around("delete", name, lambda: self.inner.delete(name))

    def stage(self, token: str, *, name: str = "", size_bytes: int | None = None) -> StagedObject:
        known_as = name or token

        def stage() -> HookedStagedObject:
            return self.staged(self.inner.stage(token, name=name, size_bytes=size_bytes), known_as)

        return self.around("stage", known_as, stage)

    def publish(self, token: str, name: str, *, overwrite: bool, receipt: str = "") -> None:
        self.around(
            "publish",
            name,
            lambda: self.inner.publish(token, name, overwrite=overwrite, receipt=receipt),
        )

    def still_staged(self, tokens: Mapping[str, tuple[str, str]]) -> set[str]:
        return self.around("still_staged", "", lambda: self.inner.still_staged(tokens))

    def published(self, tokens: Mapping[str, tuple[str, str]]) -> set[str]:
        return self.around("published", "", lambda: self.inner.published(tokens))

    def keep_aside(self, name: str, token: str) -> str:
        return self.around("keep_aside", name, lambda: self.inner.keep_aside(name, token))

    def put_back(self, token: str, name: str, *, receipt: str) -> None:
        self.around("put_back", name, lambda: self.inner.put_back(token, name, receipt=receipt))

    def settle(self) -> None:
        self.around("settle", "", self.inner.settle)

    def discard(self, token_prefix: str, *, names: Collection[str] = ()) -> None:
        self.around("discard", token_prefix, lambda: self.inner.discard(token_prefix, names=names))

    def free_bytes(self) -> int | None:
        return self.inner.free_bytes()

    def local_path(self, name: str) -> Path | None:
        return self.inner.local_path(name)

    def opened(self, inner: ReadObject) -> HookedReadObject:
        """What ``open`` returns for what the inner bucket has opened."""
        return HookedReadObject(inner, self)

    def staged(self, inner: StagedObject, name: str) -> HookedStagedObject:
        """What ``stage`` returns for what the inner bucket has staged."""
        return HookedStagedObject(inner, self, name)


class _Hooked(Closing):
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
