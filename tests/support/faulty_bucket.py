"""Buckets that fail or answer late where a test sets a fault: wrappers around any other bucket.

A fault strikes an *operation*: a method of ``Bucket``, ``read_into`` of an opened object, or
``write_at`` and ``finish`` of a staged object. The name of a staged object is the name under which
it will be published, or its token if that name is unknown.
"""

from __future__ import annotations

import fnmatch
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from msgspec.structs import replace

from dsort.errors import StorageAccessError, StorageError, StorageFullError, TransientStorageError
from dsort.storage.bucket import Bucket, Buffer, ObjectInfo, ReadObject, StagedObject
from tests.support.hooked_bucket import (
    HookedBucket,
    HookedReadObject,
    HookedStagedObject,
)

T = TypeVar("T")

ALWAYS = sys.maxsize

_REPLIES = {
    "timeout": "no answer within the time allowed",
    "reset": "the connection was reset",
    "429": "429 Too Many Requests",
    "500": "500 Internal Server Error",
    "502": "502 Bad Gateway",
    "503": "503 SlowDown",
}
TRANSIENT = tuple(_REPLIES)
"""Transient kinds of faults, which strike before the operation has an effect."""

_DESCRIBING = ("stat", "stat_many", "list", "open")
_KEEPING = ("keep_aside", "put_back")
_CHANGING = (
    "create",
    "write",
    "write_new",
    "write_over",
    "delete",
    "publish",
    "make_durable",
    "discard",
    *_KEEPING,
)
RETRIED = ("exists", "read", "read_into", "stage", "published", *_DESCRIBING, *_CHANGING)
"""The operations that are tried again."""
_OPERATIONS = (*RETRIED, "write_at", "finish")

KINDS: Mapping[str, Collection[str]] = {
    **dict.fromkeys(TRANSIENT, _OPERATIONS),
    "denied": _OPERATIONS,  # StorageAccessError
    "full": _OPERATIONS,  # StorageFullError
    "cut": ("read_into", "list"),  # half of it comes
    "reply lost": (*_CHANGING, "finish"),  # it takes effect, and fails like a reset connection
    "size": _DESCRIBING,  # one byte more than there is
    "etag": _DESCRIBING,  # another one than the object has
    "short": ("write", "write_new", "write_at"),  # the last byte is not stored, without an error
}
"""Every kind of fault, and the operations that it can strike."""


@dataclass(frozen=True)
class Fault:
    """A fault of one operation: at call number ``first`` (from 1) on objects that match ``name`` (a
    glob), and at ``times - 1`` calls after it. ``Fault("read_into", "reset", "shard-2", first=3,
    times=2)``: the 3rd and the 4th read of shard-2 fail."""

    operation: str
    kind: str
    name: str = "*"
    first: int = 1
    times: int = 1

    def __post_init__(self) -> None:
        assert self.operation in KINDS[self.kind], f"{self.kind} cannot strike {self.operation}"


class Faults(Protocol):
    """Decides which kind of fault strikes a call, if any. ``struck``: all that struck, in order."""

    struck: list[tuple[str, str, str]]

    def due(self, operation: str, name: str) -> str | None: ...


