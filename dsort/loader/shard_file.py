"""The bytes of one shard, for several threads at once; all reads get the version that was read
first. Bytes of a local file are read into the ``bytes`` that the loader returns, without another
copy."""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from dsort.closing import ClosesOnExit
from dsort.errors import ChangedInputError
from dsort.reading.file_ranges import FileRanges
from dsort.reading.places import ShardPlace
from dsort.reading.view import ViewObject
from dsort.storage.bucket import ObjectInfo, ReadObject
from dsort.storage.directory.files import info_of

__all__ = ["DirectFile", "ShardFile"]

PART_BYTES: Final = 8 << 20
"""Longer ranges of an object in a store are read by several requests at once, each of at least this
size."""


class ShardFile(ClosesOnExit):
    """One shard, open for reads of ranges. ``pinned``: its size and etag when it was first opened.

    ``ChangedInputError`` names the shard if it has changed since, or if its length differs from its
    manifest.
    """

    def __init__(self, place: ShardPlace, pinned: ObjectInfo | None, *, most: int) -> None:
        """``most``: the number of parts of a range that are read at once."""
        self._place = place
        self._lock = threading.Lock()
        self._idle: list[ReadObject] = []
        self._most = most
        self._threads: ThreadPoolExecutor | None = None
        self._is_closed = False
        first = place.bucket.open(place.name)
        self.info = first.info
        self._idle.append(first)
        self.is_file = first.rereads_cheaply
        try:
            self._check(pinned or self.info)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the shard. Closing again has no effect."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown()
        for each in idle:
            each.close()

    def direct(self) -> DirectFile | ViewObject | None:
        """The shard for reads of single members by any number of threads; None if it is no local
        file."""
        if not self.is_file:
            return None
        first, place = self._idle[0], self._place
        if isinstance(first, ViewObject):
            return first
        return DirectFile.of(place.bucket.local_path(place.name), self.info, place.bucket.uri)

    def read_into(self, view: memoryview, start: int) -> None:
        """Fill ``view`` from byte ``start``."""
        if self.is_file:  # pread has its own offset, so any number of threads may read
            self._idle[0].read_into(view, start)
            return
        count = min(self._most, len(view) // PART_BYTES)
        if count < 2:
            self._read_part(view, start)
            return
        size = -(-len(view) // count)
        threads = self._pool()
        parts = [
            threads.submit(self._read_part, view[at : at + size], start + at)
            for at in range(size, len(view), size)
        ]
        try:
            self._read_part(view[:size], start)
        finally:
            # Wait for all parts, also after an error: no thread may write to the view afterwards.
            errors = [part.exception() for part in parts]
        for error in errors:
            if error is not None:
                raise error

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._most, thread_name_prefix="dsort-range")
            return self._threads

    def _read_part(self, view: memoryview, start: int) -> None:
        with self._lock:
            source = self._idle.pop() if self._idle else None
        if source is None:
            source = self._place.bucket.open(self._place.name)
        try:
            if not source.info.is_still(self.info.size_bytes, self.info.etag):
                self._changed("has changed while it was read")
            source.read_into(view, start)
        except BaseException:
            source.close()
            raise
        with self._lock:
            if not self._is_closed:
                self._idle.append(source)
                return
        source.close()

    def _check(self, pinned: ObjectInfo) -> None:
        self._place.check_size(self.info.size_bytes)
        listed = self._place.info or pinned
        for each in (pinned, listed):
            if not self.info.is_still(each.size_bytes, each.etag):
                self._changed("has changed since it was first read")

    def _changed(self, what: str) -> None:
        raise ChangedInputError(
            f"shard {self._place.name} in {self._place.bucket.uri} {what}",
            hint="fetch or make it again; `dsort verify` compares all of a result",
        )


class DirectFile(FileRanges):
    """A local file, mostly read forward."""

    @classmethod
    def of(cls, path: Path | None, info: ObjectInfo, where: str) -> DirectFile | None:
        """The file at ``path``; None if it cannot be opened, or if ``info`` describes another
        file."""
        if path is None:
            return None
        try:
            # If a FIFO is in place of the file, a plain open would wait for a writer.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None  # opening it through its bucket reports the error
        found = info_of(info.name, os.fstat(fd))
        if not found.is_still(info.size_bytes, info.etag):
            os.close(fd)
            return None
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        return cls(fd, info.name, where)

    def will_need(self, start: int, size_bytes: int) -> None:
        """The hint costs 5 µs a MiB, so it is left out if the last of the bytes is in the page
        cache."""
        with contextlib.suppress(OSError):
            if os.preadv(self._fd, [bytearray(1)], start + size_bytes - 1, os.RWF_NOWAIT):
                return
        super().will_need(start, size_bytes)
