"""The client of a store in memory, whose requests fail where a test sets a fault."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from obstore.store import MemoryStore

from dsort.errors import TransientStorageError
from dsort.retry import RetryPolicy
from dsort.storage.bucket import INTERNAL_PREFIX, ObjectInfo
from dsort.storage.limit import StoreLimiter, StoreLimits
from dsort.storage.objects import Fetched, ObjectErrors
from dsort.storage.obstore import (
    ObstoreBucket,
    ObstoreClient,
    ObstoreErrors,
    meaning_of_obstore_error,
)
from dsort.storage.transport import Transport
from tests.support.faulty_bucket import Fault, Faults, Script, error_of

if TYPE_CHECKING:
    from dsort.storage.object_reader import ByteStream


_OPERATIONS = {
    "find": "stat",
    "read": "read",
    "write": "write",
    "list": "list",
    "remove": "delete",
    "publish": "publish",
    "keep": "keep_aside",
    "put": "put_back",
}


class FaultyClient(ObstoreClient):
    """A client whose requests ``faults`` strike, like the operations of a ``FaultyBucket``:
    ``stat``, ``read``, ``read_into`` (a stream), ``write``, ``list``, ``delete``, ``publish``,
    ``keep_aside`` and ``put_back``, but no writes of staged objects. ``ranges``: the requested
    ranges."""

    def __init__(
        self, faults: Faults | Sequence[Fault] = (), *, store: MemoryStore | None = None
    ) -> None:
        super().__init__(store or MemoryStore(), uri="memory://test", scheme="gs")
        self.faults: Faults = Script(faults) if isinstance(faults, Sequence) else faults
        self.ranges: list[tuple[int, int | None]] = []

    def doing(self, action: str) -> ObjectErrors:
        verb, _, name = action.partition(" ")
        if verb == "write" and name.startswith(INTERNAL_PREFIX):
            return ObstoreErrors(action)
        return _Struck(self, action, _OPERATIONS[verb], name.partition(" ")[0].rstrip("*"))

    def fetch(self, name: str, start: int, stop: int | None, pinned: ObjectInfo | None) -> Fetched:
        self.ranges.append((start, stop))
        info, stream = super().fetch(name, start, stop, pinned)
        kind = self.faults.due("read_into", name)
        return Fetched(info, stream if kind is None else _Cut(stream, kind))


class _Struck(ObjectErrors):
    def __init__(self, client: FaultyClient, action: str, operation: str, name: str) -> None:
        super().__init__(meaning_of_obstore_error, action)
        self._client = client
        self._operation = operation
        self._name = name
        self._kind: str | None = None

    def __enter__(self) -> None:
        self._kind = self._client.faults.due(self._operation, self._name)
        if self._kind not in (None, "reply lost", "cut"):
            raise self._error()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        if self._kind in ("reply lost", "cut") and error is None:
            raise self._error()

    def _error(self) -> Exception:
        where = f"{self._operation} of {self._name} in {self._client.uri}"
        return error_of(self._kind or "", where)


class _Cut:
    """A stream that breaks after half of the first read."""

    def __init__(self, inner: ByteStream, kind: str) -> None:
        self._inner = inner
        self._kind = kind
        self._has_begun = False

    def read_into(self, view: memoryview) -> int:
        if self._has_begun or self._kind != "cut" or len(view) == 1:
            raise TransientStorageError(f"read_into: the connection was reset ({self._kind})")
        self._has_begun = True
        half = len(view) // 2
        got = self._inner.read_into(view[:half])
        view[half:] = bytes(len(view) - half)  # not the bytes of an earlier read
        return got

    def close(self) -> None:
        self._inner.close()


def stored_in_memory(
    client: ObstoreClient,
    *,
    limits: StoreLimits | None = None,
    policy: RetryPolicy | None = None,
    limiter: StoreLimiter | None = None,
) -> ObstoreBucket:
    """The bucket of ``client``."""
    limits = limits or StoreLimits()
    return ObstoreBucket(client, limits, Transport(limits, policy=policy, limiter=limiter))
