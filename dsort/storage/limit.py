"""Limits the requests and the bandwidth of a process to a store: :class:`LimitedBucket`.

Place it directly around the backend and inside of the retries, so that a request that waits for its
next try takes no place from others, and every try is counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from msgspec import Struct

from dsort.closing import ClosesOnExit
from dsort.errors import InvariantError, TransientStorageError
from dsort.storage.bucket import Bucket, Buffer, ObjectInfo, RandomReads, ReadObject, StagedObject
from dsort.storage.retry import ReadCutShortError
from dsort.storage.wrapped import WrappedBucket

__all__ = [
    "TAIL_SHARE",
    "Bandwidth",
    "LimitedBucket",
    "StoreLimiter",
    "StoreLimits",
    "part_room",
]

T = TypeVar("T")


MIB = 1 << 20
TAIL_SHARE = 16
"""If the rest of an object after its whole parts is at most a ``TAIL_SHARE``-th of a part, it is
sent with these parts: a shard with a requested size of 64 MiB has a little more, which took a fifth
request."""


class StoreLimits(Struct, frozen=True):
    """Limits of one process (one worker, or the coordinator).

    ``part_bytes``: the part size of a multipart upload. ``part_bytes_max``, if larger, replaces it
    where there would be over 64 parts; parts are as large as needed where there would be over
    10,000. ``parts_in_flight_max``: the number of part buffers of each size, so uploads take
    ``upload_bytes`` of memory. ``range_bytes``: a larger object is fetched in parallel ranges of
    this size. ``bandwidth_max_bytes_per_s``: of reads and writes together; None: no limit.
    """

    requests_in_flight_max: int = 16
    part_bytes: int = 16 * MIB
    part_bytes_max: int = 0
    parts_in_flight_max: int = 2
    range_bytes: int = 64 * MIB
    bandwidth_max_bytes_per_s: float | None = None
    tries_max: int = 8
    retry_seconds_max: float = 120.0
    request_seconds_max: float = 300.0

    @property
    def upload_bytes(self) -> int:
        """The memory of all part buffers."""
        large = self.part_bytes_max if self.part_bytes_max > self.part_bytes else 0
        return (part_room(self.part_bytes) + part_room(large)) * self.parts_in_flight_max


def part_room(part_bytes: int) -> int:
    """The size of a buffer for parts of ``part_bytes``, a little larger: see ``TAIL_SHARE``."""
    return part_bytes + part_bytes // TAIL_SHARE


_WINDOW_BYTES_MIN = 64 << 10
_WINDOW_BYTES_MAX = 8 << 20
_WINDOW_S = 0.1
_SLICE_S_MAX = 0.25  # waits are cut into slices, so that a thread can be stopped soon


class Bandwidth:
    """A token bucket: in any ``t`` seconds at most ``bytes_per_s * t + burst_bytes`` may pass.

    Threads are served in the order of their calls. A piece larger than ``burst_bytes`` waits until
    the rate allows all of it.
    """

    def __init__(
        self,
        bytes_per_s: float,
        *,
        burst_bytes: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if bytes_per_s <= 0 or burst_bytes < 0:
            raise InvariantError(f"a bandwidth of {bytes_per_s} bytes/s, bursts of {burst_bytes}")
        self._bytes_per_s = bytes_per_s
        self._burst_s = burst_bytes / bytes_per_s
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._paid_until = clock() - self._burst_s

    def take(self, size_bytes: int) -> None:
        """Return once ``size_bytes`` more may pass."""
        with self._lock:
            begin = max(self._paid_until, self._clock() - self._burst_s)
            due = self._paid_until = begin + size_bytes / self._bytes_per_s
        while (left_s := due - self._clock()) > 0:
            self._sleep(min(left_s, _SLICE_S_MAX))


class StoreLimiter:
    """The limits that all buckets of a process share: places for requests, and the bandwidth (None:
    no limit).

    ``window_bytes``: larger pieces pass in windows of this size, about ten a second, so that the
    rate is smooth. The bytes of a tenth of a second may pass as a burst.
    """

    def __init__(
        self,
        limits: StoreLimits,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if limits.requests_in_flight_max < 1:
            raise InvariantError(f"{limits.requests_in_flight_max} requests in flight")
        self.requests = threading.Semaphore(limits.requests_in_flight_max)
        self.bandwidth: Bandwidth | None = None
        self.window_bytes = _WINDOW_BYTES_MAX
        rate = limits.bandwidth_max_bytes_per_s
        if rate is not None:
            burst_bytes = int(rate * _WINDOW_S)
            self.window_bytes = min(max(burst_bytes, _WINDOW_BYTES_MIN), _WINDOW_BYTES_MAX)
            self.bandwidth = Bandwidth(rate, burst_bytes=burst_bytes, clock=clock, sleep=sleep)

    def take(self, size_bytes: int) -> None:
        """Return once ``size_bytes`` more may pass."""
        if self.bandwidth is not None:
            self.bandwidth.take(size_bytes)


class _LimitedReadObject(ClosesOnExit):
    def __init__(self, inner: ReadObject, limiter: StoreLimiter) -> None:
        self.inner = inner
        self.info: ObjectInfo = inner.info
        self.rereads_cheaply: bool = inner.rereads_cheaply
        self._limiter = limiter

    def read_into(self, buffer: memoryview, offset: int) -> None:
        if self._limiter.bandwidth is not None:
            self._read_windows(buffer.cast("B"), offset)
            return
        with self._limiter.requests:
            self.inner.read_into(buffer, offset)

    def _read_windows(self, buffer: memoryview, offset: int) -> None:
        for begin in range(0, len(buffer), self._limiter.window_bytes):
            window = buffer[begin : begin + self._limiter.window_bytes]
            self._limiter.take(len(window))
            try:
                with self._limiter.requests:
                    self.inner.read_into(window, offset + begin)
            except TransientStorageError as error:
                filled = error.filled_bytes if isinstance(error, ReadCutShortError) else 0
                raise ReadCutShortError(
                    error.message, filled_bytes=begin + filled, hint=error.hint
                ) from error

    def forget(self) -> None:
        self.inner.forget()

    def mapping(self) -> memoryview | None:
        return self.inner.mapping()

    def random_reads(self) -> RandomReads | None:
        return self.inner.random_reads()

    def close(self) -> None:
        self.inner.close()


class _LimitedRanges(_LimitedReadObject):
    """Each read is a request and is not split: it waits for the bandwidth of all its bytes
    first."""

    def _read_windows(self, buffer: memoryview, offset: int) -> None:
        for begin in range(0, len(buffer), self._limiter.window_bytes):
            self._limiter.take(min(self._limiter.window_bytes, len(buffer) - begin))
        with self._limiter.requests:
            self.inner.read_into(buffer, offset)


class _LimitedStagedObject(ClosesOnExit):
    def __init__(self, inner: StagedObject, limiter: StoreLimiter) -> None:
        self.inner = inner
        self._limiter = limiter

    def write_at(self, offset: int, slices: Sequence[Buffer]) -> None:
        if self._limiter.bandwidth is None:
            with self._limiter.requests:
                self.inner.write_at(offset, slices)
            return
        for window in _windows(slices, self._limiter.window_bytes):
            size_bytes = sum(len(piece) for piece in window)
            self._limiter.take(size_bytes)
            with self._limiter.requests:
                self.inner.write_at(offset, window)
            offset += size_bytes

    def start_sync(self, offset: int, size_bytes: int) -> None:
        self.inner.start_sync(offset, size_bytes)

    def sync(self) -> None:
        self.inner.sync()

    def finish(self) -> str:
        with self._limiter.requests:
            return self.inner.finish()

    def size_bytes(self) -> int:
        return self.inner.size_bytes()

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self.inner.read_into(buffer, offset)

    def close(self) -> None:
        self.inner.close()


def _windows(slices: Sequence[Buffer], window_bytes: int) -> Iterator[list[memoryview]]:
    """``slices`` divided into windows of at most ``window_bytes`` bytes each, without copies."""
    window: list[memoryview] = []
    room = window_bytes
    for each in slices:
        left = memoryview(each).cast("B")
        while len(left):
            window.append(left[:room])
            left = left[room:]
            room -= len(window[-1])
            if room == 0:
                yield window
                window, room = [], window_bytes
    if window:
        yield window


class LimitedBucket(WrappedBucket):
    """A bucket behind a :class:`StoreLimiter` (see :class:`~dsort.storage.bucket.Bucket`).

    A call takes one place, for any number of requests that the backend makes for it. A listing
    takes one only while it gets its next object. The bandwidth counts the bytes of objects that are
    read and written, but no other bytes (headers, listings) and no mapped objects.
    """

    def __init__(self, inner: Bucket, limiter: StoreLimiter) -> None:
        super().__init__(inner)
        self.limiter = limiter

    def around(self, operation: str, name: str, action: Callable[[], T]) -> T:
        with self.limiter.requests:
            return action()

    def opened(self, inner: ReadObject) -> ReadObject:
        return _LimitedReadObject(inner, self.limiter)

    def pinned(self, info: ObjectInfo) -> ReadObject | None:
        pinned = self.inner.pinned(info)
        return None if pinned is None else _LimitedRanges(pinned, self.limiter)

    def staged(self, inner: StagedObject, name: str) -> StagedObject:
        return _LimitedStagedObject(inner, self.limiter)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        listing = self.around("list", prefix, lambda: iter(self.inner.list(prefix)))
        while (info := self.around("list", prefix, lambda: next(listing, None))) is not None:
            yield info

    def read(self, name: str) -> bytes:
        """Its bytes are counted afterwards, because their number is not known before."""
        data = super().read(name)
        self.limiter.take(len(data))
        return data

    def write(self, name: str, data: bytes) -> None:
        self.limiter.take(len(data))
        super().write(name, data)

    def write_new(self, name: str, data: bytes) -> bool:
        self.limiter.take(len(data))
        return super().write_new(name, data)

    def write_over(self, name: str, data: bytes, etag: str) -> bool:
        self.limiter.take(len(data))
        return super().write_over(name, data, etag)
