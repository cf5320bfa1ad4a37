"""Records without names, whose key is in them, or else is their position in their shard
(``naming.names.position_key``)."""

from __future__ import annotations

import numpy as np

from dsort.data.columns import BytesColumn, Int64s, row_numbers
from dsort.data.members import MemberTable
from dsort.data.numbered import DIGITS, NumberedColumn
from dsort.naming.names import position_key

__all__ = ["joined_names", "position_names", "record_table"]


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
    """The table of records of one member each, whose payload is all that is stored of them, at
    ``starts``. ``keys``: None if records are numbered."""
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
        key_bytes=key_bytes,
        record_of=np.arange(len(starts), dtype=np.int64),
        schema=schema,
    )
