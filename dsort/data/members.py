"""Members as columns: what a container format makes of the bytes of one shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any

import numpy as np

from dsort.data.columns import BytesColumn, Int64s, UInt8s
from dsort.data.row_bytes import RowBytes, column_of


class MemberKind(IntEnum):
    """What a member is, whatever its container calls it."""

    FILE = 0
    SYMLINK = 1
    DIRECTORY = 2
    DEVICE = 3  # character and block devices, fifos
    HARDLINK = 4  # only if its target is not in this shard; a resolved one is a FILE


@dataclass(frozen=True, slots=True)
class ScanNotes:
    """What was odd about a shard but did not stop it from being read whole.

    ``OddityKind`` has the sentences. A container with other notes makes a child of this."""

    missing_end: bool = False  # no whole end-of-archive marker
    trailing_bytes: int = 0  # from the first that is no zero padding and no tar, after an end
    unexplained_zeros: int = 0  # after end markers, more than any writer pads with
    blank: bool = False  # nothing but zeros, or nothing at all
    concatenated: int = 0  # further archives behind the first one's end marker
    unusual_padding: int = 0  # zeros at the end that few writers pad with
    hardlinks_resolved: int = 0
    global_headers_folded: int = 0
    global_headers_dropped: int = 0
    volume_labels_dropped: int = 0
    lone_zero_blocks: int = 0  # single zero blocks before further members, which were read
    mended: tuple[int, ...] = ()  # rows whose headers had numbers that some reader stops at
    long_names_repeated: tuple[int, ...] = ()  # rows with several long names, of which one was kept
    unsafe_prefixes: tuple[int, ...] = ()  # rows that some readers unpack elsewhere than named
    shortfall: str = field(default="", compare=False)
    """Why members may be missing from the shard, in the words of its container; "" where nothing
    says so."""


@dataclass(frozen=True, slots=True, eq=False)
class MemberTable:
    """The members of one shard, one row each, in shard order.

    What is stored for row ``i`` in an output shard is ``literals.get(i, b"")`` followed by
    ``shard[range_start[i] : range_start[i] + range_length[i]]`` and ``tails.get(i, b"")``: the
    member's own header blocks, payload and padding. Nearly all rows have no literal and no tail;
    these replace what cannot be copied as it is (a resolved hard link, a global header folded in, a
    new name), and all that is no payload where a shard is converted to another container.

    A *bare* table is what one container hands to another: the payload of a row is its range, or its
    literal (then ``payload_start`` and ``range_start`` are -1); there are no tails.

    Columns have shape ``(n,)``; offsets and sizes are bytes.
    """

    names: BytesColumn  # full member path, long-name and pax headers applied
    kind: UInt8s  # MemberKind
    payload_start: Int64s  # where the payload is in the shard
    payload_bytes: Int64s
    range_start: Int64s
    range_length: Int64s
    literals: Mapping[int, bytes] = field(default_factory=lambda: MappingProxyType({}))
    notes: ScanNotes = ScanNotes()
    entries: BytesColumn | None = None  # what the end of a shard says of each, if it lists them
    tails: Mapping[int, bytes] = field(default_factory=lambda: MappingProxyType({}))
    key_bytes: Int64s | None = None  # how much of each name is the key; None: as names say
    record_of: Int64s | None = None
    """The record of each row, from 0 on and never falling, where the container tells its records
    apart by itself; ``key_bytes`` is not None then. None: names do."""
    compressed_bytes: Int64s | None = None
    """How long each payload is in the shard, from ``payload_start`` on, where that is compressed:
    ``payload_bytes`` says how long it is once it is decompressed. -1: it is not. None: none is."""
    schema: str = ""
    """What its records have in common, as their container tells it of all of them in one place (the
    columns of an MDS shard). All shards of a job must agree. "": there is no such thing, or there
    are no records that could have it."""
    record_bytes: Int64s | None = None
    """How much each record counts, shape ``(records,)``, where that is not the payload of its
    members: rows of a table count what their values take. None: it is."""

    def __len__(self) -> int:
        return len(self.kind)

    def with_rows_again(self, rows: Int64s) -> MemberTable:
        """The table with some of its ``rows`` behind it once more."""
        if not len(rows):
            return self
        columns: dict[str, Any] = {
            name: np.append(values, values[rows])
            for name in _COLUMNS
            if (values := getattr(self, name)) is not None
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
        return replace(self, names=names, entries=entries, record_of=None, **columns, **extras)

    def followed_by(self, more: MemberTable, shift_bytes: int) -> MemberTable:
        """The table and ``more`` behind it, one of bytes that are ``shift_bytes`` further on in the
        shard. Both have no more than names, ranges, literals and tails."""
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
        """Some rows, of a table as ``followed_by`` makes it."""
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
    "key_bytes",
    "compressed_bytes",
)


def bare_table(members: MemberTable) -> MemberTable:
    """A table of the payloads of ``members`` alone, whose payloads are ranges of the shard."""
    return replace(
        members,
        range_start=members.payload_start,
        range_length=members.payload_bytes,
        literals=MappingProxyType({}),
        tails=MappingProxyType({}),
        entries=None,
        schema="",
    )
