"""The record index: one row a record, as columns.

Rows of one shard are in input order (by the record's first member). Offsets are bytes in the
source: the input shard, or the spill of a bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dsort.data.columns import (
    BytesColumn,
    Int32s,
    Int64s,
    UInt8s,
    UInt64s,
    are_all_rows,
    numbers_at,
    row_numbers,
)
from dsort.data.new_names import NewNames
from dsort.data.numbered import NumberedColumn

__all__ = ["Origins", "RecordIndex", "Segments", "SortKeys"]

Rows = NDArray[np.integer]


@dataclass(frozen=True, slots=True, eq=False)
class SortKeys:
    """What the algorithm compares, row by row: ``group``, ``rank``, ``words``, ``text``.

    ``group`` is the ordinal of the record's template under an external key map (None: all one);
    ``rank`` puts records without a content key first (0) or last (2) of all others (1). ``words``
    are compared as unsigned numbers, ``text`` as bytes; columns that are None compare equal, and
    rows that compare equal keep their input order.
    """

    count: int
    group: Int32s | None = None
    rank: UInt8s | None = None
    words: UInt64s | None = None
    text: BytesColumn | None = None

    def take(self, rows: Rows) -> SortKeys:
        """The sort keys of ``rows`` in that order."""
        return SortKeys(
            count=len(rows),
            group=None if self.group is None else self.group[rows],
            rank=None if self.rank is None else self.rank[rows],
            words=None if self.words is None else self.words[rows],
            text=None if self.text is None else self.text.take(rows),
        )

    @staticmethod
    def concat(parts: Sequence[SortKeys]) -> SortKeys:
        """The rows of all parts. All must have the same columns; only ``text`` may be missing from
        some, whose rows have empty texts then."""

        def joined(name: str) -> NDArray[np.generic] | None:
            columns = [getattr(part, name) for part in parts]
            return None if not columns or columns[0] is None else np.concatenate(columns)

        has_texts = any(part.text is not None for part in parts)
        texts = [
            BytesColumn.empty(part.count) if part.text is None else part.text
            for part in parts
            if has_texts
        ]
        return SortKeys(
            count=sum(part.count for part in parts),
            group=joined("group"),  # type: ignore[arg-type]
            rank=joined("rank"),  # type: ignore[arg-type]
            words=joined("words"),  # type: ignore[arg-type]
            text=BytesColumn.concat(texts) if texts else None,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """The byte ranges of each record: rows ``offsets[i]:offsets[i + 1]`` of ``start``/``length``.

    A negative start ``-1 - p`` means bytes ``p`` onwards of ``literals`` (headers that replace
    those in the source) instead of the source. ``offsets`` has shape ``(n + 1,)``. ``names``: what
    is written over these bytes.
    """

    offsets: Int64s
    start: Int64s
    length: Int64s
    literals: UInt8s
    names: NewNames | None = None

    def are_single(self) -> bool:
        """Whether each record is one segment, of the same number."""
        count = len(self.offsets) - 1
        return len(self.start) == count and are_all_rows(self.offsets, count + 1)

    def take(self, rows: Rows, length: Int64s | None = None) -> Segments:
        """The segments of ``rows`` in that order. ``length``: of each, where somebody has taken
        them already, and each row is one."""
        names = None if self.names is None else self.names.take(rows)
        if self.are_single():
            start = numbers_at(self.start, rows)
            length = numbers_at(self.length, rows) if length is None else length
            return Segments(row_numbers(len(rows) + 1), start, length, self.literals, names)
        counts = np.diff(self.offsets)[rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        first = self.offsets[:-1][rows]
        picked = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], counts)
        return Segments(offsets, self.start[picked], self.length[picked], self.literals, names)

    def run(self, start: int, stop: int) -> Segments:
        """The segments of rows ``start:stop``; arrays are views."""
        first, last = int(self.offsets[start]), int(self.offsets[stop])
        offsets = self.offsets[start : stop + 1]
        return Segments(
            offsets - first if first else offsets,
            self.start[first:last],
            self.length[first:last],
            self.literals,
            None if self.names is None else self.names.run(start, stop),
        )

    @staticmethod
    def concat(parts: Sequence[Segments]) -> Segments:
        """The rows of all parts, literals rebased."""
        offsets, starts, base, literal_base = [np.zeros(1, np.int64)], [], 0, 0
        for part in parts:
            offsets.append(part.offsets[1:] + base)
            base += int(part.offsets[-1])
            shifted = part.start
            if literal_base and len(part.literals):
                shifted = np.where(shifted < 0, shifted - literal_base, shifted)
            starts.append(shifted)
            literal_base += len(part.literals)
        empty = np.zeros(0, np.int64)
        names = None
        if any(part.names is not None for part in parts):
            each = (part.names or NewNames.none(len(part.offsets) - 1) for part in parts)
            names = NewNames.concat(list(each))
        return Segments(
            np.concatenate(offsets),
            np.concatenate([empty, *starts]),
            np.concatenate([empty, *(part.length for part in parts)]),
            np.concatenate([np.zeros(0, np.uint8), *(part.literals for part in parts)]),
            names,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Origins:
    """Which record each row was in its input shard, for the lineage: columns of shape ``(n,)``.

    ``start``: offset in the shard, without its codec, in bytes; -1: it is in no one place of it.
    ``size_bytes``: from there to the end of its last member.
    """

    keys: BytesColumn
    start: Int64s
    size_bytes: Int64s

    def take(self, rows: Rows) -> Origins:
        """Those of ``rows`` in that order."""
        return Origins(self.keys.take(rows), self.start[rows], self.size_bytes[rows])

    @staticmethod
    def concat(parts: Sequence[Origins]) -> Origins:
        """The rows of all parts."""
        return Origins(
            BytesColumn.concat([part.keys for part in parts]),
            np.concatenate([np.zeros(0, np.int64), *(part.start for part in parts)]),
            np.concatenate([np.zeros(0, np.int64), *(part.size_bytes for part in parts)]),
        )


def _taken(column: Int32s, rows: Rows) -> Int32s:
    """The numbers of ``rows``; of a column that is one number, there is nothing to take."""
    if column.strides == (0,) and len(column):
        return np.broadcast_to(column[0], (len(rows),))
    return column[rows]


@dataclass(frozen=True, slots=True, eq=False)
class RecordIndex:
    """The records of one input shard, columns of shape ``(n,)`` unless said otherwise."""

    ordinal: Int64s  # of the record in its shard
    keys: BytesColumn
    key_hash: UInt64s | None  # XXH3 of the key; finds duplicate keys. None: keys are numbered
    sort: SortKeys
    members: Int32s
    payload_bytes: Int64s
    stored_bytes: Int64s  # headers, payload, padding: what the record takes in an output shard
    segments: Segments | None  # None: its payload is in the spill by now
    content_hash: UInt64s | None = None  # XXH3 of the stored bytes, where the spec asks for it
    entries: BytesColumn | None = None  # packed, where the container's end lists members
    same: UInt64s | None = None
    """XXH3-128 of what records are compared by, shape ``(n, 2)``, where equal ones are to be left
    out; zeros: there is nothing to compare it by."""
    origins: Origins | None = None  # where the spec asks for the lineage
    lots: UInt64s | None = None
    """The class of each record and the lot that it draws in it, shape ``(n, 2)``, where they are
    counted to deal out exact numbers."""
    extensions: BytesColumn | None = None
    """Of the members of each record, a zero byte behind each, where records are to be joined."""
    says: BytesColumn | None = None
    """What each piece says of the order of its record, where that is found first: see
    ``order.joined_places``."""

    def __len__(self) -> int:
        return len(self.ordinal)

    def take(self, rows: Rows) -> RecordIndex:
        """The records ``rows`` in that order."""
        ordinal: Int64s = rows.astype(np.int64, copy=False)
        if not are_all_rows(self.ordinal, len(self.ordinal)):
            ordinal = numbers_at(self.ordinal, rows)
        if isinstance(self.keys, NumberedColumn) and self.keys.numbers is self.ordinal:
            keys: BytesColumn = NumberedColumn(self.keys.before, ordinal, self.keys.after)
        else:
            keys = self.keys.take(rows)
        if self.sort.text is self.keys:  # sorted by key: one column serves as both
            sort = replace(replace(self.sort, text=None).take(rows), text=keys)
        else:
            sort = self.sort.take(rows)
        stored, segments = numbers_at(self.stored_bytes, rows), self.segments
        if segments is not None:
            as_long = segments.length is self.stored_bytes and segments.are_single()
            segments = segments.take(rows, stored if as_long else None)
        return RecordIndex(
            ordinal=ordinal,
            keys=keys,
            key_hash=None if self.key_hash is None else self.key_hash[rows],
            sort=sort,
            members=_taken(self.members, rows),
            payload_bytes=numbers_at(self.payload_bytes, rows),
            stored_bytes=stored,
            segments=segments,
            content_hash=None if self.content_hash is None else self.content_hash[rows],
            entries=None if self.entries is None else self.entries.take(rows),
            same=None if self.same is None else self.same[rows],
            origins=None if self.origins is None else self.origins.take(rows),
            lots=None if self.lots is None else self.lots[rows],
            extensions=None if self.extensions is None else self.extensions.take(rows),
            says=None if self.says is None else self.says.take(rows),
        )
