"""Limits of the requests and of the bandwidth of a process to a store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from msgspec import Struct

from dsort.errors import InvariantError

MIB = 1 << 20
TAIL_SHARE = 16
"""If the rest of an object after its whole parts is at most a ``TAIL_SHARE``-th of a part, the
whole parts are made a little larger and contain it. A shard with a requested size of 64 MiB has a
few bytes more, for which a fifth request would be needed."""


class StoreLimits(Struct, frozen=True):
    """Limits of one process (one worker, or the coordinator).

    ``part_bytes``: the part size of a multipart upload. Objects of more than 64 such parts get
    parts of ``part_bytes_max`` instead, if that is larger; no object gets more than 10,000 parts,
    so very large ones get larger parts. ``parts_in_flight_max``: the number of part buffers of each
    size, so uploads take ``upload_bytes`` of memory. ``range_bytes``: a larger object is fetched in
    parallel ranges of this size. ``bandwidth_max_bytes_per_s``: the limit for reads and writes
    together; None: no limit.
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
    """The size of a buffer for parts of ``part_bytes``, with room for a share of the rest: see
    ``TAIL_SHARE``."""
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
            # After an idle time, no more than one burst may pass at once.
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
        """Return once ``size_bytes`` more may pass. Other threads get windows in between."""
        for _ in self.windows(size_bytes):
            pass

    def windows(self, size_bytes: int) -> Iterator[slice]:
        """Yield the windows in which ``size_bytes`` bytes may pass, each when its time has come.
        Without a limit, one window has all bytes."""
        if self.bandwidth is None:
            yield slice(0, size_bytes)
            return
        for start in range(0, size_bytes, self.window_bytes):
            stop = min(start + self.window_bytes, size_bytes)
            self.bandwidth.take(stop - start)
            yield slice(start, stop)
