"""The record index: a table with a row for each record, and the columns that it may have.

Rows of one shard are in input order (by the record's first member). Offsets are bytes in the
source: the input shard, or the spill of a partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dsort.data.columns import BytesColumn, Int32s, Int64s, UInt8s, UInt64s
from dsort.data.segments import Segments
from dsort.data.table import Column, Name, Numbers, Ranges, Table, Texts

Rows = NDArray[np.integer]

ORDINAL: Final[Name[Int64s]] = Numbers("ordinal", "<i8")
"""Of the record in its shard."""
SHARD: Final[Name[Int32s]] = Numbers("shard", "<i4")
KEYS: Final[Name[BytesColumn]] = Texts("keys")
KEY_HASH: Final[Name[UInt64s]] = Numbers("key_hash", "<u8")
"""XXH3 of the key; finds duplicate keys. Numbered keys have none."""
MEMBERS: Final[Name[Int32s]] = Numbers("members", "<i4")
PAYLOAD_BYTES: Final[Name[Int64s]] = Numbers("payload_bytes", "<i8")
STORED_BYTES: Final[Name[Int64s]] = Numbers("stored_bytes", "<i8")
"""Headers, payload, padding: what the record takes in an output shard."""
RANGES: Final[Name[Segments]] = Ranges("ranges")
"""Where its bytes are. Missing once its payload is in the spill."""
CONTENT_HASH: Final[Name[UInt64s]] = Numbers("content_hash", "<u8")
"""XXH3 of the stored bytes, where the spec asks for it."""
ENTRIES: Final[Name[BytesColumn]] = Texts("entries")
"""Packed (see ``data.entries``), where the container's end lists members."""
ENTRIES_BYTES: Final[Name[Int64s]] = Numbers("entries_bytes", "<i8")
SAME_HASH: Final[Name[UInt64s]] = Numbers("same_hash", "<u8")
SAME_MORE: Final[Name[UInt64s]] = Numbers("same_more", "<u8")
"""XXH3-128 of what records are compared by, where equal ones are to be left out; two zeros: the
record is not compared."""
CLASS: Final[Name[UInt64s]] = Numbers("class", "<u8")
LOT: Final[Name[UInt64s]] = Numbers("lot", "<u8")
"""The class of each record and the lot that it draws in it, where exact numbers are dealt out."""
EXTENSIONS: Final[Name[BytesColumn]] = Texts("extensions")
"""Of the members of each record, a zero byte behind each, where records are joined."""
SAYS: Final[Name[BytesColumn]] = Texts("says")
"""What each piece says of the order of its record, where that is found first: see
``order.joined_places``."""
ORIGIN_START: Final[Name[Int64s]] = Numbers("origin_start", "<i8")
"""Of the lineage: offset in the input shard, without its codec; -1: in no one place of it."""
ORIGIN_BYTES: Final[Name[Int64s]] = Numbers("origin_bytes", "<i8")
"""From there to the end of its last member."""
GROUP: Final[Name[Int32s]] = Numbers("group", "<i4")
RANK: Final[Name[UInt8s]] = Numbers("rank", "|u1")
WORDS: Final[Name[UInt64s]] = Numbers("words", "<u8")
TEXT: Final[Name[BytesColumn]] = Texts("text")
"""Of ``SortKeys``."""
ROW: Final[Name[Int64s]] = Numbers("row", "<i8")
"""Of the record in the index file of its shard."""

BLOCK_SHARD: Final[Name[Int64s]] = Numbers("block_shard", "<i8")
BLOCK_WORKER: Final[Name[Int64s]] = Numbers("block_worker", "<i8")
BLOCK_START: Final[Name[Int64s]] = Numbers("block_start", "<i8")
BLOCK_LENGTH: Final[Name[Int64s]] = Numbers("block_bytes", "<i8")
"""A block of the spill: of which shard, in whose file, where in it, how long."""
BLOCK_ROWS: Final[Name[Int64s]] = Numbers("block_rows", "<i8")
"""How many rows a block of a table has; blocks of bytes have no such column."""


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


def sort_columns(sort: SortKeys) -> dict[str, Column]:
    """The columns of ``sort``."""
    pairs = ((GROUP, sort.group), (RANK, sort.rank), (WORDS, sort.words), (TEXT, sort.text))
    return {name.text: column for name, column in pairs if column is not None}


def sort_keys_of(table: Table) -> SortKeys:
    """The sort keys among the columns of ``table``."""
    return SortKeys(
        len(table),
        group=table.get(GROUP),
        rank=table.get(RANK),
        words=table.get(WORDS),
        text=table.get(TEXT),
    )


def record_index(
    *,
    ordinal: Int64s,
    keys: BytesColumn,
    sort: SortKeys,
    members: Int32s,
    payload_bytes: Int64s,
    stored_bytes: Int64s,
    ranges: Segments,
) -> Table:
    """The index of records with the columns that every index has."""
    is_whole = ranges.are_single() and np.array_equal(ranges.length, stored_bytes)
    columns: dict[str, Column] = {
        ORDINAL.text: ordinal,
        KEYS.text: keys,
        **sort_columns(sort),
        MEMBERS.text: members,
        PAYLOAD_BYTES.text: payload_bytes,
        STORED_BYTES.text: ranges.length if is_whole else stored_bytes,
        RANGES.text: ranges,
    }
    return Table(len(ordinal), columns)
