"""Rows as records: their keys, and their cells as members.

A cell is a member ``<key>.<column>`` that keeps its meaning: texts and binaries are their bytes,
the ``bytes`` of a media column are its content, whole numbers and other single values are text, and
nested values are JSON. A null is not a member; a row of only nulls is one empty member, ``<key>``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import xxhash

from dsort.containers.columnar.arrow import pa
from dsort.containers.columnar.page_bounds import first_line, refuse_larger
from dsort.containers.columnar.ranges import MemorySource
from dsort.containers.columnar.reader import TableShard, open_table, plain_batches
from dsort.containers.columnar.schema import (
    batch_bytes,
    bytes_column,
    is_media,
    is_varying,
    lists_of,
    nulls_of,
    plain_schema,
    row_bytes,
    value_offsets,
)
from dsort.data.columns import BytesColumn, Int64s, UInt64s
from dsort.data.hashes import mix
from dsort.data.members import MemberTable, OwnRecords
from dsort.data.row_bytes import RowBytes
from dsort.errors import ConversionError, CorruptShardError, InputError
from dsort.naming.names import KEY_COLUMN, position_key, shortened

BATCH_BYTES = 8 << 20
ROW_BYTES_MIN = 16
"""The least size that is counted for a row, because a few bytes may hold any number of nulls."""
MEMBER_BYTES_MIN = 256
"""The least size that is counted for a row or cell as a member, whose header in a tar has 512
bytes."""
POSITION_DIGITS = 9


def row_keys(shard: str, batch: Any, key_field: str, first: int) -> BytesColumn:
    """The record keys of a batch: from the column ``key_field``; if that is "", from
    ``KEY_COLUMN``; if there is no such column, the positions of rows. The first row of the batch is
    row ``first`` of its shard. ``InputError`` for a row without a key."""
    if not key_field and KEY_COLUMN in batch.schema.names:
        key_field = KEY_COLUMN
    if not key_field:
        before = position_key(shard, 0)[:-POSITION_DIGITS]
        last = first + batch.num_rows
        return BytesColumn.of([before + b"%09d" % row for row in range(first, last)])
    at = batch.schema.get_field_index(key_field)
    if at < 0:
        known = ", ".join(map(shortened, batch.schema.names[:10]))
        raise InputError(
            f"shard {shard} has no column {shortened(key_field)} for keys",
            hint=f"key_field has to be one of its columns: {known}",
        )
    column = batch.column(at)
    if column.null_count:
        row = first + int(np.flatnonzero(nulls_of(column))[0])
        raise InputError(
            f"row {row} of shard {shard} has no key: its {shortened(key_field)} is null",
            hint="fill in the key, or choose another key_field",
        )
    kind = column.type
    if pa.types.is_integer(kind):
        column = column.cast(pa.string())
    elif not is_varying(kind):
        raise InputError(
            f"column {shortened(key_field)} of shard {shard} is {shortened(str(kind))}, which is "
            "no key",
            hint="keys are texts, binaries or whole numbers",
        )
    keys = bytes_column(column)
    if (keys.lengths == 0).any():
        row = first + int(np.flatnonzero(keys.lengths == 0)[0])
        raise InputError(f"row {row} of shard {shard} has an empty key", hint="fill it in")
    return keys


def cell_contents(name: str, column: Any) -> Iterator[bytes | None]:
    """The value of each row of the column ``name`` as a member's content; None for a null.
    ``ConversionError`` for a value that cannot be the content of a member."""
    try:
        yield from _contents(column)
    except (ValueError, ArithmeticError, TypeError) as error:
        raise ConversionError(
            f"column {shortened(name)} cannot become members: {first_line(error)}",
            hint="drop the column first, or write tables",
        ) from None


def _contents(column: Any) -> Iterator[bytes | None]:
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        yield from _contents(column.storage)
        return
    if is_media(kind):
        contents = column.field("bytes")
        paths = column.field("path")
        for value, path, is_there in zip(contents, paths, column.is_valid(), strict=True):
            if is_there.as_py() and not value.is_valid and path.is_valid:
                raise ValueError(
                    f"{path.as_py()[:200]} is a path, and its file is not in the shard"
                )
            yield _content(value.as_py()) if is_there.as_py() else None
        return
    if "[ns" in str(kind):  # Python's times have no nanoseconds, which would be lost
        if not (pa.types.is_time64(kind) or pa.types.is_timestamp(kind)):
            raise TypeError(f"{shortened(str(kind))} has nanoseconds")
        column = column.cast(pa.string())
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8()).cast(pa.string())
    if (pa.types.is_string(column.type) or pa.types.is_binary(kind)) and not column.null_count:
        yield from bytes_column(column).tolist()
        return
    if pa.types.is_struct(kind) and column.null_count:
        # pyarrow makes a scalar for each child of a null.
        for row, is_null in enumerate(nulls_of(column).tolist()):
            yield None if is_null else _content(column[row].as_py())
        return
    for value in column:
        yield _content(value.as_py())


def _content(value: object) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, (dict, list)):
        return json.dumps(value, default=_json_value, ensure_ascii=False).encode()
    if isinstance(value, bool):
        return str(int(value)).encode()
    return repr(value).encode() if isinstance(value, float) else str(value).encode()


def _json_value(value: object) -> object:
    """A JSON value for a value that JSON has no form for."""
    return value.hex() if isinstance(value, bytes) else str(value)


def _refuse_larger_rows(shard: str, table: TableShard, decoded_max: float) -> None:
    """``CorruptShardError`` if the rows take more than ``decoded_max`` bytes as members. The check
    comes first, because to make cells of rows takes a hundred times as long as to decode them."""
    if math.isinf(decoded_max):
        return
    decoded_bytes = 0
    for batch in table.batches(BATCH_BYTES):
        cells = sum(batch.num_rows - column.null_count for column in batch.columns)
        decoded_bytes += max(batch_bytes(batch), MEMBER_BYTES_MIN * max(cells, batch.num_rows))
        refuse_larger(shard, "its rows", decoded_bytes, decoded_max)


def cells_of_shard(
    shard: str, data: memoryview, key_field: str, decoded_max: float = math.inf
) -> MemberTable:
    """The cells of all rows of a shard, as a bare table: each is its own literal.
    ``CorruptShardError`` also if the cells take more than ``decoded_max`` bytes."""
    if not len(data):
        raise CorruptShardError(shard, 0, "it has no bytes")
    table = open_table(shard, MemorySource(data), inflated_max=decoded_max)
    _refuse_larger_rows(shard, table, decoded_max)
    plain = plain_schema(shard, table.schema)
    if "" in plain.names:
        raise ConversionError(
            f"shard {shard} has a column without a name, and a member needs a name",
            hint="name the column",
        )

    def with_keys() -> Iterator[tuple[Any, list[bytes]]]:
        first = 0
        for batch in plain_batches(shard, table, plain, BATCH_BYTES):
            yield batch, row_keys(shard, batch, key_field, first).tolist()
            first += batch.num_rows

    try:
        return cells_of_rows(with_keys(), plain.names)
    except ConversionError as error:
        raise ConversionError(f"shard {shard}: {error.message}", hint=error.hint) from None


def cells_of_rows(
    batches: Iterator[tuple[Any, list[bytes]]], columns: Sequence[str]
) -> MemberTable:
    """The cells of the rows of some batches, each batch with its keys, as a bare table."""
    names: list[bytes] = []
    contents: list[bytes] = []
    key_bytes: list[int] = []
    members_of: list[int] = []
    sizes_of_rows = [np.zeros(0, np.int64)]
    places = [at for at, name in enumerate(columns) if name != KEY_COLUMN]
    extensions = [b"." + columns[at].encode() for at in places]
    for batch, keys in batches:
        sizes_of_rows.append(row_bytes(batch))
        cells_of = [cell_contents(columns[at], batch.column(at)) for at in places]
        for key in keys:
            before = len(names)
            for extension, cells in zip(extensions, cells_of, strict=True):
                content = next(cells)
                if content is not None:
                    names.append(key + extension)
                    contents.append(content)
            if len(names) == before:
                names.append(key)
                contents.append(b"")
            members_of.append(len(names) - before)
        key_bytes += map(len, keys)
    counts = np.array(members_of, np.int64)
    nothing = np.full(len(names), -1, np.int64)
    return MemberTable(
        names=BytesColumn.of(names),
        kind=np.zeros(len(names), np.uint8),
        payload_start=nothing,
        payload_bytes=np.fromiter(map(len, contents), np.int64, len(contents)),
        range_start=nothing,
        range_length=np.zeros(len(names), np.int64),
        literals=RowBytes(BytesColumn.of(contents)),
        own=OwnRecords(
            key_bytes=np.repeat(np.array(key_bytes, np.int64), counts),
            record_of=np.repeat(np.arange(len(counts)), counts),
            record_bytes=np.concatenate(sizes_of_rows),
        ),
    )


# --------------------------------------------------------------------------------------------------
# Hashes of rows, one number a row, to compare values however they are stored.


_NULL = np.uint64(0x6E756C6C6E756C6C)
_STEP = np.uint64(0x9E3779B97F4A7C15)


def row_hashes(batch: Any) -> UInt64s:
    """A hash of the values of each row of a batch of plain types, shape ``(n,)``. The hash depends
    on nulls, lengths and the order of columns, and not on gaps, offsets and bytes behind nulls."""
    total = np.zeros(batch.num_rows, np.uint64)
    for column in batch.columns:
        total = mix(total ^ _hashes(column))
    return total


def _hashes(array: Any) -> UInt64s:
    if isinstance(array.type, pa.BaseExtensionType):
        return _hashes(array.storage)
    if pa.types.is_null(array.type):
        return np.full(len(array), _NULL)
    found = _value_hashes(array)
    if array.null_count:
        found[nulls_of(array)] = _NULL
    return found


def _value_hashes(array: Any) -> UInt64s:
    """The result of :func:`_hashes`, undefined for nulls."""
    kind, count = array.type, len(array)
    if pa.types.is_struct(kind):
        total = np.ones(count, np.uint64)
        for at in range(kind.num_fields):
            total = mix(total ^ _hashes(array.field(at)))
        return total
    if is_varying(kind):
        data, bounds = (
            memoryview(array.buffers()[2] or b""),
            pairwise(value_offsets(array).tolist()),
        )
        hashes = (xxhash.xxh3_64_intdigest(data[start:stop]) for start, stop in bounds)
        return np.fromiter(hashes, np.uint64, count)
    lists = lists_of(array)
    return _of_fixed(array) if lists is None else _of_lists(_hashes(lists[0]), lists[1])


def _of_lists(items: UInt64s, offsets: Int64s) -> UInt64s:
    """The hash of each list. ``items``: the hashes of the items of all lists; list ``i`` has those
    from ``offsets[i]`` to ``offsets[i + 1]``."""
    lengths = np.diff(offsets)
    place = np.arange(len(items)) - np.repeat(offsets[:-1], lengths)
    running = np.zeros(len(items) + 1, np.uint64)
    np.cumsum(mix(items ^ (place.astype(np.uint64) * _STEP)), out=running[1:])
    return mix((running[offsets[1:]] - running[offsets[:-1]]) ^ lengths.astype(np.uint64))


def _of_fixed(array: Any) -> UInt64s:
    """The hashes of values of one width: numbers, times, decimals, binaries of a fixed size."""
    count = len(array)
    if pa.types.is_boolean(array.type):
        stop = array.offset + count
        bits = np.frombuffer(array.buffers()[1], np.uint8)
        values = np.unpackbits(bits, count=stop, bitorder="little")[array.offset :]
        return mix(values.astype(np.uint64))
    width, buffer = array.type.bit_width // 8, array.buffers()[1]
    if not width or buffer is None or not count:
        return np.zeros(count, np.uint64)
    data = np.frombuffer(buffer, np.uint8, count * width, array.offset * width)
    words = np.zeros((count, -(-width // 8) * 8), np.uint8)
    words[:, :width] = data.reshape(count, width)
    total = np.zeros(count, np.uint64)
    for column in words.view("<u8").T:
        total = mix(total ^ column)
    return total
