"""``HoppedShard``: an input shard in a store, from which little more than headers is read.

Where records have megabytes, one request per header moves fewer bytes than fetching the whole
shard, and takes no more processor time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import CancelledError

from dsort.closing import ClosesOnExit
from dsort.containers.base import Container, drive
from dsort.storage.bucket import ObjectInfo, ReadObject

HOP_BYTES = 16 << 10
"""The bytes fetched from a header on: in most shards, a record's small members are next to it."""


class HoppedShard(ClosesOnExit, ReadObject):
    """Keeps up to ``kept_bytes_max`` of the fetched bytes, so that reading them again needs no
    second request. For one thread at a time."""

    rereads_cheaply = True

    def __init__(self, pinned: ReadObject, kept_bytes_max: int) -> None:
        self.info: ObjectInfo = pinned.info
        self._pinned = pinned
        self._room = kept_bytes_max
        self._starts: list[int] = []
        self._kept: list[memoryview] = []

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset``."""
        at = bisect_right(self._starts, offset) - 1
        if at >= 0:
            first = offset - self._starts[at]
            if first + len(buffer) <= len(self._kept[at]):
                buffer[:] = self._kept[at][first : first + len(buffer)]
                return
        # The request ends at the end of the object, unless the caller reads past that: then the
        # store reports an error.
        size = min(max(len(buffer), HOP_BYTES), max(self.info.size_bytes - offset, len(buffer)))
        # The bytes are payload, or no room is left: they are not kept.
        if size > HOP_BYTES or size > self._room:
            self._pinned.read_into(buffer, offset)
            return
        found = memoryview(bytearray(size))
        self._pinned.read_into(found, offset)
        self._room -= size
        self._starts.insert(at + 1, offset)
        self._kept.insert(at + 1, found)
        buffer[:] = found[: len(buffer)]

    def peek(self, buffer: memoryview, offset: int) -> int:
        """Read a few bytes into ``buffer``; return their number."""
        size = min(len(buffer), self.info.size_bytes - offset)
        self.read_into(buffer[:size], offset)
        return size

    def announce(self, offset: int, size_bytes: int) -> None:
        """Do nothing. A request costs money, so bytes are requested only when they are read."""

    def scan(self, container: Container, *, until: Callable[[], bool]) -> None:
        """Fetch the headers that a scan of the shard will read. ``CancelledError`` as soon as
        ``until`` returns true."""

        def read(offset: int, size: int) -> memoryview:
            if until():
                raise CancelledError
            window = memoryview(bytearray(size))
            self.read_into(window, offset)
            return window

        total = self.info.size_bytes
        scanner = container.scanner(self.info.name, total)
        drive(scanner, total, read, window_bytes=HOP_BYTES)

    def forget(self) -> None:
        """Discard the fetched bytes."""
        self._starts.clear()
        self._kept.clear()

    def close(self) -> None:
        """Discard the fetched bytes and close the object."""
        self.forget()
        self._pinned.close()
