"""Tables that workers leave in scratch: a partition in output order, which the orderer stores and
creators read; and positions of records, sorted by (shard, ordinal), with values for each record.

Workers find the records that are dropped, renamed or placed. The coordinator joins their positions,
and the worker that extracts or orders a shard reads them. Files from a bucket are checked first.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final

import numpy as np
from msgspec import Struct

from dsort.data.columns import Bools, BytesColumn, Int64s, UInt64s, run_sums
from dsort.data.index import (
    CONTENT_HASH,
    ENTRIES,
    ENTRIES_BYTES,
    GROUP,
    KEYS,
    MEMBERS,
    ORDINAL,
    ORIGIN_BYTES,
    ORIGIN_START,
    PAYLOAD_BYTES,
    RANGES,
    SHARD,
    STORED_BYTES,
)
from dsort.data.members import entries_bytes
from dsort.data.table import Name, Numbers, Table
from dsort.errors import StorageError, damaged
from dsort.order.equal_keys import LeftOut
from dsort.scratch.columns import ColumnFile

POSITION_SHARD: Final[Name[Int64s]] = Numbers("position_shard", "<i8")
NTH: Final[Name[Int64s]] = Numbers("nth", "<i8")
"""The meaning depends on the file: which occurrence of its key a record is, why the record is left
out (``LeftOut``), or the number of the joined record to which the piece belongs."""
PLACE: Final[Name[UInt64s]] = Numbers("place", "<u8")
"""The place of a joined record's piece in output order."""
POSITIONS: Final = (POSITION_SHARD, ORDINAL, NTH)


def positions_of_records(shard: Int64s, ordinal: Int64s, nth: Int64s, keys: BytesColumn) -> Table:
    """A table of positions."""
    columns = {POSITION_SHARD.text: shard, ORDINAL.text: ordinal, NTH.text: nth}
    return Table(len(shard), columns).with_(KEYS, keys)


def by_position(table: Table) -> Table:
    """The rows of ``table`` in the order of their positions."""
    return table.take(np.lexsort((table[ORDINAL], table[POSITION_SHARD])))


class Positions:
    """The sorted positions in a file."""

    def __init__(self, file: ColumnFile, name: str) -> None:
        self._file = file
        self._name = name
        self._shard = file.array(POSITION_SHARD.text, dtype="<i8")

    def of_shard(self, shard: int, names: Iterable[Name[Any]], *, records: int) -> Table:
        """The ordinals in a shard with ``records`` records, and the columns ``names``.
        ``StorageError`` for ordinals that the shard does not have."""
        start, stop = np.searchsorted(self._shard, [shard, shard + 1]).tolist()
        found = Table.read(self._file, (ORDINAL, *names), start, stop)
        if len(found) and int(found[ORDINAL].max()) >= records:
            raise StorageError(f"{self._name} has positions that are not in input shard {shard}")
        return found

    def contains(self, shards: Any, ordinals: Int64s) -> Bools:
        """Whether each record is among the positions. Equal ``shards`` have to be neighbours."""
        known, held = self._file.array(ORDINAL.text), np.zeros(len(ordinals), np.bool_)
        bounds = np.flatnonzero(np.diff(shards, prepend=-1, append=-1)).tolist()
        for start, stop in pairwise(bounds):
            shard = int(shards[start])
            low, high = np.searchsorted(self._shard, [shard, shard + 1]).tolist()
            held[start:stop] = np.isin(ordinals[start:stop], known[low:high])
        return held


def check_positions(file: ColumnFile, what: str, shards: int) -> tuple[Int64s, Int64s]:
    """The shards and ordinals in a file. ``StorageError`` unless all are below ``shards``."""
    shard = file.array(POSITION_SHARD.text, dtype="<i8")
    ordinal = file.array(ORDINAL.text, 0, len(shard), dtype="<i8")
    if len(shard) and not (0 <= shard.min() <= shard.max() < shards and ordinal.min() >= 0):
        raise damaged(what, "positions are outside the inputs")
    return shard, ordinal


def check_renames(data: bytes, what: str, *, shards: int) -> None:
    """``StorageError`` unless ``data`` is a file of new keys for records of so many shards."""
    file, count = _checked(data, what, shards)
    if (KEYS.read(file, 0, count).lengths <= 0).any():
        raise damaged(what, "new keys are empty")


