"""Bare tables of records that the container itself separates: features, columns and fields become
members."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final

import numpy as np
from msgspec.structs import replace

from dsort.data.columns import BytesColumn, Int64s, row_numbers
from dsort.data.members import MemberTable, OwnRecords
from dsort.data.numbered import DIGITS, NumberedColumn
from dsort.data.records import FormedRecords, split_names
from dsort.errors import ConversionError
from dsort.naming.names import position_key, readable, shortened

# --------------------------------------------------------------------------------------------------
# Records without names: the key is in the record, or else is the position of the record in its
# shard (``naming.names.position_key``).


def position_names(shard: str, count: int, extension: bytes) -> tuple[BytesColumn, Int64s]:
    """(names, length of the key in each) of the ``count`` records of a shard, in order. The bytes
    of the names are made only when they are read. ``extension``: what follows the key, with its
    dot."""
    if count > 10**DIGITS:
        keys = [position_key(shard, number) for number in range(count)]
        return joined_names(keys, extension)
    first = position_key(shard, 0)
    names = NumberedColumn(first[:-DIGITS], row_numbers(count), extension)
    return names, np.broadcast_to(np.int64(len(first)), (count,))


def joined_names(keys: list[bytes], extension: bytes) -> tuple[BytesColumn, Int64s]:
    """(names, length of the key in each) of records with ``keys``."""
    key_bytes = np.fromiter(map(len, keys), np.int64, len(keys))
    return BytesColumn.of([key + extension for key in keys]), key_bytes


def record_table(
    shard: str,
    extension: bytes,
    starts: Int64s,
    lengths: Int64s,
    keys: list[bytes] | None = None,
    *,
    schema: str = "",
) -> MemberTable:
    """The table of records with one member each; its payload is the whole record. ``starts``,
    ``lengths``: the ranges of the records in the shard. ``keys``: None if records are numbered."""
    if keys is None:
        names, key_bytes = position_names(shard, len(starts), extension)
    else:
        names, key_bytes = joined_names(keys, extension)
    return MemberTable(
        names=names,
        kind=np.zeros(len(starts), np.uint8),
        payload_start=starts,
        payload_bytes=lengths,
        range_start=starts,
        range_length=lengths,
        own=OwnRecords(key_bytes, np.arange(len(starts), dtype=np.int64), schema),
    )


Value = bytes | tuple[int, int]
"""The payload of a member: a literal, or (its first byte in the shard, its length)."""

ROW_BYTES: Final = 40
ROWS_BYTES_MAX: Final = 24 << 20
ROWS_EXPANSION_MAX: Final = 12
"""The rows of a shard may take ``ROWS_BYTES_MAX`` plus ``ROWS_EXPANSION_MAX`` times the bytes of
its records. A row takes ``ROW_BYTES`` plus its name: a small record may become a million members,
and the name of each repeats a long key."""


class BareRows:
    """Gathers, in order, the rows of the bare table for a shard that was scanned as ``members``."""

    def __init__(self, members: MemberTable) -> None:
        self._members = members
        self._record_bytes = int(members.payload_bytes.sum())
        self._bytes_max = ROWS_BYTES_MAX + ROWS_EXPANSION_MAX * self._record_bytes
        self._names = bytearray()
        self._name_ends = array("q", [0])
        self._key_bytes = array("q")
        self._record_of = array("q")
        self._starts = array("q")
        self._lengths = array("q")
        self._literals: dict[int, bytes] = {}

    def add(self, record: int, key: bytes, fields: Iterable[tuple[bytes, Value]]) -> None:
        """Add one record with its ``fields``: (name, value). A name becomes the extension of a
        member. A slash in a name becomes a dot, because text after a slash would be part of another
        key. The name "" becomes a member without an extension.

        ``ConversionError`` if the fields cannot be members."""
        seen: set[bytes] = set()
        for field, value in fields:
            extension = field.replace(b"/", b".")
            name = key + b"." + extension if extension else key
            if name in seen or b"\0" in name:
                what = "two members of the name" if name in seen else "a NUL in the name of"
                raise ConversionError(
                    f"record {readable(key)} would have {what} {readable(name)}",
                    hint="rename the field; a slash in its name becomes a dot",
                )
            seen.add(name)
            self.add_member(record, name, len(key), value)
        if not seen:
            raise ConversionError(
                f"record {readable(key)} holds nothing, and a record needs a member",
                hint="remove it from its shard, or write shards of the same format as the inputs",
            )

    def add_member(self, record: int, name: bytes, key_bytes: int, value: Value) -> None:
        """Add one member of a record. ``ConversionError`` if the rows take too much memory."""
        row = len(self._starts)
        if isinstance(value, bytes):
            self._literals[row] = value
            value = (-1, len(value))
        self._names += name
        self._name_ends.append(len(self._names))
        self._key_bytes.append(key_bytes)
        self._record_of.append(record)
        self._starts.append(value[0])
        self._lengths.append(value[1])
        if len(self._names) + ROW_BYTES * row > self._bytes_max:
            raise ConversionError(
                f"record {shortened(readable(name[:key_bytes]))} and the {record:,} before it have "
                f"too many members: the shard has {self._record_bytes:,} bytes of records, and "
                f"the members, {row + 1:,} so far, have names of {len(self._names):,} bytes",
                hint="a job whose output_extension is that of its inputs moves them as they are",
            )

    def table(self) -> MemberTable:
        """The bare table."""
        start, length = np.array(self._starts), np.array(self._lengths)
        return replace(
            self._members,
            names=BytesColumn(np.array(self._name_ends), np.frombuffer(self._names, np.uint8)),
            kind=np.zeros(len(start), np.uint8),
            payload_start=start,
            payload_bytes=length,
            range_start=start,
            range_length=np.where(start < 0, 0, length),
            literals=self._literals,
            tails={},
            entries=None,
            own=replace(
                self._members.own,
                key_bytes=np.array(self._key_bytes),
                record_of=np.array(self._record_of),
                schema="",
            ),
        )


# --------------------------------------------------------------------------------------------------
# Checks for containers in which only the names of members separate records.


def check_keys_in_names(members: MemberTable, records: FormedRecords, suffix: str) -> None:
    """``ConversionError`` if readers of a ``suffix`` shard would form other records than
    ``records`` from the names of ``members``, or would read other names."""
    rows = records.member_rows
    _check_names(members.names.take(rows), suffix)
    if members.own.record_of is None:
        return
    wrong = np.flatnonzero(split_names(members.names).key_bytes[rows] != records.key_bytes[rows])
    if len(wrong):
        row = int(rows[wrong[0]])
        key = members.names[row][: int(records.key_bytes[row])]
        raise ConversionError(
            f"the key {readable(key)} has a dot in its last part: in a {suffix} shard a key ends "
            "at its first dot",
            hint="choose another key_field, or leave it out: then records are numbered",
        )


def _check_names(names: BytesColumn, suffix: str) -> None:
    """``ConversionError`` for a name with a NUL, at which readers would cut it off, and for the
    name of a directory."""
    if not len(names):
        return
    ends = names.offsets[1:]
    is_directory = names.blob[np.maximum(ends - 1, 0)] == ord("/")
    nuls = np.flatnonzero(names.blob == 0)
    for what, found in (
        ("a NUL in it, and ends there for readers", np.searchsorted(ends, nuls, side="right")),
        ("a slash at its end, as directories have", np.flatnonzero(is_directory)),
    ):
        if len(found):
            raise ConversionError(
                f"{readable(names[int(found[0])])} cannot be in a {suffix} shard: the name has "
                f"{what}",
                hint="choose another key_field, or leave it out: then records are numbered",
            )
