"""The rows of one table as records. A batch of rows is decoded when one of its rows is read.

A few bytes of a table may stand for millions of rows. So only some batches are kept in memory. The
keys of all rows are kept, too, if the table has a column of keys.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, Final

import numpy as np
from msgspec import Struct

from dsort.containers.codecs.decoding import EXPANSION_FLOOR_BYTES
from dsort.containers.columnar.cells import (
    BATCH_BYTES,
    ROW_BYTES_MIN,
    cell_contents,
    row_keys,
)
from dsort.containers.columnar.page_bounds import arrow_errors, refuse_larger
from dsort.containers.columnar.reader import TableShard, open_table
from dsort.containers.columnar.schema import batch_bytes, decoded, plain_schema
from dsort.containers.inspect import (
    DUPLICATE_KEYS,
    SAMPLES_MAX,
    Oddity,
    RecordSummaries,
    RecordSummary,
    ShardSummary,
    extension_of,
)
from dsort.data.columns import BytesColumn, Int64s
from dsort.errors import ConversionError, CorruptShardError
from dsort.moves.input_shard import ShardBytes
from dsort.naming.names import KEY_COLUMN
from dsort.naming.safe_names import UNSAFE_NAMES, unsafe_rows
from dsort.reading.record_index import KeySequence, PositionKeys

__all__ = ["Rows", "TableRecords", "summarise_table"]

KEPT_BYTES: Final = 64 << 20
"""The limit for the decoded batches that are kept. The batches that were decoded last stay."""
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

    def __init__(self, shard: ShardBytes) -> None:
        """``CorruptShardError`` if the shard is no table, or has more rows than ``decoding``
        allows."""
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
                f"shard {shard.name} has a column without a name, and a member needs a name",
                hint="name the column",
            )
        self._columns = [
            (at, name) for at, name in enumerate(self._plain.names) if name != KEY_COLUMN
        ]
        self.width = max(len(self._columns), 1)
        self._count = self._table.count_rows()
        refuse_larger(self.name, "its rows", ROW_BYTES_MIN * self._count, self._decoded_max)
        # The lock is reentrant: the conversion of rows holds it, and takes it again for their keys.
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

        if KEY_COLUMN not in self._plain.names:
            return PositionKeys(self.name, self._count)
        parts, size_bytes = [], 0
        plain = pa.schema([self._plain.field(KEY_COLUMN)])
        for first, batch in self._table.batches_from(0, BATCH_BYTES, KEY_COLUMN):
            with arrow_errors(self.name):
                found = decoded(batch, plain)
            parts.append(row_keys(self.name, found, KEY_COLUMN, first))
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
        return self._shard.whole if self._shard.is_whole else None

    def read(self, offset: int, length: int) -> bytes:
        return self._shard.at(offset, min(length, self.size_bytes - offset))

    def held(self, offset: int, length: int) -> memoryview | None:
        return memoryview(self.read(offset, length)) if length <= HELD_BYTES_MAX else None


Reopened = Callable[[], AbstractContextManager[TableRecords]]


def summarise_table(table: TableRecords, file_bytes: int, reopened: Reopened) -> ShardSummary:
    """Summarise a ``table``. ``reopened``: opens it once more, for its records one by one.
    Raises ``CorruptShardError`` and ``ConversionError``."""
    counts, smallest, largest, total = _Counts(table), 0, 0, 0
    for rows in table.batches():
        sizes = counts.take(rows)
        if not len(sizes):
            continue
        low, high = int(sizes.min()), int(sizes.max())
        smallest = min(smallest, low) if rows.first else low
        largest, total = max(largest, high), total + int(sizes.sum())
    again = table.keys.repeated()
    oddities = []
    if counts.unsafe:
        oddities.append(
            Oddity.of("unsafe_names", counts.unsafe, UNSAFE_NAMES, tuple(counts.samples))
        )
    if len(again):
        samples = tuple(table.keys[number] for number in again[:SAMPLES_MAX].tolist())
        oddities.append(Oddity.of("duplicate_keys", len(again), DUPLICATE_KEYS, samples))
    return ShardSummary(
        shard=table.name,
        file_bytes=file_bytes,
        members=sum(counts.extensions.values()),
        payload_bytes=total,
        records=_TableSummaries(len(table), reopened),
        record_bytes=(smallest, largest, total),
        extensions=dict(counts.extensions),
        oddities=tuple(oddities),
    )


class _Counts:
    """Counts of the members of a ``table``. ``unsafe``: the number of members with unsafe names."""

    def __init__(self, table: TableRecords) -> None:
        self._table = table
        self.extensions: Counter[str] = Counter()
        self.unsafe = 0
        self.samples: list[str] = []

    def take(self, rows: Rows) -> Int64s:
        """Count some rows. Returns the payload bytes of each, shape ``(n,)``."""
        count = int(rows.batch.num_rows)
        lengths = [_lengths(name, rows.batch.column(at)) for at, name in self._table.columns]
        sizes, members = np.zeros(count, np.int64), np.zeros(count, np.int64)
        for each in lengths:
            sizes += np.maximum(each, 0)
            members += each >= 0
        keys = BytesColumn.of(self._table.keys.some(rows.first, rows.stop))
        alike = not any("/" in name for _, name in self._table.columns)
        if alike and not bool((keys.blob == ord(".")).any()) and not unsafe_rows(keys):
            key = keys[0] if count else b""
            for (_, name), each in zip(self._table.columns, lengths, strict=True):
                extension = extension_of(b"%b.%b" % (key, name.encode()))
                self._add(extension, int(np.count_nonzero(each >= 0)))
            self._add("", int(np.count_nonzero(members == 0)))
        else:
            self._take_names(keys, lengths)
        return sizes

    def _add(self, extension: str, count: int) -> None:
        if count:
            self.extensions[extension] += count

    def _take_names(self, keys: BytesColumn, lengths: list[Int64s]) -> None:
        """Count the names one by one, because their extensions depend on their keys."""
        columns = [b"." + name.encode() for _, name in self._table.columns]
        names = []
        for row, key in enumerate(keys.tolist()):
            cells = zip(columns, lengths, strict=True)
            names += [key + name for name, each in cells if each[row] >= 0] or [key]
        self.extensions.update(map(extension_of, names))
        unsafe = unsafe_rows(BytesColumn.of(names))
        self.unsafe += len(unsafe)
        more = unsafe[: SAMPLES_MAX - len(self.samples)]
        self.samples += [names[row].decode(errors="surrogateescape") for row in more]


class _TableSummaries(RecordSummaries):
    def __init__(self, count: int, reopened: Reopened) -> None:
        self._count = count
        self._reopened = reopened

    def __len__(self) -> int:
        return self._count

    def some(self, first: int, stop: int) -> Iterator[RecordSummary]:
        """See :class:`RecordSummaries`."""
        with self._reopened() as table:
            for number in range(first, stop):
                key, cells = table.cells(number)
                extensions = [
                    extension_of(name.encode(errors="surrogateescape")) for name, _ in cells
                ]
                yield RecordSummary(key, tuple(extensions), sum(len(cell) for _, cell in cells))


def _lengths(name: str, column: Any) -> Int64s:
    """The length of the content of each cell; -1 for a null. Floats and times, which take long to
    format, are formatted once for each different value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_null(kind):
        return np.full(len(column), -1, np.int64)
    if pa.types.is_boolean(kind):
        found = pc.if_else(column, 1, 1)
    elif pa.types.is_integer(kind):
        found = pc.binary_length(column.cast(pa.string()))
    elif kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        found = pc.binary_length(column)
    elif pa.types.is_float32(kind) or pa.types.is_float64(kind) or _is_time(kind):
        encoded = column.dictionary_encode()
        words = np.array([len(each or b"") for each in cell_contents(name, encoded.dictionary)])
        # A null has no length in the dictionary: it takes the last entry, which is -1.
        found = pa.array(np.append(words, -1)).take(encoded.indices.fill_null(len(words)))
    else:
        cells = cell_contents(name, column)
        return np.array([-1 if cell is None else len(cell) for cell in cells], np.int64)
    return np.asarray(found.fill_null(-1), np.int64)


def _is_time(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind))
