"""Bare tables of records that the container itself separates: features, columns and fields become
members."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from dsort.data.columns import BytesColumn
from dsort.data.members import MemberTable
from dsort.errors import ConversionError
from dsort.naming.names import readable

__all__ = ["BareRows", "Value"]

Value = bytes | tuple[int, int]
"""The payload of a member: a literal, or (its first byte in the shard, its length)."""


class BareRows:
    """The rows of a bare table, gathered in their order."""

    def __init__(self) -> None:
        self._names: list[bytes] = []
        self._key_bytes: list[int] = []
        self._record_of: list[int] = []
        self._ranges: list[tuple[int, int]] = []
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
            if isinstance(value, bytes):
                self._literals[len(self._names)] = value
                value = (-1, len(value))
            self._names.append(name)
            self._key_bytes.append(len(key))
            self._record_of.append(record)
            self._ranges.append(value)
        if not seen:
            raise ConversionError(
                f"record {readable(key)} holds nothing, and a record without members is none",
                hint="remove it from its shard, or keep to its container",
            )

    def table(self, members: MemberTable) -> MemberTable:
        """The bare table of the shard that was scanned as ``members``."""
        start, length = np.array(self._ranges, np.int64).reshape(-1, 2).T.copy()
        return replace(
            members,
            names=BytesColumn.of(self._names),
            kind=np.zeros(len(start), np.uint8),
            payload_start=start,
            payload_bytes=length,
            range_start=start,
            range_length=np.where(start < 0, 0, length),
            literals=self._literals,
            tails={},
            entries=None,
            key_bytes=np.array(self._key_bytes, np.int64),
            record_of=np.array(self._record_of, np.int64),
            schema="",
        )
