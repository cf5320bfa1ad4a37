"""Entries of members, packed by record. An entry is the listing of a member at the end of a shard.

Only containers that list their members at the end have entries (a zip: its central directory). For
all others, the columns are None and cost nothing. A record's packed entries have, for each member,
its offset in the stored record (8 bytes) and the length of its entry (4 bytes); then the entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import overload

import numpy as np
from numpy.typing import NDArray

from dsort.data.columns import BytesColumn, Int32s, Int64s, UInt8s, offsets_of
from dsort.data.row_bytes import side_by_side

PlacedEntry = tuple[int, bytes]
"""(Offset of the member in the output shard in bytes, its entry)."""

_HEAD = np.dtype([("at", "<u8"), ("length", "<u4")])


@dataclass(frozen=True, slots=True, eq=False)
class PlacedEntries(Sequence[PlacedEntry]):
    """The entries of an output shard's members, in their order: columns with ``n`` rows, which can
    also be read one by one."""

    entries: BytesColumn
    offsets: Int64s  # of each member in the output shard

    @classmethod
    def of(cls, placed: Iterable[PlacedEntry]) -> PlacedEntries:
        """The columns of ``placed``."""
        rows = list(placed)
        offsets = np.array([offset for offset, _ in rows], np.int64)
        return cls(BytesColumn.of([entry for _, entry in rows]), offsets)

    @classmethod
    def concat(cls, parts: Sequence[PlacedEntries]) -> PlacedEntries:
        """The rows of all ``parts``, one after the other."""
        none = np.zeros(0, np.int64)
        return cls(
            BytesColumn.concat([part.entries for part in parts]),
            np.concatenate([none, *(part.offsets for part in parts)]),
        )

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, row: int) -> PlacedEntry: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[PlacedEntry]: ...
    def __getitem__(self, row: int | slice) -> PlacedEntry | Sequence[PlacedEntry]:
        if isinstance(row, slice):
            return [self[each] for each in range(*row.indices(len(self)))]
        if not -len(self) <= row < len(self):
            raise IndexError(row)
        row %= len(self)
        return int(self.offsets[row]), self.entries[row]


def packed_entries(
    entries: BytesColumn, stored_bytes: Int64s, rows: Int64s, offsets: Int64s
) -> BytesColumn:
    """The entries of each record, packed. About 0.3 µs a member.

    ``entries`` and ``stored_bytes`` have a row for each member of the shard; record ``i`` has the
    members ``rows[offsets[i]:offsets[i + 1]]``.
    """
    own, sizes = entries.take(rows), stored_bytes[rows]
    before = np.cumsum(sizes) - sizes
    counts = np.diff(offsets)
    heads = np.empty(len(rows), _HEAD)
    heads["at"] = before - np.repeat(before[offsets[:-1]], counts)
    heads["length"] = own.lengths
    if len(counts) and len(rows) == len(counts) and bool((counts == 1).all()) and own.width:
        begun = np.arange(len(rows) + 1, dtype=np.int64) * _HEAD.itemsize
        return side_by_side([BytesColumn(begun, heads.view(np.uint8)), own], len(rows))
    head_blob, entry_blob = heads.tobytes(), own.blob.tobytes()
    head_ends = (offsets * _HEAD.itemsize).tolist()
    entry_ends = own.offsets[offsets].tolist()
    parts: list[bytes] = [b""] * (2 * len(counts))
    parts[0::2] = [head_blob[a:b] for a, b in pairwise(head_ends)]
    parts[1::2] = [entry_blob[a:b] for a, b in pairwise(entry_ends)]
    bounds = offsets * _HEAD.itemsize + own.offsets[offsets]
    return BytesColumn(bounds, np.frombuffer(b"".join(parts), np.uint8))


def entries_bytes(packed: BytesColumn, members: Int32s) -> Int64s:
    """The bytes that the entries of each record take at the end of a shard, shape ``(n,)``."""
    return packed.lengths - _HEAD.itemsize * members.astype(np.int64)


def placed_entries(
    packed: BytesColumn, members: Int32s, stored_bytes: Int64s, offset: int
) -> PlacedEntries:
    """The entries of records that are side by side from ``offset`` of an output shard on, with the
    places of their members. ``members`` and ``stored_bytes``: of each record."""
    width, count = packed.width, int(members[0]) if len(members) else 0
    if width is not None and bool((members == count).all()):  # a table: 0.02 µs a member, not 0.3
        table = packed.blob.reshape(len(packed), width)
        heads = np.ascontiguousarray(table[:, : count * _HEAD.itemsize]).view(_HEAD).reshape(-1)
        entries = np.ascontiguousarray(table[:, count * _HEAD.itemsize :]).reshape(-1)
    else:
        heads, entries = _cut_apart(packed, members)
    bounds = offsets_of(heads["length"])
    begins = offset + np.cumsum(stored_bytes) - stored_bytes
    at = np.repeat(begins, members) + heads["at"].astype(np.int64)
    return PlacedEntries(BytesColumn(bounds, entries), at)


def _cut_apart(packed: BytesColumn, members: Int32s) -> tuple[NDArray[np.void], UInt8s]:
    """Return (the heads of all entries; the entries, one after the other)."""
    blob = packed.blob.tobytes()
    ends = packed.offsets.tolist()
    head_stops = (packed.offsets[:-1] + _HEAD.itemsize * members.astype(np.int64)).tolist()
    heads = b"".join([blob[a:b] for a, b in zip(ends, head_stops, strict=False)])
    entries = b"".join([blob[a:b] for a, b in zip(head_stops, ends[1:], strict=True)])
    return np.frombuffer(heads, _HEAD), np.frombuffer(entries, np.uint8)
