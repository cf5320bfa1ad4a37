"""A wrapper around any bucket that retries its operations, as requests to object stores are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from dsort.errors import ObjectNotFoundError, TransientStorageError
from dsort.storage.bucket import Bucket, ObjectInfo
from dsort.storage.transport import Transport
from tests.support.hooked_bucket import HookedBucket

T = TypeVar("T")

_ONCE = ("write_at", "finish")


class RetriedBucket(HookedBucket):
    """A bucket whose operations go through ``transport``. Writes to staged objects are tried only
    once."""

    def __init__(self, inner: Bucket, transport: Transport) -> None:
        super().__init__(inner)
        self.transport = transport

    def around(self, operation: str, name: str, action: Callable[[], T]) -> T:
        if operation in _ONCE:
            return self.transport.call_once(action)
        return self.transport.call(self._what(operation, name), action)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        yield from self.around("list", prefix, lambda: [*self.inner.list(prefix)])

    def write_new(self, name: str, data: bytes) -> bool:
        return self._write(name, data, lambda: self.inner.write_new(name, data))

    def write_over(self, name: str, data: bytes, etag: str) -> bool:
        return self._write(name, data, lambda: self.inner.write_over(name, data, etag))

    def put_back(self, token: str, name: str, *, receipt: str) -> None:
        try:
            self.around("put_back", name, lambda: self.inner.put_back(token, name, receipt=receipt))
        except ObjectNotFoundError:  # an earlier try, whose reply was lost, may have done it
            self.stat(name)

    def _write(self, name: str, data: bytes, write: Callable[[], bool]) -> bool:
        is_sure = True

        def tried() -> bool:
            nonlocal is_sure
            try:
                return write()
            except TransientStorageError:
                is_sure = False
                raise

        is_written = self.transport.call(self._what("write", name), tried)
        return is_written or (not is_sure and self.read(name) == data)

    def _what(self, operation: str, name: str) -> str:
        return f"{operation} {name} in bucket {self.uri}"
