"""A bucket around another one, each of whose operations goes through one method."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

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


def _passed_on(operation: str, name_at: int | None = None) -> Any:
    """A method that does ``operation``, on the object that the argument at ``name_at`` names."""

    def passed_on(self: HookedBucket, *args: Any, **named: Any) -> Any:
        name = "" if name_at is None else args[name_at]
        action = getattr(self.inner, operation)
        return self.around(operation, name, lambda: action(*args, **named))

    return passed_on


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

    exists = _passed_on("exists")
    create = _passed_on("create")
    stat = _passed_on("stat", 0)
    stat_many = _passed_on("stat_many")
    read = _passed_on("read", 0)
    write = _passed_on("write", 0)
    write_new = _passed_on("write_new", 0)
    write_over = _passed_on("write_over", 0)
    delete = _passed_on("delete", 0)
    publish = _passed_on("publish", 1)
    still_staged = _passed_on("still_staged")
    published = _passed_on("published")
    keep_aside = _passed_on("keep_aside", 0)
    put_back = _passed_on("put_back", 1)
    make_durable = _passed_on("make_durable")
    discard = _passed_on("discard", 0)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        yield from self.around("list", prefix, lambda: self.inner.list(prefix))

    def open(self, name: str) -> ReadObject:
        return self.around("open", name, lambda: self.opened(self.inner.open(name)))

    def pinned(self, info: ObjectInfo) -> ReadObject | None:
        pinned = self.inner.pinned(info)
        return None if pinned is None else self.opened(pinned)

    def stage(self, token: str, *, name: str = "", size_bytes: int | None = None) -> StagedObject:
        known_as = name or token

        def stage() -> StagedObject:
            return self.staged(self.inner.stage(token, name=name, size_bytes=size_bytes), known_as)

        return self.around("stage", known_as, stage)

    def free_bytes(self) -> int | None:
        """Not passed through ``around``: no other writer can come in between."""
        return self.inner.free_bytes()

    def local_path(self, name: str) -> Path | None:
        return self.inner.local_path(name)


class _Hooked(ClosesOnExit):
    """An open object, for reading or for writing."""

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
    """A staged object of a :class:`HookedBucket`. ``name``: the name under which it will be
    published, or its token if that name is unknown."""

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
