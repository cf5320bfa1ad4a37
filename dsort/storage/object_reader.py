"""Objects of a store that are open for reading."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, wait
from typing import Final, Protocol

from dsort.closing import ClosesOnExit
from dsort.errors import StorageError, TransientStorageError
from dsort.storage.bucket import ObjectInfo, RandomReads
from dsort.storage.transport import Transport

LEAST_BYTES_PER_S: Final = 4096
"""A read of N bytes fails if it takes longer than the time limit of a request plus the time of N
bytes at this speed. The timeout of a socket ends only a silence: with it alone, a server that sends
a byte now and then would hold a read for ever."""


class ByteStream(Protocol):
    """The body of one reply."""

    def read_into(self, view: memoryview) -> int:
        """Read the next bytes into ``view``, which is not empty. Returns their number, 0 at the
        end. Returns after one read of the connection, so that a slow reply is noticed.

        ``TransientStorageError`` if the connection breaks."""

    def close(self) -> None:
        """Release the reply without waiting for unread bytes."""


class PinnedObject(ClosesOnExit):
    """See :class:`~dsort.storage.bucket.ReadObject`. Each read is a request for its bytes alone,
    and fails if the object differs from ``info`` by then. Opening makes no request. Any number of
    threads may use the object at once.

    ``fetch(start, stop)`` returns bytes ``start:stop`` of that content (``stop`` None: to the end),
    or raises ``ChangedInputError``. A read that is cut short continues where it stopped.
    """

    rereads_cheaply = False

    def __init__(
        self,
        info: ObjectInfo,
        fetch: Callable[[int, int | None], ByteStream],
        *,
        bucket: str,
        transport: Transport,
    ) -> None:
        self.info: ObjectInfo = info
        self._fetch = fetch
        self._what = f"{info.name} in bucket {bucket}"
        self._transport = transport

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset``. ``StorageError`` if the object is too short."""
        view = self._checked(buffer, offset)
        self._transport.limiter.take(len(view))
        if len(view):
            self._read_range(view, offset)

    def forget(self) -> None:
        """Do nothing: no bytes are kept."""

    def mapping(self) -> memoryview | None:
        """None: an object in a store cannot be mapped."""
        return None

    def random_reads(self) -> RandomReads | None:
        """None: each read would be a request."""
        return None

    def close(self) -> None:
        """Do nothing: no connection is open between reads."""

    def _checked(self, buffer: memoryview, offset: int) -> memoryview:
        view = buffer.cast("B")
        end = offset + len(view)
        if end > self.info.size_bytes:
            raise StorageError(
                f"{self._what} ended at byte {self.info.size_bytes:,}; {end:,} bytes were expected"
            )
        return view

    def _read_range(
        self, view: memoryview, offset: int, is_over: threading.Event | None = None
    ) -> None:
        """Fill ``view`` by a request of its own. ``is_over``: set once the bytes are no longer
        needed."""
        filled = 0

        def read() -> None:
            nonlocal filled
            if is_over is not None and is_over.is_set():
                raise StorageError(f"{self._what} is not read to its end")
            until_s = self._until_s(len(view) - filled)
            stream = self._fetch(offset + filled, offset + len(view))
            try:
                while filled < len(view):
                    filled += self._read_some(stream, view[filled:], offset + filled, until_s)
            finally:
                stream.close()

        self._transport.call(f"read {self._what}", read)

    def _until_s(self, size_bytes: int) -> float:
        """The time by which that many bytes have to be there."""
        transport = self._transport
        now_s = transport.policy.clock()
        return now_s + transport.request_seconds_max + size_bytes / LEAST_BYTES_PER_S

    def _read_some(self, stream: ByteStream, view: memoryview, offset: int, until_s: float) -> int:
        got = stream.read_into(view)
        if got < len(view) and self._transport.policy.clock() > until_s:
            raise TransientStorageError(
                f"{self._what} comes too slowly: byte {offset:,} of {self.info.size_bytes:,}"
            )
        if not got:
            raise TransientStorageError(
                f"{self._what} was cut short: {offset:,} of {self.info.size_bytes:,} bytes came"
            )
        return got


class ObjectReader(PinnedObject):
    """An object that is read in order: by one request, or by several after failures. Only one
    thread at a time may use the reader.

    ``stream``: the object from its first byte on. ``pool`` returns threads for large reads.
    """

    def __init__(
        self,
        info: ObjectInfo,
        stream: ByteStream,
        fetch: Callable[[int, int | None], ByteStream],
        *,
        bucket: str,
        transport: Transport,
        range_bytes: int,
        pool: Callable[[], Executor],
    ) -> None:
        super().__init__(info, fetch, bucket=bucket, transport=transport)
        self._stream: ByteStream | None = stream
        self._position = 0  # the offset of the next byte of the stream
        self._stop = info.size_bytes  # where the stream ends
        self._range_bytes = range_bytes
        self._pool = pool

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset``. ``StorageError`` if the object is too short."""
        view = self._checked(buffer, offset)
        for window in self._transport.limiter.windows(len(view)):
            part, at = view[window], offset + window.start
            if len(part) > self._range_bytes:
                self._read_ranges(part, at)
            elif len(part):
                self._read_on(part, at)

    def close(self) -> None:
        """Release the connection. Closing again has no effect."""
        if self._stream is not None:
            stream, self._stream = self._stream, None
            stream.close()

    def _read_on(self, view: memoryview, offset: int) -> None:
        filled = 0

        def read() -> None:
            nonlocal filled
            until_s = self._until_s(len(view) - filled)
            try:
                if offset + filled != self._position:  # out of order: request only these bytes
                    self._begin(offset + filled, offset + len(view))
                while filled < len(view):
                    if self._stream is None or self._position == self._stop:
                        self._begin(self._position, None)  # in order: the rest will be read, too
                    assert self._stream is not None
                    got = self._read_some(self._stream, view[filled:], self._position, until_s)
                    filled += got
                    self._position += got
            except TransientStorageError:
                self.close()
                raise

        self._transport.call(f"read {self._what}", read)
        if self._position == self.info.size_bytes:
            self.close()

    def _begin(self, start: int, stop: int | None) -> None:
        self.close()
        self._position = start
        self._stop = self.info.size_bytes if stop is None else stop
        self._stream = self._fetch(start, stop)

    def _read_ranges(self, view: memoryview, offset: int) -> None:
        """Fill ``view``, of more than ``range_bytes``, by several requests at once. This thread
        reads the first range from the open stream; each other range has a request of its own."""
        count = -(-len(view) // self._range_bytes)
        step = -(-len(view) // count)
        pool, is_over = self._pool(), threading.Event()
        others = [
            pool.submit(self._read_range, view[at : at + step], offset + at, is_over)
            for at in range(step, len(view), step)
        ]
        try:
            self._read_on(view[:step], offset)
            for each in others:
                each.result()
        finally:
            is_over.set()
            for each in others:
                each.cancel()
            wait(others)  # none may write here afterwards
        self.close()
        self._position = offset + len(view)
