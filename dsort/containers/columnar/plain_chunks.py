"""Column chunks of long values in Parquet's form, made of slices of the places in which the values
lie.

pyarrow's writer copies each value into a page, and the page into its output. Here a page is a
header and slices of the input or the spill, which go to the file without a copy. On the data path
our own code is welcome if a measurement justifies it: gathering and encoding took half of the
processor time of rows that were not decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field

from dsort.containers.columnar.schema import nulls_of
from dsort.containers.columnar.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    ThriftStruct,
    varint_bytes,
    written,
)
from dsort.containers.columnar.values import Leaf
from dsort.data.columns import Int64s, UInt8s
from dsort.errors import InputError

__all__ = ["CODECS", "LENGTH_PREFIX", "ChunkPages", "PlainChunk", "PlainColumn"]

PAGE_BYTES = 1 << 20
PAGE_BYTES_MAX = (1 << 31) - (1 << 20)
"""Sizes of pages are 32-bit numbers."""
LENGTH_PREFIX = struct.Struct("<I")
CODECS = {"none": 0, "snappy": 1, "gzip": 2, "brotli": 4, "zstd": 6}
"""The codecs for pages written here, with their numbers in footers."""
_BYTE_ARRAY, _PLAIN, _RLE, _DATA_PAGE = 6, 0, 3, 0


class PlainChunk(Struct):
    """One column in one row group, as it was written. ``inflated_bytes``: the size of its pages
    before they are compressed, headers included. ``pages``: (offset, bytes with the header, first
    row) of each."""

    rows: int = 0
    size_bytes: int = 0
    inflated_bytes: int = 0
    value_bytes: list[int] = field(default_factory=list)
    pages: list[tuple[int, int, int]] = field(default_factory=list)


class PlainColumn(Struct, frozen=True):
    """A column that is written here: the column of ``leaf``, by its path. ``codec``: one of
    ``CODECS``."""

    leaf: Leaf
    path: tuple[str, ...]
    in_nullable: bool
    is_nullable: bool
    codec: str = "none"

    @property
    def level_max(self) -> int:
        """The definition level of a value that is not null."""
        return int(self.in_nullable) + int(self.is_nullable)

    def levels(self, light: Any) -> UInt8s:
        """The definition levels of the rows of a batch that has lengths instead of the values."""
        found = self.leaf.of(light)
        levels = np.full(len(found), self.level_max, np.uint8)
        if self.is_nullable:
            levels[nulls_of(found)] = self.level_max - 1
        if self.in_nullable:
            levels[nulls_of(light.column(self.leaf.column))] = 0
        return levels

    def described(self, chunk: PlainChunk) -> ThriftStruct:
        """The chunk as it is described in a footer: a ``ColumnChunk``."""
        path = [name.encode() for name in self.path]
        stats = {1: (I32, _DATA_PAGE), 2: (I32, _PLAIN), 3: (I32, len(chunk.pages))}
        metadata: ThriftStruct = {
            1: (I32, _BYTE_ARRAY),
            2: (LIST, (I32, [_PLAIN, _RLE])),
            3: (LIST, (BINARY, path)),
            4: (I32, CODECS[self.codec]),
            5: (I64, chunk.rows),
            6: (I64, chunk.inflated_bytes),
            7: (I64, chunk.size_bytes),
            9: (I64, chunk.pages[0][0]),
            13: (LIST, (STRUCT, [stats])),
        }
        return {2: (I64, 0), 3: (STRUCT, metadata)}

    def offset_index(self, chunk: PlainChunk) -> ThriftStruct:
        """The places of its pages: an ``OffsetIndex``."""
        pages: list[ThriftStruct] = [
            {1: (I64, offset), 2: (I32, size_bytes), 3: (I64, first)}
            for offset, size_bytes, first in chunk.pages
        ]
        return {1: (LIST, (STRUCT, pages)), 2: (LIST, (I64, chunk.value_bytes))}


class _Page(Struct, frozen=True):
    """``parts``: its header and the bytes after it. ``inflated_bytes``: all of them before they
    were compressed. ``value_bytes``: the values only."""

    rows: int
    parts: list[memoryview]
    size_bytes: int
    inflated_bytes: int
    value_bytes: int


class ChunkPages:
    """The pages of one column in one row group, as its rows are gathered. Each page ends with the
    row that fills it. It is compressed at once, because its bytes are then in the processor's
    cache, and because the pages that wait for the end of the row group are then as short as the
    written ones."""

    def __init__(self, column: PlainColumn) -> None:
        self._column = column
        self._codec: Any = None
        if column.codec != "none":
            import pyarrow as pa

            self._codec = pa.Codec(column.codec)
        self._pages: list[_Page] = []
        self._parts: list[Any] = []  # of the open page
        self._levels: list[UInt8s] = []
        self._rows = self._body_bytes = self._values = 0

    def add(
        self, lengths: Int64s, levels: UInt8s, slices: Sequence[memoryview], *, stay: bool
    ) -> None:
        """Add rows. ``lengths``: of all values, undefined for nulls. ``slices``: the values that
        are not null, each after its length. ``stay``: the slices stay valid until everything is
        written."""
        there = levels == self._column.level_max
        sizes = np.where(there, lengths + LENGTH_PREFIX.size, 0)
        ends, values = np.cumsum(sizes), np.cumsum(there)
        first = done = 0
        while first < len(levels):
            before = int(ends[first] - sizes[first])
            full = before + PAGE_BYTES - self._body_bytes
            stop = int(np.searchsorted(ends, full, side="left")) + 1
            is_full, stop = stop <= len(levels), min(stop, len(levels))
            until = int(values[stop - 1])
            self._levels.append(levels[first:stop])
            self._rows += stop - first
            self._values += until - done
            self._body_bytes += int(ends[stop - 1]) - before
            some = slices[done:until]
            if stay or (is_full and self._codec is not None):
                self._parts.extend(some)
            else:
                self._parts.append(b"".join(some))
            if is_full:
                self._close()
            first, done = stop, until

    def _close(self) -> None:
        """End the open page."""
        body_bytes = self._body_bytes
        if body_bytes > PAGE_BYTES_MAX:
            raise InputError(
                f"a value of {body_bytes:,} bytes does not fit in a page of Parquet",
                hint="leave its row out",
            )
        levels = self._levels[0] if len(self._levels) == 1 else np.concatenate(self._levels)
        encoded = _encoded_levels(levels, self._column.level_max)
        inflated = stored = len(encoded) + body_bytes
        parts = [encoded, *self._parts]
        if self._codec is not None:
            parts = [self._codec.compress(b"".join(parts), asbytes=True)]
            stored = len(parts[0])
        header = _page_header(self._rows, inflated, stored)
        page = _Page(
            self._rows,
            [memoryview(each) for each in (header + parts[0], *parts[1:])],
            len(header) + stored,
            len(header) + inflated,
            body_bytes - self._values * LENGTH_PREFIX.size,
        )
        self._pages.append(page)
        self._parts, self._levels = [], []
        self._rows = self._body_bytes = self._values = 0

    def write(self, at: int, write: Callable[[Sequence[memoryview]], object]) -> PlainChunk:
        """Write all pages, whose first byte is byte ``at`` of the shard."""
        if self._rows:
            self._close()
        chunk = PlainChunk()
        for page in self._pages:
            write(page.parts)
            chunk.pages.append((at + chunk.size_bytes, page.size_bytes, chunk.rows))
            chunk.value_bytes.append(page.value_bytes)
            chunk.rows += page.rows
            chunk.size_bytes += page.size_bytes
            chunk.inflated_bytes += page.inflated_bytes
        return chunk


def _page_header(rows: int, inflated_bytes: int, size_bytes: int) -> bytes:
    data = {1: (I32, rows), 2: (I32, _PLAIN), 3: (I32, _RLE), 4: (I32, _RLE)}
    return written(
        {1: (I32, _DATA_PAGE), 2: (I32, inflated_bytes), 3: (I32, size_bytes), 5: (STRUCT, data)}
    )


def _encoded_levels(levels: UInt8s, level_max: int) -> bytes:
    """Definition levels in the form of a page: one run, or packed bits."""
    if not level_max:
        return b""
    count = len(levels)
    if (levels == levels[0]).all():
        body = varint_bytes(count << 1) + bytes([int(levels[0])])
    else:
        width = level_max.bit_length()
        padded = np.zeros(-(-count // 8) * 8, np.uint8)
        padded[:count] = levels
        bits = padded[:, None] >> np.arange(width, dtype=np.uint8) & 1
        body = varint_bytes(len(padded) // 8 << 1 | 1)
        body += np.packbits(bits.ravel(), bitorder="little").tobytes()
    return LENGTH_PREFIX.pack(len(body)) + body
