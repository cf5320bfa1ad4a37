"""Names for records without names: the position in their shard (``naming.names.position_key``)."""

from __future__ import annotations

import numpy as np

from dsort.data.columns import BytesColumn, Int64s, row_numbers
from dsort.data.numbered import DIGITS, NumberedColumn
from dsort.naming.names import position_key

__all__ = ["joined_names", "position_names"]


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
