"""The declared lengths of inflated parts of shards: pages of Parquet, buffers of Arrow IPC. pyarrow
allocates the declared length before it inflates, so the lengths are checked first."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from dsort.containers.columnar.footers import Chunk
from dsort.containers.columnar.thrift import ThriftStruct, read_struct
from dsort.errors import CorruptShardError
from dsort.sizes import format_bytes

__all__ = [
    "ColumnPages",
    "Headers",
    "file_messages",
    "headers_in",
    "inflated_bytes",
    "inflated_pages",
    "message_bytes",
    "message_places",
    "refuse_larger",
]

Headers = Callable[[int, int], tuple[ThriftStruct, int]]
"""Returns the Thrift struct that begins at a byte of a shard, and where it ends; it ends before
another byte. ``ValueError`` if there is none."""

HEADER_BYTES_MAX = 1 << 20
_STREAM_MARK = 0xFFFFFFFF
_UNCOMPRESSED, _COMPRESSED = 2, 3  # fields of a page header, by number
_DATA_PAGES = {5: 2, 8: 4}
"""Headers of data pages, and the number of the field with the encoding in each. The first field is
the count of values."""
_KIND, _DICTIONARY_PAGE = 1, 2
_DICTIONARY_CODED, _DELTA_BYTE_ARRAY = (2, 8), 7
_RECORD_BATCH, _DICTIONARY_BATCH = 3, 2  # kinds of a message
_BODY_LENGTH = 3
_DICTIONARY_DATA, _BUFFERS, _COMPRESSION = 1, 2, 3
_FOOTER_DICTIONARIES, _FOOTER_BATCHES = 2, 3
_BLOCK_BYTES, _BUFFER_BYTES, _LENGTH_BYTES = 24, 16, 8


def refuse_larger(shard: str, what: str, size_bytes: int, bytes_max: float) -> None:
    """``CorruptShardError`` if ``what`` of a shard has more than ``bytes_max`` bytes."""
    if size_bytes > bytes_max:
        raise CorruptShardError(
            shard,
            0,
            f"{what} take {format_bytes(size_bytes)}, more than {format_bytes(int(bytes_max))}",
            hint="a bomb does; if this is data, set a larger max_expansion",
        )


class ColumnPages(Struct):
    """The lengths of some pages of a column, once they are inflated: of the longest page, of its
    dictionary, and of the longest page whose values declare how much they share with the values
    before them. ``values``: how many values the column has. ``coded``: how many of them are numbers
    in the dictionary."""

    values: int
    longest_bytes: int = 0
    dictionary_bytes: int = 0
    prefixed_bytes: int = 0
    coded: int = 0


def headers_in(data: memoryview, start: int = 0) -> Headers:
    """Headers in ``data``, the bytes of a shard from byte ``start`` on."""

    def header(at: int, stop: int) -> tuple[ThriftStruct, int]:
        if at < start:
            raise ValueError("a header lies before what was read")
        found, end = read_struct(data[: min(stop, at + HEADER_BYTES_MAX) - start], at - start)
        return found, end + start

    return header


def inflated_pages(
    headers: Headers, shard_bytes: int, chunks: Mapping[int, Chunk]
) -> dict[int, ColumnPages]:
    """The inflated lengths of pages of some columns of a row group, in a shard of ``shard_bytes``.
    ``ValueError`` for invalid pages."""
    found = {}
    for number, chunk in chunks.items():
        stop = min(chunk.stop, shard_bytes)
        pages = ColumnPages(chunk.values)
        for size_bytes, is_dictionary, encoding, values in _pages(
            headers, chunk.start, stop, pages.values
        ):
            pages.longest_bytes = max(pages.longest_bytes, size_bytes)
            if is_dictionary:
                pages.dictionary_bytes = max(pages.dictionary_bytes, size_bytes)
            elif encoding in _DICTIONARY_CODED:
                pages.coded += values
            elif encoding == _DELTA_BYTE_ARRAY:
                pages.prefixed_bytes = max(pages.prefixed_bytes, size_bytes)
        found[number] = pages
    return found


def _pages(
    headers: Headers, at: int, stop: int, values: int
) -> Iterator[tuple[int, bool, object, int]]:
    """(inflated length, whether it is a dictionary, encoding, count of its values) of each page in
    bytes ``at:stop``, until ``values`` values have been read. A page that is not a data page has no
    encoding and no values."""
    if at < 0:
        raise ValueError("a column begins before its shard")
    while at < stop and values > 0:
        header, body = headers(at, stop)
        sizes = [header.get(number, (0, -1))[1] for number in (_UNCOMPRESSED, _COMPRESSED)]
        if not all(isinstance(size, int) and size >= 0 for size in sizes):
            raise ValueError("a page has no length")
        at, encoding, found = body + sizes[1], None, 0
        for number, place in _DATA_PAGES.items():
            if number in header and isinstance(header[number][1], dict):
                count = header[number][1].get(1, (0, 0))[1]
                found += max(count, 0) if isinstance(count, int) else 0
                encoding = header[number][1].get(place, (0, None))[1]
        values -= found
        yield sizes[0], header.get(_KIND, (0, None))[1] == _DICTIONARY_PAGE, encoding, found


def inflated_bytes(metadata: memoryview, body: memoryview) -> int:
    """The length of all buffers of a message of Arrow IPC once they are inflated; 0 for a message
    that is not compressed. ``ValueError`` for an invalid message."""
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
    """(where it begins, where it ends) of each message that the footer of an Arrow file lists.
    ``ValueError`` for an invalid footer."""
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
    import pyarrow as pa

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
