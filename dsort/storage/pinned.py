"""An object of a store that is read only by ranges: :class:`PinnedObject`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dsort.closing import ClosesOnExit
from dsort.errors import StorageError, TransientStorageError
from dsort.storage.bucket import ObjectInfo, RandomReads
from dsort.storage.retry import ReadCutShortError

__all__ = ["PinnedObject"]


class _Stream(Protocol):
    """See :class:`~dsort.storage.objects.ByteStream`."""

    def read_into(self, view: memoryview) -> int: ...

    def close(self) -> None: ...


class PinnedObject(ClosesOnExit):
    """See :class:`~dsort.storage.bucket.ReadObject`. Each read is a request for these bytes only,
    which fails if the object is not the one of ``info`` any more. Opening makes no request. Any
    number of threads may use it at once.

    ``fetch(start, stop)`` returns bytes ``start:stop`` of that content, or raises
    ``ChangedInputError``.
    """

    rereads_cheaply = False

    def __init__(self, info: ObjectInfo, fetch: Callable[[int, int], _Stream], bucket: str) -> None:
        self.info: ObjectInfo = info
        self._fetch = fetch
        self._bucket = bucket

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset``. ``StorageError`` if the object ends before that."""
        view = buffer.cast("B")
        end = offset + len(view)
        if end > self.info.size_bytes:
            raise StorageError(
                f"{self.info.name} in bucket {self._bucket} ended at byte "
                f"{self.info.size_bytes:,}, {end:,} expected"
            )
        filled = 0
        try:
            if filled < len(view):
                stream = self._fetch(offset, end)
                try:
                    while filled < len(view):
                        got = stream.read_into(view[filled:])
                        if not got:
                            raise TransientStorageError(
                                f"{self.info.name} in bucket {self._bucket} was cut short: bytes "
                                f"{offset:,} to {end:,} were asked for, {filled:,} came"
                            )
                        filled += got
                finally:
                    stream.close()
        except TransientStorageError as error:
            raise ReadCutShortError(error.message, filled_bytes=filled, hint=error.hint) from error

    def forget(self) -> None:
        """Do nothing: no bytes are kept."""

    def mapping(self) -> memoryview | None:
        """None: an object in a store cannot be mapped."""
        return None

    def random_reads(self) -> RandomReads | None:
        """None: ``read_into`` serves for them."""
        return None

    def close(self) -> None:
        """Do nothing: no connection is open between reads."""