class Script:
    """A list of faults. If several are due at a call, the first of them strikes."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.struck: list[tuple[str, str, str]] = []
        self._faults = tuple(faults)
        self._calls: Counter[int] = Counter()
        self._lock = threading.Lock()

    def due(self, operation: str, name: str) -> str | None:
        kind = None
        with self._lock:
            for number, fault in enumerate(self._faults):
                if fault.operation != operation or not fnmatch.fnmatchcase(name, fault.name):
                    continue
                self._calls[number] += 1
                if kind is None and 0 <= self._calls[number] - fault.first < fault.times:
                    kind = fault.kind
            if kind is not None:
                self.struck.append((operation, name, kind))
        return kind


class RandomFaults:
    """Faults by chance: each call of an operation on a name is struck with probability ``rate``,
    but never more than ``in_a_row_max`` times in a row. The fault of the n-th such call depends
    only on the seed, n, operation and name, so threads and processes do not change it.
    """

    def __init__(
        self,
        seed: int | str,
        *,
        rate: float,
        kinds: Collection[str] = TRANSIENT,
        operations: Collection[str] = RETRIED,
        in_a_row_max: int = 2,
    ) -> None:
        self.seed = seed
        self.rate = rate
        self.struck: list[tuple[str, str, str]] = []
        self._kinds = {
            operation: [kind for kind in kinds if operation in KINDS[kind]]
            for operation in operations
        }
        self._in_a_row_max = in_a_row_max
        self._calls: Counter[tuple[str, str]] = Counter()
        self._in_a_row: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        print(f"faults by chance: {self!r}", file=sys.stderr)  # a worker's stdout may be taken

    def __repr__(self) -> str:
        return f"RandomFaults(seed={self.seed!r}, rate={self.rate})"

    def due(self, operation: str, name: str) -> str | None:
        kinds = self._kinds.get(operation)
        if not kinds:
            return None
        call = (operation, name)
        with self._lock:
            self._calls[call] += 1
            chance = random.Random(f"{self.seed}/{operation}/{name}/{self._calls[call]}")
            if chance.random() >= self.rate or self._in_a_row[call] >= self._in_a_row_max:
                self._in_a_row[call] = 0
                return None
            self._in_a_row[call] += 1
            kind = chance.choice(kinds)
            self.struck.append((operation, name, kind))
        return kind


class FaultyBucket(HookedBucket):
    """A bucket that is struck by ``faults``; a list of them is a :class:`Script`."""

    def __init__(self, inner: Bucket, faults: Faults | Sequence[Fault]) -> None:
        super().__init__(inner)
        self.faults: Faults = Script(faults) if isinstance(faults, Sequence) else faults

    @property
    def struck(self) -> list[tuple[str, str, str]]:
        """(operation, name, kind) of the faults that struck so far."""
        return self.faults.struck

    def around(self, operation: str, name: str, action: Callable[[], T]) -> T:
        kind = self.faults.due(operation, name)
        return action() if kind is None else self._strike(kind, operation, name, action)

    def _strike(self, kind: str, operation: str, name: str, action: Callable[[], T]) -> T:
        if kind == "reply lost":
            action()
        elif kind in ("size", "etag"):
            return _described_wrongly(action(), kind)
        raise self.error(kind, operation, name)

    def error(self, kind: str, operation: str, name: str) -> StorageError:
        """The error that a caller receives for a fault."""
        return error_of(kind, f"{operation} of {name or 'the bucket'} in {self.uri}")

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        kind = self.faults.due("list", prefix)
        if kind == "cut":
            infos = list(self.inner.list(prefix))
            yield from infos[: len(infos) // 2]
            raise self.error(kind, "list", prefix)
        if kind in ("size", "etag"):
            yield from (_described_wrongly(info, kind) for info in self.inner.list(prefix))
        elif kind is not None:
            raise self.error(kind, "list", prefix)
        else:
            yield from self.inner.list(prefix)

    def write(self, name: str, data: bytes) -> None:
        kind = self.faults.due("write", name)
        if kind in (None, "short"):
            self.inner.write(name, data[:-1] if kind else data)
        else:
            self._strike(kind, "write", name, lambda: self.inner.write(name, data))

    def write_new(self, name: str, data: bytes) -> bool:
        kind = self.faults.due("write_new", name)
        if kind in (None, "short"):
            return self.inner.write_new(name, data[:-1] if kind else data)
        return self._strike(kind, "write_new", name, lambda: self.inner.write_new(name, data))

    def opened(self, inner: ReadObject) -> HookedReadObject:
        return _FaultyReadObject(inner, self)

    def staged(self, inner: StagedObject, name: str) -> HookedStagedObject:
        return _FaultyStagedObject(inner, self, name)


class _FaultyReadObject(HookedReadObject):
    def __init__(self, inner: ReadObject, owner: FaultyBucket) -> None:
        super().__init__(inner, owner)
        self._faulty = owner

    def read_into(self, buffer: memoryview, offset: int) -> None:
        kind = self._faulty.faults.due("read_into", self.inner.info.name)
        if kind is None:
            self.inner.read_into(buffer, offset)
            return
        error = self._faulty.error(kind, "read_into", self.inner.info.name)
        if kind == "cut":
            half = len(buffer) // 2
            self.inner.read_into(buffer[:half], offset)
            buffer[half:] = bytes(len(buffer) - half)  # not the bytes of an earlier read
        raise error


class _FaultyStagedObject(HookedStagedObject):
    """Once it was struck by "short", nothing more is stored, but all is acknowledged."""

    def __init__(self, inner: StagedObject, owner: FaultyBucket, name: str) -> None:
        super().__init__(inner, owner, name)
        self._faulty = owner
        self._reported_bytes: int | None = None

    def write_at(self, offset: int, slices: Sequence[Buffer]) -> None:
        kind = self._faulty.faults.due("write_at", self.name)
        data = b"".join(slices)
        if self._reported_bytes is not None:
            self._reported_bytes = max(self._reported_bytes, offset + len(data))
        elif kind == "short":
            self.inner.write_at(offset, [data[:-1]])
            self._reported_bytes = offset + len(data)
        elif kind is not None:
            raise self._faulty.error(kind, "write_at", self.name)
        else:
            self.inner.write_at(offset, slices)

    def size_bytes(self) -> int:
        return self.inner.size_bytes() if self._reported_bytes is None else self._reported_bytes


def error_of(kind: str, where: str) -> StorageError:
    """The error that a caller receives for a fault."""
    if kind == "denied":
        return StorageAccessError(f"{where}: access denied")
    if kind == "full":
        return StorageFullError(f"{where}: no room is left")
    return TransientStorageError(f"{where}: {_REPLIES.get(kind, _REPLIES['reset'])}")


def _described_wrongly(described: T, kind: str) -> T:
    """``described`` (an object's info, several by name, or an open object) with one wrong
    value."""
    if isinstance(described, dict):
        return {name: _described_wrongly(info, kind) for name, info in described.items()}  # type: ignore[return-value]
    if isinstance(described, HookedReadObject):
        described.info = _described_wrongly(described.info, kind)
        return described
    assert isinstance(described, ObjectInfo), f"{described!r} describes nothing"
    if kind == "size":
        return replace(described, size_bytes=described.size_bytes + 1)
    return replace(described, etag=f"{described.etag}-other")
