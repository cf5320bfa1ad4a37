"""Shards that are neither in memory nor mapped, as Python files that pyarrow can read."""

from __future__ import annotations

import contextlib
import io
import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Protocol

from dsort.containers.columnar.arrow import pa
from dsort.containers.columnar.page_bounds import HEADER_BYTES_MAX, Headers
from dsort.containers.columnar.thrift import ThriftStruct, read_struct

# --------------------------------------------------------------------------------------------------
# Messages of Arrow IPC: their places and lengths, and the declared lengths of their buffers once
# they are inflated, which pyarrow allocates before it inflates.


_STREAM_MARK = 0xFFFFFFFF
_RECORD_BATCH, _DICTIONARY_BATCH = 3, 2  # kinds of a message
_BODY_LENGTH = 3
_DICTIONARY_DATA, _BUFFERS, _COMPRESSION = 1, 2, 3
_FOOTER_DICTIONARIES, _FOOTER_BATCHES = 2, 3
_BLOCK_BYTES, _BUFFER_BYTES, _LENGTH_BYTES = 24, 16, 8


def inflated_bytes(metadata: memoryview, body: memoryview) -> int:
    """The inflated length of all buffers of a message of Arrow IPC; 0 for a message that is not
    compressed. ``ValueError`` for an invalid message."""
    try:
        return _inflated(metadata, body)
    except (struct.error, IndexError):
        raise ValueError("the metadata of a message is cut off") from None


def message_bytes(head: memoryview) -> tuple[int, int, int]:
    """The lengths in bytes of (everything before the metadata of a message, its metadata, its
    body). ``head``: the first bytes of the message; the length of the body is -1 if ``head`` is too
    short to show it. ``ValueError`` if a message cannot begin like this."""
    try:
        (size,), before = struct.unpack_from("<I", head), 4
        if size == _STREAM_MARK:  # older messages have none
            (size,), before = struct.unpack_from("<I", head, 4), 8
        if not size or before + size > len(head):
            return before, size, -1 if size else 0
        metadata = head[before : before + size]
        at = _field(metadata, _offset(metadata, 0), _BODY_LENGTH)
        body = int(struct.unpack_from("<q", metadata, at)[0]) if at else 0
    except (struct.error, IndexError):
        raise ValueError("the metadata of a message is cut off") from None
    if body < 0:
        raise ValueError("a message has no length")
    return before, size, body


def _inflated(metadata: memoryview, body: memoryview) -> int:
    root = _offset(metadata, 0)
    kind, header = _field(metadata, root, 1), _table(metadata, root, 2)
    if not kind or header is None or metadata[kind] not in (_RECORD_BATCH, _DICTIONARY_BATCH):
        return 0
    batch: int | None = header
    if metadata[kind] == _DICTIONARY_BATCH:
        batch = _table(metadata, header, _DICTIONARY_DATA)
    if batch is None or not _field(metadata, batch, _COMPRESSION):
        return 0
    total = 0
    for at in _vector(metadata, batch, _BUFFERS, _BUFFER_BYTES):
        start, length = struct.unpack_from("<qq", metadata, at)
        if length >= _LENGTH_BYTES:
            if start < 0:
                raise IndexError
            total += max(struct.unpack_from("<q", body, start)[0], 0)  # -1: stored uncompressed
    return total


def message_places(footer: memoryview) -> list[tuple[int, int]]:
    """(start, end) of each message that the footer of an Arrow file lists. ``ValueError`` for an
    invalid footer."""
    try:
        root = _offset(footer, 0)
        places = [
            struct.unpack_from("<qiiq", footer, at)
            for number in (_FOOTER_DICTIONARIES, _FOOTER_BATCHES)
            for at in _vector(footer, root, number, _BLOCK_BYTES)
        ]
    except (struct.error, IndexError):
        raise ValueError("the footer is cut off") from None
    if any(start < 0 or head_bytes < 0 or body < 0 for start, head_bytes, _, body in places):
        raise ValueError("a message lies before its shard")
    return [(start, start + head_bytes + body) for start, head_bytes, _, body in places]


