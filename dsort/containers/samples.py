"""Shards of samples, in two dialects: what MDS and LitData have in common.

A shard begins with a table: ``u32 n | u32 offset[n + 1]``, little-endian. Offsets count from the
first byte of the shard. A sample is a u32 size for each value without a fixed length, and then the
values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dsort.containers.bare_rows import BareRows, Value
from dsort.containers.base import Need
from dsort.data.columns import BytesColumn, Int64s, offsets_of
from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords
from dsort.data.row_bytes import RowBytes, column_of, distinct_rows, side_by_side, spread
from dsort.errors import ConversionError, CorruptShardError
from dsort.naming.names import KEY_COLUMN, is_utf8, readable

SHARD_BYTES_MAX = (1 << 32) - 1
"""An offset has 32 bits."""
COUNT_BYTES = 4
ROWS_AT_ONCE_MAX = 1 << 16
SIZES_AT_ONCE_MAX = 1 << 18
"""The maximum number of sizes read at once. Each size takes some 40 bytes while it is read, and
there may be thousands of values in a record."""
_COUNT = struct.Struct("<I")


def table_bytes(records: int) -> int:
    """The length of the table, with its count."""
    return COUNT_BYTES + 4 * (records + 1)


def offset_table(head_bytes: int, stored_bytes: Int64s) -> bytes:
    """The table of a shard whose first record begins at ``head_bytes``."""
    offsets = head_bytes + offsets_of(stored_bytes)
    return _COUNT.pack(len(stored_bytes)) + offsets.astype("<u4").tobytes()


def read_offsets(
    shard: str, size_bytes: int, format_name: str, record_name: str, *, has_head: bool
) -> Generator[Need, memoryview, Int64s]:
    """The offsets in the table of a shard, shape ``(n + 1,)``. ``has_head``: more bytes may be
    between the table and the first record. ``CorruptShardError`` unless the records lie one after
    the other to the end of the shard."""
    if size_bytes > SHARD_BYTES_MAX:
        text = f"it is longer than 4 GiB, which no {format_name} can be"
        raise CorruptShardError(shard, 0, text)
    if size_bytes < COUNT_BYTES:
        raise CorruptShardError(shard, 0, "the shard ends here")
    (count,) = _COUNT.unpack_from((yield Need(0, COUNT_BYTES)))
    head_bytes = table_bytes(count)
    if head_bytes > size_bytes:
        text = f"its table of {count:,} {record_name} is longer than the shard"
        raise CorruptShardError(shard, 0, text)
    window = yield Need(COUNT_BYTES, head_bytes - COUNT_BYTES)
    offsets = np.frombuffer(window, "<u4", count + 1).astype(np.int64)
    del window
    if offsets[0] < head_bytes or (offsets[0] != head_bytes and not has_head):
        raise CorruptShardError(shard, COUNT_BYTES, "its first record begins in its head")
    falling = np.flatnonzero(np.diff(offsets) < 0)
    if len(falling):
        at = COUNT_BYTES + 4 * (int(falling[0]) + 1)
        raise CorruptShardError(shard, at, "a record ends before it begins")
    if offsets[-1] != size_bytes:
        text = f"its last record ends at byte {offsets[-1]:,}, the shard at {size_bytes:,}"
        raise CorruptShardError(shard, head_bytes - 4, text)
    return offsets


def read_sizes(
    shard: str,
    offsets: Int64s,
    values: int,
    fixed_bytes: int,
    record_name: str,
    take: Callable[[Int64s, Int64s], None] = lambda _starts, _sizes: None,
) -> Generator[Need, memoryview, None]:
    """Check that the sizes of the ``values`` of each record add up to its length. ``fixed_bytes``:
    the length of the other values, whose sizes are fixed. ``take``: called with (offsets of
    records, sizes in them, shape ``(n, values)``).

    There are no checksums. The only possible check is whether offsets and sizes agree, so the sizes
    in each record are read, which takes 50 ns a record."""
    row = 0
    while row < len(offsets) - 1:
        starts = offsets[row:-1][:ROWS_AT_ONCE_MAX]
        first = int(starts[0])
        sizes = _sizes_in((yield Need(first, 4 * values)), starts - first, values)
        starts = starts[: len(sizes)]
        lengths = offsets[row + 1 : row + 1 + len(sizes)] - starts
        wrong = np.flatnonzero(4 * values + fixed_bytes + sizes.sum(axis=1) != lengths)
        if len(wrong):
            text = f"the sizes in {record_name} do not add up to its length"
            raise CorruptShardError(shard, int(starts[wrong[0]]), text)
        take(starts, sizes)
        row += len(sizes)


def _sizes_in(window: memoryview, starts: Int64s, values: int) -> Int64s:
    """The sizes at the start of each record, for the first records whose sizes are all in
    ``window``, up to a limit; shape ``(n, values)``. ``starts``: the places of the records in the
    window."""
    count = int(np.searchsorted(starts, len(window) - 4 * values, side="right"))
    starts = starts[: min(count, max(SIZES_AT_ONCE_MAX // max(values, 1), 1))]
    data = np.frombuffer(window, np.uint8)
    places = starts[:, None] + np.arange(4 * values)
    sizes = np.ascontiguousarray(data[places]).view("<u4").astype(np.int64)
    return sizes.reshape(len(starts), values)


class SampleValue(Struct, frozen=True):
    """A value of each sample. ``size``: None if each sample has its own. ``text``: None for a value
    that becomes a member unchanged; for a number, the function that returns it as text, given the
    key of the record and the bytes of the number."""

    name: str
    size: int | None = None
    text: Callable[[bytes, bytes], bytes] | None = None


def bare_samples(
    members: MemberTable,
    read: Callable[[int, int], bytes],
    values: Sequence[SampleValue],
    key_value: str | None,
) -> MemberTable:
    """See ``Container.bare``. ``key_value``: the value that becomes the key of its record, and no
    member. If this value is empty, the record keeps its number as its key."""
    assert members.own.key_bytes is not None
    sizes_of = struct.Struct(f"<{sum(each.size is None for each in values)}I")
    named = [(each, each.name.encode("utf-8", "surrogatepass")) for each in values]
    names, key_bytes = members.names.tolist(), members.own.key_bytes.tolist()
    rows = BareRows(members)
    for record, start in enumerate(members.payload_start.tolist()):
        sizes = iter(sizes_of.unpack(read(start, sizes_of.size)))
        at = start + sizes_of.size
        key = names[record][: key_bytes[record]]
        found: list[tuple[bytes, Value]] = []
        for each, name in named:
            size = next(sizes) if each.size is None else each.size
            if each.name == key_value:
                key = read(at, size) or key
            elif each.text is not None:
                found.append((name, each.text(key, read(at, size))))
            else:
                found.append((name, (at, size)))
            at += size
        rows.add(record, key, found)
    return rows.table()


def format_of(column: str, formats: Mapping[str, str]) -> str:
    """The format of the values of a column by the last part of its name, an extension."""
    return formats.get(column.rpartition(".")[2].lower(), "bytes")


def columns_of(extensions: Sequence[str]) -> tuple[str, ...]:
    """The columns of records whose members have these extensions."""
    return tuple(sorted([*extensions, KEY_COLUMN]))


def packed_samples(
    members: MemberTable,
    records: FormedRecords,
    schema_of: Callable[[tuple[str, ...]], str],
    data_set: str,
) -> MemberTable:
    """See ``Container.packed``. ``schema_of``: returns the schema of samples with values of these
    names. ``data_set``: the kind of data set, for messages."""
    rows, first = records.member_rows, records.member_offsets[:-1]
    if not len(rows):
        return replace(
            members, literals={}, tails={}, entries=None, own=replace(members.own, schema="")
        )
    values = _values_of(members, records, data_set)
    ordered, each = rows[values.order], len(values.names)
    sizes = members.payload_bytes[ordered].reshape(len(first), each)
    columns = columns_of(values.names)
    key_at = columns.index(KEY_COLUMN)
    _check_sizes(sizes, records, data_set)
    heads = np.insert(sizes, key_at, records.keys.lengths, axis=1).astype("<u4")
    begun = BytesColumn.of_table(heads.view(np.uint8))
    if key_at == 0:
        begun = side_by_side([begun, records.keys], len(first))
    parts = [spread(begun, first, len(rows))]
    if 0 < key_at < each:
        parts.append(spread(records.keys, first + key_at, len(rows)))
    if members.literals:
        parts.append(column_of(members.literals, len(members)).take(ordered))
    literals = spread(side_by_side(parts, len(rows)), rows, len(members))
    tails: Mapping[int, bytes] = {}
    if key_at == each:
        tails = RowBytes(spread(records.keys, rows[records.member_offsets[1:] - 1], len(members)))
    moved = _moved(members, rows, ordered)
    return replace(
        moved,
        literals=RowBytes(literals),
        tails=tails,
        entries=None,
        own=replace(moved.own, schema=schema_of(columns)),
    )


class _Values(Struct, frozen=True):
    """``names``: the columns that every record has besides its key, sorted. ``order``: an order of
    the members, in which the members of each record are in the order of its columns."""

    names: tuple[str, ...]
    order: Int64s


def _values_of(members: MemberTable, records: FormedRecords, data_set: str) -> _Values:
    """``ConversionError`` unless all ``records`` have the columns of the first one."""
    rows, names = records.member_rows, members.names
    key_bytes = records.key_bytes[rows]
    counts = np.diff(records.member_offsets)
    record_of = np.repeat(np.arange(len(counts)), counts)
    suffix_of, first = distinct_rows(
        names.blob, names.offsets[:-1][rows] + key_bytes, names.lengths[rows] - key_bytes
    )
    columns = []
    for place in first.tolist():
        name, size = names[int(rows[place])], int(key_bytes[place])
        columns.append(_column(name[:size], name[size:]))
    _check_keys(members, records)
    own = suffix_of[: int(counts[0])]  # a record has each column once
    unlike = counts != counts[0]
    unlike[record_of[~np.isin(suffix_of, own)]] = True
    if unlike.any():
        record = int(np.argmax(unlike))
        found = {columns[each] for each in suffix_of[record_of == record].tolist()}
        wanted = [columns[each] for each in own.tolist()]
        lacking = sorted({*wanted} - found)
        further = sorted(found - {*wanted})
        what = f"has no member .{lacking[0]}" if lacking else f"has a member .{further[0]}"
        raise ConversionError(
            f"record {readable(records.keys[record])} {what}, unlike record "
            f"{readable(records.keys[0])}: all samples of {data_set} have the same columns",
            hint="in a spec, member_defaults gives records a member that they lack; the step "
            "require leaves such records out, and the step fields drops members that others lack",
        )
    by_name = sorted(range(len(columns)), key=columns.__getitem__)
    rank = np.empty(len(columns), np.int64)
    rank[by_name] = np.arange(len(columns))
    order = np.argsort(record_of * len(columns) + rank[suffix_of], kind="stable")
    return _Values(tuple(columns[place] for place in by_name), order)


def _check_keys(members: MemberTable, records: FormedRecords) -> None:
    """``ConversionError`` for a key that is not text."""
    if not (records.keys.blob >= 0x80).any():
        return
    for record, key in enumerate(records.keys.tolist()):
        if not is_utf8(key):
            name = members.names[int(records.member_rows[records.member_offsets[record]])]
            raise _unfit(key, name, "is not named in UTF-8")


def _check_sizes(sizes: Int64s, records: FormedRecords, data_set: str) -> None:
    """``ConversionError`` for a member that no shard can hold."""
    if sizes.max() > SHARD_BYTES_MAX:
        record = int(np.argmax((sizes > SHARD_BYTES_MAX).any(axis=1)))
        raise ConversionError(
            f"record {readable(records.keys[record])} has a member of "
            f"{int(sizes[record].max()):,} bytes; a shard of {data_set} may have "
            f"{SHARD_BYTES_MAX:,}",
            hint="choose another container",
        )


def _moved(members: MemberTable, rows: Int64s, ordered: Int64s) -> MemberTable:
    """``members`` with the row ``ordered[i]`` in the place of the row ``rows[i]``."""
    if bool((rows == ordered).all()):
        return members
    moved = np.arange(len(members))
    moved[rows] = ordered
    own = members.own
    if own.key_bytes is not None:
        own = replace(own, key_bytes=own.key_bytes[moved])
    return replace(
        members,
        names=members.names.take(moved),
        kind=members.kind[moved],
        payload_start=members.payload_start[moved],
        payload_bytes=members.payload_bytes[moved],
        range_start=members.range_start[moved],
        range_length=members.range_length[moved],
        own=own,
    )


def _column(key: bytes, suffix: bytes) -> str:
    """The column of a member. ``suffix``: the end of its name, after the key."""
    why = ""
    try:
        column = suffix[1:].decode()
    except UnicodeDecodeError:
        why, column = "is not named in UTF-8", ""
    if not why and not column:
        why = "has no extension"
    elif column == KEY_COLUMN:
        why = "would be in the column of the keys"
    if why:
        raise _unfit(key, key + suffix, why)
    return column


def _unfit(key: bytes, name: bytes, why: str) -> ConversionError:
    return ConversionError(
        f"record {readable(key)} has a member {readable(name)} that {why}",
        hint="rename the member; stray_members: drop leaves out members without an extension",
    )
