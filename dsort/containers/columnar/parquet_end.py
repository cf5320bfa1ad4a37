"""One Parquet file by two writers: pyarrow writes small columns, and long values are written here.

pyarrow writes its columns as a file of their own. The bytes of that file are passed on row group by
row group, so the places in its footer and its page index are shifted by the bytes written in
between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from dsort.containers.columnar.plain_chunks import PlainChunk, PlainColumn
from dsort.containers.columnar.thrift import (
    I16,
    I32,
    I64,
    LIST,
    STRUCT,
    ThriftStruct,
    read_struct,
    written,
)
from dsort.errors import InvariantError

__all__ = ["MAGIC", "GroupWritten", "footer_of", "stitched_end"]

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
    """The footer of a Parquet file. The end of ``file`` is the end of that file."""
    size_bytes = int.from_bytes(file[-8:-4], "little")
    if bytes(file[-4:]) != MAGIC or size_bytes > len(file) - 8:
        raise InvariantError("what pyarrow wrote does not end as Parquet does")
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
    ``columns`` among them."""
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
            raise InvariantError("a page index is not where the footer says")
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
                raise InvariantError("pyarrow wrote a row group with those before it")
            metadata[number] = (I64, offset + made.shift)
    if chunk[2][1]:
        chunk[2] = (I64, chunk[2][1] + made.shift)


def _first_byte(chunk: ThriftStruct) -> int:
    metadata: ThriftStruct = chunk[3][1]
    return min(int(metadata[number][1]) for number in _OFFSETS if number in metadata)


def _sorted(group: ThriftStruct) -> ThriftStruct:
    """The group with its fields in ascending order, and those of its chunks, too, as most writers
    do."""
    columns = [dict(sorted(chunk.items())) for chunk in group[1][1][1]]
    return dict(sorted({**group, 1: (LIST, (STRUCT, columns))}.items()))
