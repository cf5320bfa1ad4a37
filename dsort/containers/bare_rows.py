"""Bare tables of records that the container itself separates: features, columns and fields become
members."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final

import numpy as np
from msgspec.structs import replace

from dsort.data.columns import BytesColumn
from dsort.data.members import MemberTable
from dsort.errors import ConversionError
from dsort.naming.names import readable, shortened

__all__ = ["BareRows", "Value"]

Value = bytes | tuple[int, int]
"""The payload of a member: a literal, or (its first byte in the shard, its length)."""

ROW_BYTES: Final = 40
ROWS_BYTES_MAX: Final = 24 << 20
ROWS_EXPANSION_MAX: Final = 12
"""The rows of a shard may take ``ROWS_BYTES_MAX`` and ``ROWS_EXPANSION_MAX`` times the bytes of its
records. A row takes ``ROW_BYTES`` and its name: a small record may become a million members, and
the name of each repeats a long key."""


class BareRows:
    """The rows of the bare table of a shard that was scanned as ``members``, gathered in their
    order."""

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
        member. A slash in it becomes a dot, because text after a slash would be part of another
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
                f"record {readable(key)} holds nothing, and a record without members is none",
                hint="remove it from its shard, or keep to its container",
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
                f"{self._record_bytes:,} bytes in the whole shard, too few for {row + 1:,} members "
                f"with names of {len(self._names):,} bytes",
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
            key_bytes=np.array(self._key_bytes),
            record_of=np.array(self._record_of),
            schema="",
        )
