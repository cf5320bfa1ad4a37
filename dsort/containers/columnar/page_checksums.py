"""CRC-32s of Parquet's pages, if a writer put them into the headers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from isal import isal_zlib

from dsort.containers.columnar.thrift import ThriftStruct

if TYPE_CHECKING:
    from dsort.containers.columnar.declared import Headers
    from dsort.containers.columnar.footers import Chunk

__all__ = ["is_intact", "torn_page"]

_STORED_BYTES, _CRC = 3, 4  # fields of a page header


def is_intact(header: ThriftStruct, page: memoryview | bytes) -> bool:
    """Whether the bytes of a page, as they are stored, have the CRC-32 in its header. True if the
    header has none. ``TypeError`` for one that is not a number."""
    if _CRC not in header:
        return True
    crc: int = header[_CRC][1]
    return isal_zlib.crc32(page) == crc & 0xFFFFFFFF


def torn_page(
    headers: Headers, read: Callable[[int, int], memoryview | bytes], chunk: Chunk, size_bytes: int
) -> tuple[int, int] | None:
    """The first page of a chunk with a wrong CRC-32: (its number, where its bytes begin); None if
    there is no such page. ``read``: returns bytes of a shard of ``size_bytes``, by offset and
    length. ``ValueError`` for an invalid page."""
    at, stop, number = chunk.start, min(chunk.stop, size_bytes), 0
    while 0 <= at < stop:
        header, body = headers(at, stop)
        length = header.get(_STORED_BYTES, (0, -1))[1]
        if not isinstance(length, int) or not 0 <= length <= stop - body:
            raise ValueError("a page has no length")
        if _CRC in header and not is_intact(header, read(body, length)):
            return number, body
        at, number = body + length, number + 1
    return None
