"""Makes column chunks of Parquet for long values, from slices of the input or the spill, in which
the values are."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field

from dsort.containers.columnar.arrow import pa
from dsort.containers.columnar.schema import nulls_of
from dsort.containers.columnar.thrift import (
    BINARY,
    I16,
    I32,
    I64,
    LIST,
    STRUCT,
    ThriftStruct,
    read_struct,
    written,
)
from dsort.containers.columnar.values import Leaf
from dsort.containers.varints import varint_bytes
from dsort.data.columns import Int64s, UInt8s
from dsort.errors import InputError, InvariantError

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
    row) of each page."""

    rows: int = 0
    size_bytes: int = 0
    inflated_bytes: int = 0
    value_bytes: list[int] = field(default_factory=list)
    pages: list[tuple[int, int, int]] = field(default_factory=list)


class PlainColumn(Struct, frozen=True):
    """A column that is written here: the column of ``leaf``, by its path. ``codec``: one of
    ``CODECS``."""

    # pyarrow's writer copies each value into a page, and the page into its output. These copies
    # take half of the processor time of rows that were not decoded. Here a page is a header and
    # slices of the input or the spill, which go to the file without a copy.

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
        """The definition levels of the rows of a batch that has lengths instead of values."""
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
        """The places of the pages of the chunk: an ``OffsetIndex``."""
        pages: list[ThriftStruct] = [
            {1: (I64, offset), 2: (I32, size_bytes), 3: (I64, first)}
            for offset, size_bytes, first in chunk.pages
        ]
        return {1: (LIST, (STRUCT, pages)), 2: (LIST, (I64, chunk.value_bytes))}


class _Page(Struct, frozen=True):
    """``parts``: the header of the page, and the bytes after it. ``inflated_bytes``: the length of
    all parts before they were compressed. ``value_bytes``: the length of the values only."""

    rows: int
    parts: list[memoryview]
    size_bytes: int
    inflated_bytes: int
    value_bytes: int


class ChunkPages:
    """The pages of one column in one row group, as its rows are gathered. Each page ends with the
    row that fills it. A full page is compressed at once, while its bytes are in the processor's
    cache. So pages that wait for the end of the row group are as short as in the file."""

    def __init__(self, column: PlainColumn) -> None:
        self._column = column
        self._codec: Any = None
        if column.codec != "none":
            self._codec = pa.Codec(column.codec)
        self._pages: list[_Page] = []
        self._parts: list[Any] = []  # of the open page
        self._levels: list[UInt8s] = []
        self._rows = self._body_bytes = self._values = 0

    def add(
        self, lengths: Int64s, levels: UInt8s, slices: Sequence[memoryview], *, stay: bool
    ) -> None:
        """Add rows. ``lengths``: the lengths of all values, undefined for nulls. ``slices``: the
        values that are not null, each after its length. ``stay``: the slices stay valid until
        everything is written."""
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


# --------------------------------------------------------------------------------------------------
# One Parquet file by two writers: pyarrow writes small columns, and long values are written here.
#
# pyarrow writes its columns as a file of their own. The bytes of that file are passed on row
# group by row group, so the places in its footer and its page index are shifted by the bytes
# written in between.


MAGIC = b"PAR1"
_OFFSETS = (9, 10, 11)
"""Fields of ``ColumnMetaData`` with the offsets of pages."""


class GroupWritten(Struct, frozen=True):
    """One row group: the chunks that were written here; pyarrow's chunks are bytes ``start:stop``
    of its own file, and lie ``shift`` bytes further in the shard."""

    rows: int
    chunks: tuple[PlainChunk, ...]
    start: int
    stop: int
    shift: int


def footer_of(file: memoryview) -> ThriftStruct:
    """The footer of a Parquet file; ``file`` has at least the end of the file."""
    size_bytes = int.from_bytes(file[-8:-4], "little")
    if bytes(file[-4:]) != MAGIC or size_bytes > len(file) - 8:
        raise InvariantError("the file that pyarrow wrote does not end as Parquet does")
    return read_struct(file[-8 - size_bytes : -8], 0)[0]


