"""One partition in output order, in the form that the orderer stores and creators read."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dsort.data.columns import Int64s
from dsort.data.entries import entries_bytes
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
from dsort.data.table import Name, Table

CREATION_COLUMNS: Final = (SHARD, ORDINAL, MEMBERS, PAYLOAD_BYTES, STORED_BYTES, RANGES)
"""The columns that creation needs."""
OPTIONAL_CREATION_COLUMNS: Final = (GROUP, CONTENT_HASH, ENTRIES)
"""The columns that creation needs in some jobs."""
LINEAGE: Final = (SHARD, STORED_BYTES, CONTENT_HASH, KEYS, ORIGIN_START, ORIGIN_BYTES)
"""The columns from which a lineage is made."""
ORDERED: Final = (*CREATION_COLUMNS, *OPTIONAL_CREATION_COLUMNS, KEYS, ORIGIN_START, ORIGIN_BYTES)
"""All columns of a partition in output order."""


EACH_ROW: Final = np.zeros(0, np.int64)
"""No offsets of records: each row is one."""


def sums_of(values: NDArray[Any], offsets: Int64s) -> Int64s:
    """The sum of each run ``values[offsets[i]:offsets[i + 1]]``. No run is empty."""
    if len(offsets) < 2:
        return np.zeros(0, np.int64)
    return np.add.reduceat(values, offsets[:-1], dtype=np.int64)


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
        """The countable columns, with one row per record. The shard of a joined record is the shard
        of its first piece."""
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
                records = records.with_(name, sums_of(rows[name], offsets))
        return records.with_(MEMBERS, sums_of(rows[MEMBERS], offsets).astype(np.int32))

    def run(self, start: int, stop: int) -> OrderedRows:
        """Records ``start:stop``."""
        offsets = self.record_offsets[start : stop + 1]
        if self.has_pieces:
            offsets = offsets - offsets[0]
        rows = self.rows.run(*self.rows_of(start, stop))
        return OrderedRows(rows, self.blocks, offsets, self.version)
