"""Shards that are neither in memory nor mapped, in the form in which pyarrow reads them: a Python
file.

Before a part of such a shard is inflated, the bytes with its inflated length are checked, as in
other shards. They lie between the parts that are inflated, and each read may be a request to a
store. So the part that is decoded next is fetched as one range and held, checked, and decoded from
there; then the check costs no request. Headers of pages are fetched alone if their row group is
larger than the memory for held ranges.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from typing import Any, Protocol

from dsort.containers.columnar.arrow_messages import message_bytes
from dsort.containers.columnar.page_bounds import HEADER_BYTES_MAX, Headers
from dsort.containers.columnar.thrift import ThriftStruct, read_struct

__all__ = ["MessageFile", "Source", "SourceFile", "arrow_file", "ranged_headers"]

HEADERS_BYTES = 64 << 10
"""The number of bytes fetched at once to find headers of pages. Most pages have 1 MiB."""
MESSAGE_HEAD_BYTES = 16 << 10


class Source(Protocol):
    """The bytes of a shard."""

    size_bytes: int

    def whole(self) -> memoryview | None:
        """All bytes, if they are in memory or mapped."""

    def read(self, offset: int, length: int) -> bytes:
        """Bytes ``offset:offset + length``; ``StorageError``."""

    def held(self, offset: int, length: int) -> memoryview | None:
        """Bytes ``offset:offset + length``, until other bytes are requested; None if there is no
        room for so many."""


class SourceFile:
    """A source with the interface of Python's files."""

    closed = False

    def __init__(self, source: Source) -> None:
        self._source = source
        self._at = 0
        self._held = memoryview(b"")
        self._held_at = 0

    def hold(self, start: int, stop: int) -> memoryview | None:
        """Read bytes ``start:stop`` into memory, if there is room; later reads are served from
        there."""
        self._held = memoryview(b"")
        found = self._source.held(start, stop - start)
        if found is not None:
            self._held, self._held_at = found, start
        return found

    def read(self, size: int | None = None) -> bytes | memoryview:
        left = max(self._source.size_bytes - self._at, 0)
        size = left if size is None or size < 0 else min(size, left)
        begin = self._at - self._held_at
        if begin >= 0 and begin + size <= len(self._held):
            data = bytes(self._held[begin : begin + size])
        else:
            data = self._source.read(self._at, size) if size > 0 else b""
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._at, self._source.size_bytes)[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def flush(self) -> None:
        """Nothing is written."""

    def close(self) -> None:
        """The opener of the source closes it."""


def arrow_file(source: Source, file: SourceFile) -> Any:
    """A shard in the form in which pyarrow reads it. ``file``: reads its bytes if they are not in
    memory."""
    import pyarrow as pa

    whole = source.whole()
    if whole is not None:
        return pa.BufferReader(pa.py_buffer(whole))
    return pa.PythonFile(file, mode="r")


class MessageFile(SourceFile):
    """The messages of Arrow IPC in a source. Each is fetched whole when its first bytes are read,
    and passed to ``check`` before any of its bytes are returned."""

    def __init__(
        self,
        source: Source,
        check: Callable[[memoryview, memoryview], None],
        places: Collection[int] | None = None,
    ) -> None:
        """``check``: called with metadata and body; it raises. ``places``: where messages begin;
        None for those of a stream, where each begins at the end of the message before it."""
        super().__init__(source)
        self._check = check
        self._places = places
        self._next = 0

    def read(self, size: int | None = None) -> bytes | memoryview:
        if self._at == self._next if self._places is None else self._at in self._places:
            self._fetch(self._at)
        begin = self._at - self._held_at
        if size is None or size < 0 or not 0 <= begin < begin + size <= len(self._held):
            return super().read(size)
        self._at += size
        return self._held[begin : begin + size]  # arrays may keep it: it is not overwritten

    def _fetch(self, at: int) -> None:
        """Fetch the message that begins at byte ``at``, and check it. ``ValueError`` if no message
        begins there."""
        left = self._source.size_bytes - at
        if left <= 0:
            return
        head = self._source.read(at, min(MESSAGE_HEAD_BYTES, left))
        before, metadata_bytes, body_bytes = message_bytes(memoryview(head))
        first = before + metadata_bytes
        if body_bytes < 0 and len(head) < first <= left:
            head = self._source.read(at, first)
            body_bytes = message_bytes(memoryview(head))[2]
        if body_bytes < 0 or first + body_bytes > left:
            raise ValueError("a message is cut off")
        if first + body_bytes > len(head):
            head = self._source.read(at, first + body_bytes)
        self._held, self._held_at = memoryview(head)[: first + body_bytes], at
        self._next = at + first + body_bytes
        if metadata_bytes:  # else it is the mark that ends a stream
            self._check(self._held[before:first], self._held[first:])


def ranged_headers(source: Source) -> Headers:
    """Headers of a shard that is read in small ranges. If headers are read in order, no range is
    read twice."""
    held, held_at = memoryview(b""), 0

    def header(at: int, stop: int) -> tuple[ThriftStruct, int]:
        nonlocal held, held_at
        stop = min(stop, at + HEADER_BYTES_MAX)
        for size in (0, HEADERS_BYTES, HEADER_BYTES_MAX):
            if size:
                held, held_at = memoryview(source.read(at, min(size, stop - at))), at
            if held_at <= at < held_at + len(held):
                with contextlib.suppress(ValueError):
                    found, end = read_struct(held[: stop - held_at], at - held_at)
                    return found, end + held_at
        raise ValueError("the header of a page is cut off")

    return header
