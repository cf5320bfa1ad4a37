"""One run of files, read as the tar that it would be."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat

import numpy as np

from dsort.closing import ClosesOnExit
from dsort.errors import ChangedInputError, ObjectNotFoundError, StorageError
from dsort.loose_files.listing import BLOCK_BYTES, LITERAL, Listing, stamp_of
from dsort.storage.bucket import Bucket, ReadObject
from dsort.storage.directory.files import info_of, storage_error_of
from dsort.user_code.tar_headers import tar_header

__all__ = ["FilesShard", "Places"]

_NAMES = ("utf-8", "surrogateescape")
READS_AT_ONCE = 16
"""Of objects in a store, where each is a request."""


class Places:
    """Where the files of the inputs are. ``roots``: the directory of each, None for a store."""

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self.buckets = buckets
        paths = (bucket.local_path("x") for bucket in buckets)
        self.roots = [None if path is None else os.fsencode(path.parent) + b"/" for path in paths]
        self.are_local = all(root is not None for root in self.roots)

    def read_into(
        self, target: memoryview, number: int, path: bytes, start: int, size: int, stamp: int
    ) -> None:
        """Fill ``target`` from byte ``start`` of the file ``path``, which has ``size`` bytes.
        ``ChangedInputError`` if it is not what had ``stamp``."""
        root = self.roots[number]
        if root is None:
            with self._open(number, path) as opened:
                info = opened.info
                if info.size_bytes != size or stamp_of(info) != stamp:
                    raise _changed(path)
                if size:
                    opened.read_into(target, start)
            return
        try:
            # Not blocking: what turns out to be a pipe must not keep us waiting.
            fd = os.open(root + path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode) or stamp_of(info_of("", status)) != stamp:
                    raise _changed(path)
                while target:
                    got = os.preadv(fd, [target], start)
                    if not got:
                        raise _changed(path)
                    start += got
                    target = target[got:]
            finally:
                os.close(fd)
        except FileNotFoundError:
            raise _changed(path) from None
        except OSError as error:
            name = path.decode(*_NAMES)
            raise storage_error_of(error, f"read {name}", self.buckets[number].uri) from error

    def _open(self, number: int, path: bytes) -> ReadObject:
        try:
            return self.buckets[number].open(path.decode(*_NAMES))
        except ObjectNotFoundError:
            raise _changed(path) from None


def _changed(path: bytes) -> ChangedInputError:
    return ChangedInputError(
        f"file {path.decode('utf-8', 'backslashreplace')} changed while the job ran",
        hint="start the job again once nothing writes to its inputs",
    )


class FilesShard(ClosesOnExit):
    """A run of files, open (see :class:`~dsort.storage.bucket.ReadObject`)."""

    def __init__(self, listing: Listing, number: int, places: Places) -> None:
        rows = listing.rows(number)
        self.info = listing.info(number)
        self.rereads_cheaply = places.are_local
        self._places = places
        self._names = listing.names.run(rows.start, rows.stop)
        self._paths = listing.paths.run(rows.start, rows.stop)
        self._sizes = listing.sizes[rows]
        self._inputs = listing.inputs[rows].tolist()
        self._stamps = listing.stamps[rows].tolist()
        self._heads = listing.header_bytes(rows)
        stored = self._heads + self._sizes + (-self._sizes % BLOCK_BYTES)
        self._ends = np.cumsum(stored)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset`` of the tar. ``ChangedInputError`` names a file that
        is not what it was when it was listed."""
        stop = offset + len(buffer)
        if stop > self.info.size_bytes:
            raise StorageError(f"{self.info.name} ends at byte {self.info.size_bytes:,}")
        first = int(np.searchsorted(self._ends, offset, side="right"))
        last = min(int(np.searchsorted(self._ends, stop)) + 1, len(self._ends))
        members = range(first, last)
        if self._places.are_local or len(members) < 2:
            for row in members:
                self._fill(row, buffer, offset)
        else:
            with ThreadPoolExecutor(READS_AT_ONCE) as pool:
                for _ in pool.map(self._fill, members, repeat(buffer), repeat(offset)):
                    pass
        end = int(self._ends[-1]) if len(self._ends) else 0
        if stop > end:  # the end of the tar
            at = max(end - offset, 0)
            buffer[at:] = bytes(len(buffer) - at)

    def _fill(self, row: int, buffer: memoryview, offset: int) -> None:
        """Put what of a member lies in ``buffer``, which begins at byte ``offset``."""
        size, head = int(self._sizes[row]), int(self._heads[row])
        end = int(self._ends[row])
        start = end - head - size - (-size % BLOCK_BYTES) - offset
        body, tail, path = start + head, start + head + size, self._paths[row]
        if body > 0:
            _put(buffer, start, tar_header(self._names[row], size))
        if self._inputs[row] == LITERAL:
            _put(buffer, body, path)
        elif tail >= 0 and body < len(buffer):
            low, high = max(body, 0), min(tail, len(buffer))
            self._places.read_into(
                buffer[low:high], self._inputs[row], path, low - body, size, self._stamps[row]
            )
        _put(buffer, tail, bytes(end - offset - tail))

    def forget(self) -> None:
        """Nothing: files are read once, and closed."""

    def mapping(self) -> memoryview | None:
        """None: it is many files."""
        return None

    def close(self) -> None:
        """Nothing is open between two reads."""


def _put(buffer: memoryview, at: int, data: bytes) -> None:
    """Put ``data`` where it begins at byte ``at`` of ``buffer``, as far as that is in it."""
    low, high = max(at, 0), min(at + len(data), len(buffer))
    if low < high:
        buffer[low:high] = data[low - at : high - at]
