"""A bucket around another one, each of whose operations goes through one method."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from dsort.closing import ClosesOnExit
from dsort.storage.bucket import (
    Bucket,
    Buffer,
    ObjectInfo,
    RandomReads,
    ReadObject,
    StagedObject,
)

T = TypeVar("T")


class HookedBucket:
    """Passes everything on to ``inner``, reads and writes too, each through ``around``.

    Override ``around`` to change all operations in the same way, ``opened`` and ``staged`` to wrap
    open objects, and an operation itself if it needs other code.
    """

    def __init__(self, inner: Bucket) -> None:
        self.inner = inner
        self.uri: str = inner.uri
        self.seals_on_finish: bool = inner.seals_on_finish

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    def around(self, operation: str, name: str, action: Callable[[], T]) -> T:
        """Run ``action``, which does ``operation`` on the object ``name`` ("": on none)."""
        return action()

    def opened(self, inner: ReadObject) -> HookedReadObject:
        """The object that ``open`` returns for the one that the inner bucket has opened."""
        return HookedReadObject(inner, self)

    def staged(self, inner: StagedObject, name: str) -> HookedStagedObject:
        """The object that ``stage`` returns for the one that the inner bucket has staged."""
        return HookedStagedObject(inner, self, name)

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

    def pinned(self, info: ObjectInfo) -> ReadObject | None:
        pinned = self.inner.pinned(info)
        return None if pinned is None else self.opened(pinned)

    def read(self, name: str) -> bytes:
        return self.around("read", name, lambda: self.inner.read(name))

    def write(self, name: str, data: bytes) -> None:
        self.around("write", name, lambda: self.inner.write(name, data))

    def write_new(self, name: str, data: bytes) -> bool:
        return self.around("write_new", name, lambda: self.inner.write_new(name, data))

    def write_over(self, name: str, data: bytes, etag: str) -> bool:
        return self.around("write_over", name, lambda: self.inner.write_over(name, data, etag))

    def delete(self, name: str) -> None:
        self.around("delete", name, lambda: self.inner.delete(name))

    def stage(self, token: str, *, name: str = "", size_bytes: int | None = None) -> StagedObject:
        known_as = name or token

        def stage() -> StagedObject:
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

    def make_durable(self) -> None:
        self.around("make_durable", "", self.inner.make_durable)

    def discard(self, *token_prefixes: str, names: Collection[str] = ()) -> None:
        first = token_prefixes[0]
        self.around("discard", first, lambda: self.inner.discard(*token_prefixes, names=names))

    def free_bytes(self) -> int | None:
        """No other writer comes in between here."""
        return self.inner.free_bytes()

    def local_path(self, name: str) -> Path | None:
        return self.inner.local_path(name)


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
