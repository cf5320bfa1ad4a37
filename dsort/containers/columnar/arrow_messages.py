"""Messages of Arrow IPC: their places and lengths, and the declared lengths of their buffers once
they are inflated, which pyarrow allocates before it inflates."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["file_messages", "inflated_bytes", "message_bytes", "message_places"]

_STREAM_MARK = 0xFFFFFFFF
_RECORD_BATCH, _DICTIONARY_BATCH = 3, 2  # kinds of a message
_BODY_LENGTH = 3
_DICTIONARY_DATA, _BUFFERS, _COMPRESSION = 1, 2, 3
_FOOTER_DICTIONARIES, _FOOTER_BATCHES = 2, 3
_BLOCK_BYTES, _BUFFER_BYTES, _LENGTH_BYTES = 24, 16, 8


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