def stitched_end(
    end: memoryview | None,
    end_start: int,
    whole: ThriftStruct,
    columns: Sequence[PlainColumn],
    numbers: Sequence[int],
    groups: Sequence[GroupWritten],
    at: int,
) -> bytes:
    """The end of the shard at byte ``at``: page index and footer. ``end``: the end of pyarrow's
    file, from its byte ``end_start`` on; None if pyarrow wrote no columns, and so no file.
    ``whole``: the footer of a file with all columns and no rows. ``numbers``: the numbers of
    ``columns`` among all columns."""
    if end is None:
        end, found = (
            memoryview(b""),
            [_group_without_columns(at, of) for at, of in enumerate(groups)],
        )
    else:
        light = footer_of(end)
        found = light[4][1][1] if 4 in light else []
    if len(found) != len(groups):
        raise InvariantError(f"pyarrow wrote {len(found)} row groups, and not {len(groups)}")

    def index_bytes(chunk: ThriftStruct, offset: int, length: int) -> memoryview:
        start = chunk[offset][1] - end_start
        if not 0 <= start <= start + chunk[length][1] <= len(end):
            raise InvariantError("a page index is not at its place in the footer")
        return end[start : start + chunk[length][1]]

    out, first_indexes, second_indexes = bytearray(), list[Any](), list[Any]()
    for group, made in zip(found, groups, strict=True):
        chunks = group[1][1][1]
        for chunk in chunks:
            _move(chunk, made)
            if 6 in chunk:
                first_indexes.append((chunk, bytes(index_bytes(chunk, 6, 7))))
            if 4 in chunk:
                index = read_struct(index_bytes(chunk, 4, 5), 0)[0]
                for page in index[1][1][1]:
                    page[1] = (I64, page[1][1] + made.shift)
                second_indexes.append((chunk, written(index)))
        for column, number, plain in zip(columns, numbers, made.chunks, strict=True):
            described = column.described(plain)
            chunks.insert(number, described)
            second_indexes.append((described, written(column.offset_index(plain))))
            for number_of, size_bytes in ((2, plain.inflated_bytes), (6, plain.size_bytes)):
                if number_of in group:
                    group[number_of] = (I64, group[number_of][1] + size_bytes)
        group[5] = (I64, min(_first_byte(chunk) for chunk in chunks))
    for indexes, offset, length in ((first_indexes, 6, 7), (second_indexes, 4, 5)):
        for chunk, data in indexes:
            chunk[offset] = (I64, at + len(out))
            chunk[length] = (I32, len(data))
            out += data
    whole = dict(whole)
    whole[3] = (I64, sum(made.rows for made in groups))
    whole[4] = (LIST, (STRUCT, [_sorted(group) for group in found]))
    footer = written(whole)
    return bytes(out) + footer + len(footer).to_bytes(4, "little") + MAGIC


def _group_without_columns(number: int, made: GroupWritten) -> ThriftStruct:
    """pyarrow's description of a row group without columns."""
    nothing: ThriftStruct = {1: (LIST, (STRUCT, [])), 2: (I64, 0), 3: (I64, made.rows)}
    return nothing | {5: (I64, 0), 6: (I64, 0), 7: (I16, number)}


def _move(chunk: ThriftStruct, made: GroupWritten) -> None:
    """Set the places in a chunk of pyarrow to its places in the shard."""
    metadata: ThriftStruct = chunk[3][1]
    for number in _OFFSETS:
        if number in metadata:
            offset = metadata[number][1]
            if not made.start <= offset < made.stop:
                raise InvariantError("pyarrow wrote several row groups as one")
            metadata[number] = (I64, offset + made.shift)
    if chunk[2][1]:
        chunk[2] = (I64, chunk[2][1] + made.shift)


def _first_byte(chunk: ThriftStruct) -> int:
    metadata: ThriftStruct = chunk[3][1]
    return min(int(metadata[number][1]) for number in _OFFSETS if number in metadata)


def _sorted(group: ThriftStruct) -> ThriftStruct:
    """The group with its fields, and the fields of its chunks, in ascending order, as most writers
    have them."""
    columns = [dict(sorted(chunk.items())) for chunk in group[1][1][1]]
    return dict(sorted({**group, 1: (LIST, (STRUCT, columns))}.items()))
