"""Makes MDS and LitData samples around the payloads of the members of all records of a shard.

A sample is a u32 size for each of its values, and then the values, in the order of their names: the
extensions of the members, and ``__key__`` for the key. All records must have the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dsort.containers.offset_table import SHARD_BYTES_MAX
from dsort.data.columns import BytesColumn, Int64s
from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords
from dsort.data.row_bytes import RowBytes, column_of, distinct_rows, side_by_side, spread
from dsort.errors import ConversionError
from dsort.naming.names import KEY_COLUMN, readable

__all__ = ["packed_samples"]


def packed_samples(
    members: MemberTable,
    records: FormedRecords,
    schema_of: Callable[[tuple[str, ...]], str],
    data_set: str,
) -> MemberTable:
    """See ``Packing.packed``. ``schema_of``: returns the schema of samples with values of these
    names. ``data_set``: the kind of data set, for messages."""
    rows, first = records.member_rows, records.member_offsets[:-1]
    if not len(rows):
        return replace(members, literals={}, tails={}, entries=None, schema="")
    values = _values_of(members, records, data_set)
    ordered, each = rows[values.order], len(values.names)
    sizes = members.payload_bytes[ordered].reshape(len(first), each)
    columns = tuple(sorted([*values.names, KEY_COLUMN]))
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
    return replace(
        _moved(members, rows, ordered),
        literals=RowBytes(literals),
        tails=tails,
        entries=None,
        schema=schema_of(columns),
    )


class _Values(Struct, frozen=True):
    """``names``: the columns of all records but their keys, sorted. ``order``: an order of the
    members in which those of each record lie in the order of its columns."""

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
        try:
            key.decode()
        except UnicodeDecodeError:
            name = members.names[int(records.member_rows[records.member_offsets[record]])]
            raise _unfit(key, name, "has a name that is no UTF-8") from None


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
    return replace(
        members,
        names=members.names.take(moved),
        kind=members.kind[moved],
        payload_start=members.payload_start[moved],
        payload_bytes=members.payload_bytes[moved],
        range_start=members.range_start[moved],
        range_length=members.range_length[moved],
        key_bytes=None if members.key_bytes is None else members.key_bytes[moved],
    )


def _column(key: bytes, suffix: bytes) -> str:
    """The column of a member. ``suffix``: the end of its name, after the key."""
    why = ""
    try:
        column = suffix[1:].decode()
    except UnicodeDecodeError:
        why, column = "has a name that is no UTF-8", ""
    if not why and not column:
        why = "has no extension"
    elif column == KEY_COLUMN:
        why = "is the column that the key goes to"
    if why:
        raise _unfit(key, key + suffix, why)
    return column


def _unfit(key: bytes, name: bytes, why: str) -> ConversionError:
    return ConversionError(
        f"record {readable(key)} has a member {readable(name)}: that {why}",
        hint="rename the member; stray_members: drop leaves out members without an extension",
    )
