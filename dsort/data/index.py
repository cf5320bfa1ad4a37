"""The record index: a table with a row for each record, and the columns that it may have.

Rows of one shard are in input order (by the record's first member). Offsets are bytes in the
source: the input shard, or the spill of a partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dsort.data.columns import BytesColumn, Int32s, Int64s, UInt8s, UInt64s
from dsort.data.segments import Segments
from dsort.data.table import Column, Name, Numbers, Ranges, Table, Texts

Rows = NDArray[np.integer]

ORDINAL: Final[Name[Int64s]] = Numbers("ordinal", "<i8")
"""The number of the record in its shard."""
SHARD: Final[Name[Int32s]] = Numbers("shard", "<i4")
KEYS: Final[Name[BytesColumn]] = Texts("keys")
KEY_HASH: Final[Name[UInt64s]] = Numbers("key_hash", "<u8")
"""XXH3 of the key, for finding duplicate keys. The column is missing for numbered keys."""
MEMBERS: Final[Name[Int32s]] = Numbers("members", "<i4")
PAYLOAD_BYTES: Final[Name[Int64s]] = Numbers("payload_bytes", "<i8")
STORED_BYTES: Final[Name[Int64s]] = Numbers("stored_bytes", "<i8")
"""Headers, payload and padding: the size of the record in an output shard."""
RANGES: Final[Name[Segments]] = Ranges("ranges")
"""The byte ranges of the record. The column is missing once the payload is in the spill."""
CONTENT_HASH: Final[Name[UInt64s]] = Numbers("content_hash", "<u8")
"""XXH3 of the stored bytes, if the spec requires it."""
ENTRIES: Final[Name[BytesColumn]] = Texts("entries")
"""The packed entries of the record's members (see ``data.members``), if the container lists members
at the end of a shard."""
ENTRIES_BYTES: Final[Name[Int64s]] = Numbers("entries_bytes", "<i8")
SAME_HASH: Final[Name[UInt64s]] = Numbers("same_hash", "<u8")
SAME_MORE: Final[Name[UInt64s]] = Numbers("same_more", "<u8")
"""XXH3-128 of the content by which records are compared, if records with equal content have to be
left out. Two zeros: the record is not compared."""
CLASS: Final[Name[UInt64s]] = Numbers("class", "<u8")
LOT: Final[Name[UInt64s]] = Numbers("lot", "<u8")
"""The class of each record, and the lot (random number) that it draws in its class, if the spec
gives outputs exact numbers of records."""
EXTENSIONS: Final[Name[BytesColumn]] = Texts("extensions")
"""The extensions of each record's members, each followed by a zero byte, if inputs are joined."""
SAYS: Final[Name[BytesColumn]] = Texts("says")
"""The value of each piece that can decide the order of its joined record, if an earlier pass finds
the order: see ``JoinedPlaces.says`` in ``order.equal_keys``."""
ORIGIN_START: Final[Name[Int64s]] = Numbers("origin_start", "<i8")
"""Part of the lineage: the offset of the record in the decoded input shard; -1: the record has no
single place."""
ORIGIN_BYTES: Final[Name[Int64s]] = Numbers("origin_bytes", "<i8")
"""The bytes from ``ORIGIN_START`` to the end of the record's last member."""
GROUP: Final[Name[Int32s]] = Numbers("group", "<i4")
RANK: Final[Name[UInt8s]] = Numbers("rank", "|u1")
WORDS: Final[Name[UInt64s]] = Numbers("words", "<u8")
TEXT: Final[Name[BytesColumn]] = Texts("text")
"""The columns of ``SortKeys``."""
ROW: Final[Name[Int64s]] = Numbers("row", "<i8")
"""The row of the record in the index file of its shard."""

BLOCK_SHARD: Final[Name[Int64s]] = Numbers("block_shard", "<i8")
BLOCK_WORKER: Final[Name[Int64s]] = Numbers("block_worker", "<i8")
BLOCK_START: Final[Name[Int64s]] = Numbers("block_start", "<i8")
BLOCK_LENGTH: Final[Name[Int64s]] = Numbers("block_bytes", "<i8")
"""A block of the spill: its shard, the worker in whose file it is, its offset in that file, its
length."""
BLOCK_ROWS: Final[Name[Int64s]] = Numbers("block_rows", "<i8")
"""The number of rows in a block of a table. Blocks of bytes have no such column."""


class SortKeys(Struct, frozen=True, eq=False):
    """The values that the algorithm compares, row by row: ``group``, ``rank``, ``words``, ``text``.

    ``group`` is the ordinal of the record's template under an external key map (None: there is one
    group). ``rank`` is 1; records without a content key have 0 to come before the others, or 2 to
    come behind them. ``words`` are compared as unsigned numbers, ``text`` as bytes. Columns that
    are None compare equal, and rows that compare equal keep their input order.
    """

    count: int
    group: Int32s | None = None
    rank: UInt8s | None = None
    words: UInt64s | None = None
    text: BytesColumn | None = None

    @property
    def groups(self) -> Int32s:
        """The group of each row: 0 for all rows if there is one group."""
        return np.zeros(self.count, np.int32) if self.group is None else self.group

    @property
    def texts(self) -> BytesColumn:
        """The text of each row: empty texts if there is no such column."""
        return self.text or BytesColumn.empty(self.count)

    def take(self, rows: Rows) -> SortKeys:
        """The sort keys of ``rows`` in that order."""
        return sort_keys_of(Table(self.count, sort_columns(self)).take(rows))

    @staticmethod
    def concat(parts: Sequence[SortKeys]) -> SortKeys:
        """The rows of all parts. All must have the same columns, except ``text``: rows of parts
        without ``text`` get empty texts."""
        tables = [Table(part.count, sort_columns(part)) for part in parts]
        return sort_keys_of(Table.concat(tables))


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
    """The index of records, with the columns that every index has."""
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
