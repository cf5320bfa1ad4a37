"""Entries of members, packed by record: what the end of a shard says of each member of the record.

Only containers whose end lists its members have entries (a zip: its central directory); for all
others the columns are None and cost nothing. A record's packed entries are, member by member: where
in the stored record the member begins (8 bytes), how long its entry is (4 bytes), the entry.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from dsort.data.columns import BytesColumn, Int32s, Int64s

__all__ = ["entries_bytes", "packed_entries", "placed_entries"]

_HEAD = struct.Struct("<QI")


def packed_entries(
    entries: BytesColumn, stored_bytes: Int64s, rows: Int64s, offsets: Int64s
) -> BytesColumn:
    """The entries of each record, packed.

    ``entries`` and ``stored_bytes`` have a row for each member of the shard; record ``i`` has the
    members ``rows[offsets[i]:offsets[i + 1]]``.
    """
    texts = entries.tolist()
    sizes = stored_bytes.tolist()
    packed: list[bytes] = []
    members, bounds = rows.tolist(), offsets.tolist()
    for first, stop in pairwise(bounds):
        at, parts = 0, list[bytes]()
        for member in members[first:stop]:
            parts += (_HEAD.pack(at, len(texts[member])), texts[member])
            at += sizes[member]
        packed.append(b"".join(parts))
    return BytesColumn.of(packed)


def entries_bytes(packed: BytesColumn, members: Int32s) -> Int64s:
    """How much the entries of each record take in the end of a shard, shape ``(n,)``."""
    return packed.lengths - _HEAD.size * members.astype(np.int64)


def placed_entries(
    packed: BytesColumn, stored_bytes: Int64s, offset: int
) -> Iterator[tuple[int, bytes]]:
    """(offset in the output shard, entry) of each member of records that lie side by side from
    ``offset`` on; ``stored_bytes``: of each record."""
    for record, size_bytes in zip(packed.tolist(), stored_bytes.tolist(), strict=True):
        at = 0
        while at < len(record):
            begins, length = _HEAD.unpack_from(record, at)
            at += _HEAD.size
            yield offset + begins, record[at : at + length]
            at += length
        offset += size_bytes
