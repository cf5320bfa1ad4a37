"""The rows of one table as records. A batch of rows is decoded when one of its rows is read.

A few bytes of a table may stand for millions of rows. So only some batches are kept, and the keys
of the rows where the table has a column of keys.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final

from msgspec import Struct

from dsort.containers.codecs.decoding import EXPANSION_FLOOR_BYTES
from dsort.containers.columnar.cells import (
    BATCH_BYTES,
    ROW_BYTES_MIN,
    cell_contents,
    row_keys,
)
from dsort.containers.columnar.page_bounds import refuse_larger
from dsort.containers.columnar.reader import TableShard, open_table
from dsort.containers.columnar.schema import batch_bytes, decoded, plain_schema
from dsort.containers.columnar.table_errors import arrow_errors
from dsort.data.columns import BytesColumn
from dsort.errors import ConversionError, CorruptShardError
from dsort.moves.input_shard import ShardBytes
from dsort.naming.names import KEY_COLUMN
from dsort.reading.keys import KeySequence, PositionKeys

__all__ = ["Rows", "TableRecords"]

KEPT_BYTES: Final = 64 << 20
"""The limit for the decoded batches that are kept, those that were decoded last."""
CELLS_BYTES: Final = 1 << 20
CELLS_ROWS_MAX: Final = 256
"""The number of rows that are converted to cells at once where rows are read in order."""
UNSEEN_BYTES_MAX: Final = 64 << 20
HELD_BYTES_MAX: Final = 16 << 20
KEYS_BYTES_MAX: Final = 128 << 20

Cells = tuple[str, list[tuple[str, bytes]]]
"""A record: its key, and the name and content of each member."""


class Rows(Struct, frozen=True, eq=False):
    """Rows from row ``first`` of a table on, decoded: a record batch of plain types."""

    first: int
    batch: Any

    @property
    def stop(self) -> int:
        """The row after the last one."""
        return self.first + int(self.batch.num_rows)


class TableRecords:
    """The rows of an opened shard as records by number. Any number of threads may use it.

    ``width``: the largest number of members of a record."""

    def __init__(self, shard: ShardBytes, *, key_field: str = "") -> None:
        """``CorruptShardError`` if it is no table, or has more rows than ``decoding`` allows."""
        shard.make_ready()
        if not shard.size_bytes:
            raise CorruptShardError(shard.name, 0, "it has no bytes")
        self.name = shard.name
        self._decoded_max = shard.decoding.max_expansion * shard.size_bytes + EXPANSION_FLOOR_BYTES
        self._table: TableShard = open_table(
            shard.name,
            _Source(shard),
            inflated_max=self._decoded_max,
            unseen_max=UNSEEN_BYTES_MAX,
        )
        self._plain = plain_schema(shard.name, self._table.schema)
        if "" in self._plain.names:
            raise ConversionError(
                f"shard {shard.name} has a column without a name, which can be no member",
                hint="name the column",
            )
        self._key_field = key_field
        self._columns = [
            (at, name) for at, name in enumerate(self._plain.names) if name != KEY_COLUMN
        ]
        self.width = max(len(self._columns), 1)
        self._count = self._table.count_rows()
        refuse_larger(self.name, "its rows", ROW_BYTES_MIN * self._count, self._decoded_max)
        self._lock = threading.RLock()
        self._kept: deque[Rows] = deque()
        self._ahead: Iterator[Rows] = iter(())
        self._ahead_at = -1
        self._cells: tuple[int, list[Cells]] = (0, [])
        self._next = 0

    def __len__(self) -> int:
        return self._count

    @cached_property
    def keys(self) -> KeySequence:
        """The key of each row."""
        with self._lock:
            return self._found_keys()

    def cells(self, row: int) -> Cells:
        """One record. A null cell is not a member; a row of nulls only has one empty member."""
        with self._lock:
            first, known = self._cells
            if not first <= row < first + len(known):
                rows = self._rows(row)
                count = 1
                if row == self._next:  # rows are read in order
                    count = min(_rows_at_once(rows), rows.stop - row)
                first, known = row, self._converted(rows, row, count)
                self._cells = first, known
            self._next = row + 1
            return known[row - first]

    def batches(self) -> Iterator[Rows]:
        """All rows in order. ``CorruptShardError`` if they take more than ``decoding`` allows."""
        return self._decoded_from(0)

    def records(self) -> Iterator[Cells]:
        """All records in order."""
        for rows in self.batches():
            step = _rows_at_once(rows)
            for row in range(rows.first, rows.stop, step):
                yield from self._converted(rows, row, min(step, rows.stop - row))

    @property
    def columns(self) -> Sequence[tuple[int, str]]:
        """(number, name) of each column whose cells are members."""
        return self._columns

    def _converted(self, rows: Rows, row: int, count: int) -> list[Cells]:
        some = rows.batch.slice(row - rows.first, count)
        columns = [cell_contents(name, some.column(at)) for at, name in self._columns]
        found = list[Cells]()
        for key in self.keys[row : row + count]:
            cells = zip(self._columns, map(next, columns), strict=True)
            there = [(f"{key}.{name}", cell) for (_, name), cell in cells if cell is not None]
            found.append((key, there or [(key, b"")]))
        return found

    def _rows(self, row: int) -> Rows:
        """The batch that contains ``row``."""
        for rows in self._kept:
            if rows.first <= row < rows.stop:
                return rows
        if row != self._ahead_at:
            self._ahead = self._decoded_from(row)
        for rows in self._ahead:
            self._ahead_at = rows.stop
            self._kept.appendleft(rows)
            while len(self._kept) > 1 and sum(_held(each) for each in self._kept) > KEPT_BYTES:
                self._kept.pop()
            if rows.first <= row < rows.stop:
                return rows
        raise CorruptShardError(self.name, 0, f"row {row:,} is missing")

    def _decoded_from(self, row: int) -> Iterator[Rows]:
        decoded_bytes = 0
        for first, batch in self._table.batches_from(row, BATCH_BYTES):
            with arrow_errors(self.name):
                found = decoded(batch, self._plain)
            decoded_bytes += max(batch_bytes(found), ROW_BYTES_MIN * found.num_rows)
            refuse_larger(self.name, "its rows", decoded_bytes, self._decoded_max)
            yield Rows(first, found)

    def _found_keys(self) -> KeySequence:
        import pyarrow as pa

        field = self._key_field or (KEY_COLUMN if KEY_COLUMN in self._plain.names else "")
        if not field:
            return PositionKeys(self.name, self._count)
        parts, size_bytes, at = [], 0, self._plain.get_field_index(field)
        plain = None if at < 0 else pa.schema([self._plain.field(at)])
        for first, batch in self._table.batches_from(0, BATCH_BYTES, field if plain else None):
            with arrow_errors(self.name):
                found = batch if plain is None else decoded(batch, plain)
            parts.append(row_keys(self.name, found, field, first))
            size_bytes += int(parts[-1].offsets[-1]) + parts[-1].offsets.nbytes
            refuse_larger(self.name, "the keys of its rows", size_bytes, KEYS_BYTES_MAX)
        return KeySequence.of_column(BytesColumn.concat(parts) if parts else BytesColumn.empty(0))


def _rows_at_once(rows: Rows) -> int:
    """How many of ``rows`` are converted to cells at once."""
    average = max(int(rows.batch.nbytes) // max(int(rows.batch.num_rows), 1), 1)
    return min(max(CELLS_BYTES // average, 1), CELLS_ROWS_MAX)


def _held(rows: Rows) -> int:
    return max(int(rows.batch.nbytes), 1)


class _Source:
    """The bytes of a shard as a source for tables (``containers.columnar.ranges.Source``)."""

    def __init__(self, shard: ShardBytes) -> None:
        self._shard = shard
        self.size_bytes = shard.size_bytes

    def whole(self) -> memoryview | None:
        return self._shard.whole

    def read(self, offset: int, length: int) -> bytes:
        return self._shard.at(offset, min(length, self.size_bytes - offset))

    def held(self, offset: int, length: int) -> memoryview | None:
        return memoryview(self.read(offset, length)) if length <= HELD_BYTES_MAX else None
