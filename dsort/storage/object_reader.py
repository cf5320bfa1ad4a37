"""An object of a store, open for reading: one stream, gone on with for as long as reads follow upon
each other.

What costs is a request, not a byte: so an object is asked for once, when it is opened, and its
reply is read as the bytes are wanted. A read elsewhere asks for just its range. A read of more than
``range_bytes`` asks for several ranges at once, since stores give one connection only so much
(AWS, "Performance guidelines for Amazon S3": byte-range fetches); the bytes go to where they
belong, none is copied twice.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Protocol

from dsort.closing import Closing
from dsort.errors import StorageError, TransientStorageError
from dsort.storage.bucket import ObjectInfo
from dsort.storage.retry import ReadCutShortError

__all__ = ["ByteStream", "ObjectReader"]


class ByteStream(Protocol):
    """The body of one reply."""

    def read_into(self, view: memoryview) -> int:
        """Put the next bytes into ``view``, which is not empty; how many, 0 at the end.

        ``TransientStorageError`` if the connection breaks."""

    def close(self) -> None:
        """Release it; bytes not read yet are not waited for."""


class ObjectReader(Closing):
    """See :class:`~dsort.storage.bucket.ReadObject`. For one thread at a time.

    ``stream`` gives the object from its first byte on. ``fetch(start, stop)`` gives bytes
    ``start:stop`` of the same content (``stop`` None: to the end), or raises ``ChangedInputError``.
    ``pool`` gives other threads for large reads.

    What fails in mid-read raises ``ReadCutShortError``; a next read goes on from there.
    """

    rereads_cheaply = False

    def __init__(
        self,
        info: ObjectInfo,
        stream: ByteStream,
        fetch: Callable[[int, int | None], ByteStream],
        *,
        bucket: str,
        range_bytes: int,
        pool: Callable[[], Executor],
    ) -> None:
        self.info: ObjectInfo = info
        self._stream: ByteStream | None = stream
        self._position = 0  # of the next byte that the stream gives, or gave
        self._stop = info.size_bytes  # where the stream ends
        self._fetch = fetch
        self._bucket = bucket
        self._range_bytes = range_bytes
        self._pool = pool

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset``; ``StorageError`` if the object ends too soon."""
        buffer = buffer.cast("B")
        end = offset + len(buffer)
        if end > self.info.size_bytes:
            raise StorageError(
                f"{self.info.name} in bucket {self._bucket} ended at byte "
                f"{self.info.size_bytes:,}, {end:,} expected"
            )
        if len(buffer) > self._range_bytes:
            self._read_ranges(buffer, offset)
        elif len(buffer):
            self._read_on(buffer, offset)

    def forget(self) -> None:
        """Nothing is kept."""

    def mapping(self) -> memoryview | None:
        """What is elsewhere cannot be mapped."""
        return None

    def close(self) -> None:
        """Release the connection. Closing again is harmless."""
        if self._stream is not None:
            stream, self._stream = self._stream, None
            stream.close()

    def _read_on(self, buffer: memoryview, offset: int) -> None:
        if offset != self._position:  # elsewhere: no more than is asked for
            self._begin(offset, offset + len(buffer))
        filled = 0
        try:
            while filled < len(buffer):
                if self._stream is None or self._position == self._stop:
                    self._begin(self._position, None)  # in order: the rest will be wanted, too
                assert self._stream is not None
                got = self._read_some(self._stream, buffer[filled:], offset + filled)
                filled += got
                self._position += got
        except TransientStorageError as error:
            self.close()
            raise _cut_short(error, filled) from error
        if self._position == self.info.size_bytes:
            self.close()

    def _begin(self, start: int, stop: int | None) -> None:
        self.close()
        self._position = start
        self._stop = self.info.size_bytes if stop is None else stop
        self._stream = self._fetch(start, stop)

    def _read_some(self, stream: ByteStream, view: memoryview, offset: int) -> int:
        got = stream.read_into(view)
        if not got:
            raise TransientStorageError(
                f"{self.info.name} in bucket {self._bucket} was cut short: {offset:,} of "
                f"{self.info.size_bytes:,} bytes came"
            )
        return got

    def _read_ranges(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer``, of more than ``range_bytes``, by several requests at once: the first
        range from the stream that is open, in this thread, the others each by its own."""
        count = -(-len(buffer) // self._range_bytes)
        step = -(-len(buffer) // count)
        views = [buffer[at : at + step] for at in range(0, len(buffer), step)]
        pool = self._pool()
        others = [
            pool.submit(self._read_range, view, offset + number * step)
            for number, view in enumerate(views)
            if number
        ]
        filled = 0
        failed: ReadCutShortError | None = None
        try:
            self._read_on(views[0], offset)
            filled = len(views[0])
        except ReadCutShortError as error:
            filled, failed = error.filled_bytes, error
        finally:
            ended = [_ended(each) for each in others]  # none may write here after we returned
        for got, reason in ended:
            if isinstance(reason, TransientStorageError):
                failed = failed or _cut_short(reason, filled + got)
            elif reason is not None:
                raise reason
            if failed is None:
                filled += got
        self.close()
        if failed is not None:
            self._position = offset + failed.filled_bytes
            raise failed
        self._position = offset + len(buffer)

    def _read_range(self, view: memoryview, offset: int) -> tuple[int, StorageError | None]:
        """Fill ``view`` by a request of its own: how far it got, and why no further."""
        filled = 0
        try:
            stream = self._fetch(offset, offset + len(view))
            try:
                while filled < len(view):
                    filled += self._read_some(stream, view[filled:], offset + filled)
            finally:
                stream.close()
        except TransientStorageError as error:
            return filled, error
        return filled, None


def _ended(read: Future[tuple[int, StorageError | None]]) -> tuple[int, BaseException | None]:
    error = read.exception()
    return (0, error) if error is not None else read.result()


def _cut_short(error: TransientStorageError, filled_bytes: int) -> ReadCutShortError:
    return ReadCutShortError(error.message, filled_bytes=filled_bytes, hint=error.hint)
