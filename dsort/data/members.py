"""Members in columns: the result of a container's scan of one shard; and their entries, by record.

An entry is the listing of a member at the end of a shard. Only containers that list their members
there have entries (a zip: its central directory). A record's packed entries have, for each member,
its offset in the stored record (8 bytes) and the length of its entry (4 bytes); then the entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, overload

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from dsort.data.columns import (
    BytesColumn,
    Int32s,
    Int64s,
    UInt8s,
    are_all_rows,
    offsets_of,
)
from dsort.data.row_bytes import RowBytes, column_of, side_by_side


class MemberKind(IntEnum):
    """The kind of a member, in the same terms for all containers."""

    FILE = 0
    SYMLINK = 1
    DIRECTORY = 2
    DEVICE = 3  # character and block devices, fifos
    HARDLINK = 4  # only if its target is not in this shard; a resolved one is a FILE


class ScanNotes(Struct, frozen=True):
    """Oddities of a shard that was read to its end in spite of them.

    ``OddityKind`` has the sentences about them. A container with more notes makes a subclass of
    this."""

    trailing_bytes: int = 0  # from the first byte behind the end that is no padding or archive
    hardlinks_resolved: int = 0
    mended: tuple[int, ...] = ()  # rows with a number in the header at which some readers stop
    unsafe_prefixes: tuple[int, ...] = ()  # rows that some readers unpack to another path
    shortfall: str = ""
    """Why members may be missing from the shard, in the words of its container; "" if there is no
    sign of missing members."""


class OwnRecords(Struct, frozen=True, eq=False):
    """Facts about records that the container itself separates. An object without facts is false:
    then the names of members separate the records."""

    key_bytes: Int64s | None = None  # the length of the key in each name; None: see ``split_names``
    record_of: Int64s | None = None
    """The record of each row, ascending from 0 on, if the container itself separates its records;
    then ``key_bytes`` is not None. None: the names separate records."""
    schema: str = ""
    """The properties that all records have in common, if their container stores them in one place
    (the columns of an MDS shard). All shards of a job must agree. "": the container stores none, or
    there are no records."""
    record_bytes: Int64s | None = None
    """The payload bytes of each record, shape ``(records,)``, if these are not the bytes of the
    record's members. (For rows of a table, they are the bytes of the values.) None: the bytes of
    the members."""

    def __bool__(self) -> bool:
        columns = (self.key_bytes, self.record_of, self.record_bytes)
        return bool(self.schema) or any(each is not None for each in columns)

    def with_rows_behind(self, key_bytes: Int64s) -> OwnRecords:
        """The facts for a table with more rows at its end; the keys of these rows have the lengths
        ``key_bytes``. The new object has no ``record_of``."""
        known = None if self.key_bytes is None else np.append(self.key_bytes, key_bytes)
        return replace(self, key_bytes=known, record_of=None)

    def with_rows_again(self, rows: Int64s) -> OwnRecords:
        """The facts for a table with copies of ``rows`` at its end."""
        known = self.key_bytes
        return self.with_rows_behind(rows if known is None else known[rows])


NOT_COMPRESSED: Final = np.zeros(0, np.int64)


class MemberTable(Struct, frozen=True, eq=False):
    """The members of one shard, one row each, in shard order.

    Row ``i`` is stored in an output shard as ``literals.get(i, b"")`` followed by
    ``shard[range_start[i] : range_start[i] + range_length[i]]`` and ``tails.get(i, b"")``: the
    member's header blocks, payload and padding. Nearly all rows have no literal and no tail.
    Literals and tails replace bytes that cannot be copied unchanged (a resolved hard link, a global
    header folded in, a new name). If a shard is converted to another container, they replace all
    bytes except payload.

    A *bare* table passes members from one container to another: the payload of a row is its range,
    or its literal (then ``payload_start`` and ``range_start`` are -1); there are no tails.

    Columns have shape ``(n,)``; offsets and sizes are bytes.
    """

    names: BytesColumn  # full member path, long-name and pax headers applied
    kind: UInt8s  # MemberKind
    payload_start: Int64s  # offset of the payload in the shard
    payload_bytes: Int64s
    range_start: Int64s
    range_length: Int64s
    literals: Mapping[int, bytes] = field(default_factory=lambda: MappingProxyType({}))
    notes: ScanNotes = ScanNotes()
    entries: BytesColumn | None = None  # each member's entry in a listing at the end of the shard
    tails: Mapping[int, bytes] = field(default_factory=lambda: MappingProxyType({}))
    own: OwnRecords = OwnRecords()
    compressed_bytes: Int64s = NOT_COMPRESSED
    """The length of each payload in the shard, from ``payload_start`` on, if it is compressed
    there; ``payload_bytes`` is its decompressed length. -1: this payload is not compressed. An
    empty array: no payload is compressed."""

    @classmethod
    def empty(cls) -> MemberTable:
        """A table without rows."""
        none = np.zeros(0, np.int64)
        return cls(BytesColumn.of([]), np.zeros(0, np.uint8), none, none, none, none)

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def has_compressed(self) -> bool:
        """Whether some payload is compressed in the shard."""
        return len(self.compressed_bytes) > 0

    def is_compressed(self, row: int) -> bool:
        """Whether the payload of a row is compressed in the shard."""
        return self.has_compressed and int(self.compressed_bytes[row]) >= 0

    def with_rows_again(self, rows: Int64s) -> MemberTable:
        """The table, with copies of ``rows`` at its end."""
        if not len(rows):
            return self
        columns: dict[str, Any] = {
            name: np.append(values, values[rows])
            for name in _COLUMNS
            if len(values := getattr(self, name))
        }
        extras: dict[str, Any] = {
            name: RowBytes(BytesColumn.concat([odd, odd.take(rows)]))
            for name in ("literals", "tails")
            if getattr(self, name)
            for odd in (column_of(getattr(self, name), len(self)),)
        }
        names = BytesColumn.concat([self.names, self.names.take(rows)])
        entries = self.entries
        if entries is not None:
            entries = BytesColumn.concat([entries, entries.take(rows)])
        own = self.own.with_rows_again(rows)
        return replace(self, names=names, entries=entries, own=own, **columns, **extras)

    def followed_by(self, more: MemberTable, shift_bytes: int) -> MemberTable:
        """The table, with the rows of ``more`` at its end, whose offsets are increased by
        ``shift_bytes``. Both tables have only names, ranges, literals and tails."""
        count, longer = len(self), len(more)
        columns: dict[str, Any] = {
            name: np.append(getattr(self, name), getattr(more, name))
            for name in ("kind", "payload_bytes", "range_length")
        }
        for name in ("payload_start", "range_start"):
            starts = getattr(more, name)
            shifted = np.where(starts >= 0, starts + shift_bytes, starts)
            columns[name] = np.append(getattr(self, name), shifted)
        extras: dict[str, Any] = {
            name: RowBytes(BytesColumn.concat([column_of(own, count), column_of(others, longer)]))
            for name in ("literals", "tails")
            for own, others in ((getattr(self, name), getattr(more, name)),)
            if own or others
        }
        return MemberTable(BytesColumn.concat([self.names, more.names]), **columns, **extras)

    def taking(self, rows: Int64s) -> MemberTable:
        """Some rows of a table that ``followed_by`` has made."""
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in _COLUMNS[:5]}
        extras: dict[str, Any] = {
            name: RowBytes(column_of(getattr(self, name), len(self)).take(rows))
            for name in ("literals", "tails")
            if getattr(self, name)
        }
        return MemberTable(self.names.take(rows), **columns, **extras)


_COLUMNS = (
    "kind",
    "payload_start",
    "payload_bytes",
    "range_start",
    "range_length",
    "compressed_bytes",
)


def bare_table(members: MemberTable) -> MemberTable:
    """A bare table of ``members``, whose payloads are ranges of the shard."""
    return replace(
        members,
        range_start=members.payload_start,
        range_length=members.payload_bytes,
        literals=MappingProxyType({}),
        tails=MappingProxyType({}),
        entries=None,
        own=replace(members.own, schema=""),
    )


def stored_bytes_of(members: MemberTable, rows: Int64s) -> Int64s:
    """The bytes that the members ``rows`` take in an output shard."""
    is_all = are_all_rows(rows, len(members))
    stored = members.range_length if is_all else members.range_length[rows]
    for pieces in (members.literals, members.tails):
        if pieces:
            stored = stored + column_of(pieces, len(members)).lengths[rows]
    return stored


PlacedEntry = tuple[int, bytes]
"""(Offset of the member in the output shard in bytes, its entry)."""

_HEAD = np.dtype([("at", "<u8"), ("length", "<u4")])


class PlacedEntries(Sequence[PlacedEntry]):
    """The entries of an output shard's members, in their order: columns with ``n`` rows, which can
    also be read one by one."""

    __slots__ = ("entries", "offsets")

    def __init__(self, entries: BytesColumn, offsets: Int64s) -> None:
        """``offsets``: of each member in the output shard."""
        self.entries = entries
        self.offsets = offsets

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