def file_messages(shard: memoryview, places: Iterable[tuple[int, int]]) -> Iterator[Any]:
    """The messages of an Arrow file that lie in ``places``. ``ValueError`` for invalid ones."""
    for start, stop in places:
        try:
            yield pa.ipc.read_message(pa.py_buffer(shard[start:stop]))
        except EOFError:
            raise ValueError("a message is empty") from None


# -- flatbuffers: tables of fields by number, at offsets from the places that refer to them --------


def _offset(data: memoryview, at: int) -> int:
    """The place that the offset at ``at`` refers to."""
    found = at + int(struct.unpack_from("<I", data, at)[0])
    if found >= len(data):
        raise IndexError
    return found


def _field(data: memoryview, table: int, number: int) -> int:
    """Where a field of a table is; 0 if the table does not have it."""
    fields = table - int(struct.unpack_from("<i", data, table)[0])
    if fields < 0:
        raise IndexError
    place = 4 + 2 * number
    if place + 2 > struct.unpack_from("<H", data, fields)[0]:
        return 0
    own = int(struct.unpack_from("<H", data, fields + place)[0])
    if own and table + own >= len(data):
        raise IndexError
    return table + own if own else 0


def _table(data: memoryview, table: int, number: int) -> int | None:
    at = _field(data, table, number)
    return _offset(data, at) if at else None


def _vector(data: memoryview, table: int, number: int, item_bytes: int) -> Iterator[int]:
    """Where each item of a vector of structs is."""
    at = _field(data, table, number)
    if not at:
        return
    first = _offset(data, at)
    count = int(struct.unpack_from("<I", data, first)[0])
    if count * item_bytes > len(data) - first:
        raise IndexError
    for item in range(count):
        yield first + 4 + item * item_bytes


HEADERS_BYTES = 64 << 10
"""The number of bytes fetched at once to find headers of pages. Most pages have 1 MiB."""
MESSAGE_HEAD_BYTES = 16 << 10


class Source(Protocol):
    """The bytes of a shard.

    Before a part of a shard is inflated, the bytes with its inflated length are checked. These
    bytes lie between the parts that are inflated, and each read may be a request to a store. So the
    part that is decoded next is fetched as one range and held. The part is checked and decoded
    there, so the check costs no request."""

    size_bytes: int

    def whole(self) -> memoryview | None:
        """All bytes, if they are in memory or mapped."""

    def read(self, offset: int, length: int) -> bytes:
        """Bytes ``offset:offset + length``; ``StorageError``."""

    def held(self, offset: int, length: int) -> memoryview | None:
        """Bytes ``offset:offset + length``, valid until the next request; None if there is no room
        for them."""


class MemorySource:
    """The bytes of a shard that are in memory."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.size_bytes = len(data)

    def whole(self) -> memoryview | None:
        """All bytes."""
        return self._data

    def read(self, offset: int, length: int) -> bytes:
        """Bytes ``offset:offset + length``."""
        return bytes(self._data[offset : offset + length])

    def held(self, offset: int, length: int) -> memoryview | None:
        """Bytes ``offset:offset + length``."""
        return self._data[offset : offset + length]


class SourceFile(io.RawIOBase):
    """A source with the interface of Python's files."""

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

    def close(self) -> None:
        """The opener of the source closes it."""


def arrow_file(source: Source, file: SourceFile) -> Any:
    """A shard in the form in which pyarrow reads it. ``file``: reads the bytes of the shard if they
    are not in memory."""
    whole = source.whole()
    if whole is not None:
        return pa.BufferReader(pa.py_buffer(whole))
    return pa.PythonFile(file, mode="r")


class MessageFile(SourceFile):
    """The messages of Arrow IPC in a source. Each message is fetched whole when its first bytes are
    read, and passed to ``check`` before any of its bytes are returned."""

    def __init__(
        self,
        source: Source,
        check: Callable[[memoryview, memoryview], None],
        places: Collection[int] | None = None,
    ) -> None:
        """``check``: called with metadata and body; raises an error for a message that is refused.
        ``places``: where messages begin; None for a stream, in which each message begins where the
        one before ends."""
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
        return self._held[
            begin : begin + size
        ]  # arrays may keep these bytes, which are not overwritten

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
    """Headers of a shard that is read in small ranges, because its row group is larger than the
    memory for held ranges. If headers are read in order, no range is read twice."""
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