def check_sorted(data: bytes, what: str, *, shards: int) -> None:
    """``StorageError`` unless ``data`` is a file of positions in so many shards."""
    _checked(data, what, shards)


def check_left_out(data: bytes, what: str, *, shards: int) -> None:
    """``StorageError`` unless ``data`` is a file of the records that a join leaves out, for this
    number of shards."""
    file, count = _checked(data, what, shards)
    KEYS.read(file, 0, count)
    if not np.isin(NTH.read(file, 0, count), [*LeftOut]).all():
        raise damaged(what, "it gives unknown reasons")


def check_places(data: bytes, what: str, *, shards: int) -> None:
    """``StorageError`` unless ``data`` is a file of the places of joined records' pieces."""
    file, count = _checked(data, what, shards)
    PLACE.read(file, 0, count)


def _checked(data: bytes, what: str, shards: int) -> tuple[ColumnFile, int]:
    file = ColumnFile(data, what)
    shard, ordinal = check_positions(file, what, shards)
    if not np.array_equal(np.lexsort((ordinal, shard)), np.arange(len(shard))):
        raise damaged(what, "positions are not in order")
    return file, len(shard)


CREATION_COLUMNS: Final = (SHARD, ORDINAL, MEMBERS, PAYLOAD_BYTES, STORED_BYTES, RANGES)
"""The columns that creation needs."""
OPTIONAL_CREATION_COLUMNS: Final = (GROUP, CONTENT_HASH, ENTRIES)
"""The columns that creation needs in some jobs."""
LINEAGE: Final = (SHARD, STORED_BYTES, CONTENT_HASH, KEYS, ORIGIN_START, ORIGIN_BYTES)
"""The columns from which a lineage is made."""
ORDERED: Final = (*CREATION_COLUMNS, *OPTIONAL_CREATION_COLUMNS, KEYS, ORIGIN_START, ORIGIN_BYTES)
"""All columns of a partition in output order."""


EACH_ROW: Final = np.zeros(0, np.int64)
"""No offsets: each row is a record."""


class OrderedRows(Struct, frozen=True, eq=False):
    """One partition in output order."""

    rows: Table
    """A row for each record, or for each piece of a record: see ``record_offsets``. Ranges are
    bytes of the input shard (map, range), or of the spill blocks, read one after the other (spill);
    for tables, their starts are numbers of rows in these blocks."""
    blocks: Table
    """The spill blocks."""
    record_offsets: Int64s = EACH_ROW
    """The rows of joined records: record ``i`` has the rows
    ``record_offsets[i]:record_offsets[i + 1]``. Empty: each row is a record."""
    version: int = 1
    """The version of the locations of the blocks. See ``scratch.nodes.ordered_rows``."""

    @property
    def has_pieces(self) -> bool:
        """Whether records are joined from pieces, each of which has a row."""
        return len(self.record_offsets) > 0

    def rows_of(self, start: int, stop: int) -> tuple[int, int]:
        """The rows of records ``start:stop``."""
        if not self.has_pieces:
            return start, stop
        return int(self.record_offsets[start]), int(self.record_offsets[stop])

    def by_record(self) -> Table:
        """The shard, group, counts and sizes of the records, with one row per record. The shard of
        a joined record is the shard of its first piece."""
        rows = self.rows.only((SHARD, GROUP, MEMBERS, PAYLOAD_BYTES, STORED_BYTES))
        if ENTRIES in self.rows:
            sizes = entries_bytes(self.rows[ENTRIES], self.rows[MEMBERS])
            rows = rows.with_(ENTRIES_BYTES, sizes)
        if not self.has_pieces:
            return rows
        offsets = self.record_offsets
        records = rows.take(offsets[:-1])
        names: tuple[Name[Int64s], ...] = (PAYLOAD_BYTES, STORED_BYTES, ENTRIES_BYTES)
        for name in names:
            if name in rows:
                records = records.with_(name, run_sums(rows[name], offsets))
        return records.with_(MEMBERS, run_sums(rows[MEMBERS], offsets).astype(np.int32))

    def run(self, start: int, stop: int) -> OrderedRows:
        """Records ``start:stop``."""
        offsets = self.record_offsets[start : stop + 1]
        if self.has_pieces:
            offsets = offsets - offsets[0]
        rows = self.rows.run(*self.rows_of(start, stop))
        return OrderedRows(rows, self.blocks, offsets, self.version)
