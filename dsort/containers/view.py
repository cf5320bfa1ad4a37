"""The file of a view: it lists the ranges of input shards, and the literals, that make up one
output shard.

The file is Parquet, with a row for each range (``ViewRows``), in the order of the shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec import Struct

from dsort.containers.codecs.decoding import EXPANSION_FLOOR_BYTES, EXPANSION_MAX_DEFAULT
from dsort.containers.columnar.page_bounds import arrow_errors
from dsort.containers.columnar.ranges import MemorySource, Source, SourceFile, arrow_file
from dsort.containers.columnar.reader import open_table
from dsort.containers.columnar.schema import bytes_column
from dsort.containers.columnar.writer import Write, byte_sink
from dsort.data.arrow_arrays import LENGTH_MAX, arrow_bytes, arrow_numbers, numbers_in
from dsort.data.columns import BytesColumn, Int32s, Int64s, cut_rows
from dsort.data.row_bytes import spread
from dsort.errors import CorruptShardError, InvariantError
from dsort.naming.names import readable

if TYPE_CHECKING:
    from dsort.data.segments import Segments

ROWS_A_GROUP: Final = 1 << 16
BATCH_BYTES: Final = 16 << 20
GROUP_BYTES: Final = 1 << 20
"""Less than the rows of a row group take, so that row groups are read one at a time."""
_SCHEMA: Final = b"dsort.schema"
_ENCODINGS: Final = {
    "record": "DELTA_BINARY_PACKED",
    "shard": "BYTE_STREAM_SPLIT",
    "offset": "BYTE_STREAM_SPLIT",
    "bytes": "BYTE_STREAM_SPLIT",
}
"""A shuffled record takes 11 bytes; with plain encodings 13."""

_ROW_BYTES_MIN: Final = 8
"""The least bytes of a row in inflated pages: its length alone takes 8."""


class ViewRows(Struct, frozen=True, eq=False):
    """Rows of a view, in columns. ``record``: the number of the record in the shard (-1: bytes
    before the first record and behind the last one). ``shard`` is the number of the input shard in
    the manifest, ``offset`` the place in that shard. Literals have the ``shard`` -1 and their bytes
    in ``literals``, a column of as many rows; in the file, their ``shard`` and ``offset`` are null.
    ``length``: the column ``bytes`` of the file. ``keys``: the key of the record in its first row,
    empty in its other rows."""

    record: Int64s
    keys: BytesColumn
    shard: Int32s
    offset: Int64s
    length: Int64s
    literals: BytesColumn

    def __len__(self) -> int:
        return len(self.record)

    @classmethod
    def of(cls, ranges: Segments, shard: Int32s, record: Int64s, keys: BytesColumn) -> ViewRows:
        """The rows of pieces of records: piece ``i`` belongs to record ``record[i]`` and has
        ``keys[i]``. A record has its key once, even if it has several pieces."""
        piece = np.repeat(np.arange(len(ranges)), np.diff(ranges.offsets))
        # Readers refuse a row without bytes, so empty pieces get no row.
        stays = np.flatnonzero(ranges.length)
        piece, start, length = piece[stays], ranges.start[stays], ranges.length[stays]
        number = record[piece]
        literal = np.flatnonzero(start < 0)
        texts = cut_rows(ranges.literals, -1 - start[literal], length[literal])
        first = np.flatnonzero(np.diff(number, prepend=-1))
        return cls(
            number,
            spread(keys.take(piece[first]), first, len(stays)),
            np.where(start < 0, -1, shard[piece]).astype(np.int32),
            np.where(start < 0, 0, start),
            length,
            spread(texts, literal, len(stays)),
        )

    @classmethod
    def literal(cls, data: bytes) -> ViewRows:
        """The row of bytes that belong to no record."""
        one = np.array([-1], np.int64)
        column = BytesColumn.of([data])
        length = np.array([len(data)], np.int64)
        return cls(one, BytesColumn.empty(1), one.astype(np.int32), one + 1, length, column)

    @classmethod
    def concat(cls, parts: Sequence[ViewRows]) -> ViewRows:
        """All rows of ``parts``."""
        none, no_shard = np.zeros(0, np.int64), np.zeros(0, np.int32)
        return cls(
            np.concatenate([none, *(part.record for part in parts)]),
            BytesColumn.concat([part.keys for part in parts]),
            np.concatenate([no_shard, *(part.shard for part in parts)]),
            np.concatenate([none, *(part.offset for part in parts)]),
            np.concatenate([none, *(part.length for part in parts)]),
            BytesColumn.concat([part.literals for part in parts]),
        )

    def run(self, start: int, stop: int) -> ViewRows:
        """Rows ``start:stop``."""
        some = slice(start, stop)
        return ViewRows(
            self.record[some],
            self.keys.run(start, stop),
            self.shard[some],
            self.offset[some],
            self.length[some],
            self.literals.run(start, stop),
        )


class ViewWriter:
    """Writes the file of one output shard. The bytes of the file depend on the rows alone, and not
    on how many rows are added at a time."""

    def __init__(self, write: Write, schema: str) -> None:
        """``schema``: the schema of the output shards, "" if they have none."""
        import pyarrow.parquet as pq

        self._form = _file_schema().with_metadata({_SCHEMA: schema.encode()})
        self._out = byte_sink(write)
        self._parquet = pq.ParquetWriter(
            self._out,
            self._form,
            compression="zstd",
            use_dictionary=False,
            column_encoding=_ENCODINGS,
        )
        self._rows: list[ViewRows] = []
        self._count = 0

    def add(self, rows: ViewRows) -> None:
        """Write the next rows."""
        self._rows.append(rows)
        self._count += len(rows)
        if self._count >= ROWS_A_GROUP:
            whole = ViewRows.concat(self._rows)
            last = self._count // ROWS_A_GROUP * ROWS_A_GROUP
            for start in range(0, last, ROWS_A_GROUP):
                self._write(whole.run(start, start + ROWS_A_GROUP))
            self._rows, self._count = [whole.run(last, self._count)], self._count - last

    def close(self) -> None:
        """Write the end of the file."""
        if self._count:
            self._write(ViewRows.concat(self._rows))
        self._parquet.close()
        self._out.close()

    def _write(self, rows: ViewRows) -> None:
        import pyarrow as pa

        is_range = rows.shard >= 0
        columns = [
            arrow_numbers(rows.record),
            _texts(rows.keys),
            arrow_numbers(rows.shard, is_range),
            arrow_numbers(rows.offset, is_range),
            arrow_numbers(rows.length),
            _values(rows.literals, pa.binary()),
        ]
        self._parquet.write_table(pa.Table.from_arrays(columns, schema=self._form))


def read_view(name: str, data: bytes) -> tuple[ViewRows, str]:
    """(rows of the file ``name``, schema of the output shards). ``CorruptShardError`` unless each
    row is a range of some shard or a literal of its length, and records count up."""
    file = _ViewFile(name, MemorySource(memoryview(data)))
    return file.rows(batch for _, batch in file.table.batches_from(0, BATCH_BYTES)), file.schema


def read_view_records(name: str, source: Source, first: int, stop: int) -> tuple[ViewRows, str]:
    """(rows of records ``first`` to ``stop``, schema of the output shards). ``CorruptShardError``
    also if one of these records is missing. Row groups before record ``first`` are not read, and
    reading ends after the last of these records."""
    file = _ViewFile(name, source)
    rows = file.rows(file.records(first, stop, _first_row_of(name, source, first)))
    if len(np.unique(rows.record)) != stop - first:
        raise CorruptShardError(name, 0, f"records {first:,} to {stop - 1:,} are not all in it")
    return rows, file.schema


def _first_row_of(name: str, source: Source, record: int) -> int:
    """The first row of the first row group that may have ``record``. Its statistics show that. A
    stranger may have written the statistics: with false ones, records are not found."""
    import pyarrow.parquet as pq

    row = 0
    with arrow_errors(name):
        metadata = pq.read_metadata(arrow_file(source, SourceFile(source)))
        for at in range(metadata.num_row_groups):
            group = metadata.row_group(at)
            known = group.column(0).statistics
            if known is None or not known.has_min_max or known.max >= record:
                break
            row += group.num_rows
    return row


class _ViewFile:
    """The file of a view, of which a stranger may have written any byte."""

    def __init__(self, name: str, source: Source) -> None:
        self._name = name
        self._left = EXPANSION_MAX_DEFAULT * source.size_bytes + EXPANSION_FLOOR_BYTES
        self.table = open_table(name, source, inflated_max=self._left)
        if not self.table.schema.equals(_file_schema()):
            raise CorruptShardError(name, 0, "it is no view: it has other columns")
        schema = (self.table.schema.metadata or {}).get(_SCHEMA, b"")
        self.schema = schema.decode("utf-8", "replace")

    def records(self, first: int, stop: int, row: int) -> Iterator[Any]:
        """The rows of records ``first`` to ``stop``, which are searched from ``row`` on."""
        for _, batch in self.table.batches_from(row, GROUP_BYTES):
            with arrow_errors(self._name):
                number, is_known = numbers_in(batch.column(0))
            self._take(len(number) * _ROW_BYTES_MIN)
            found = np.flatnonzero(is_known & (number >= first) & (number < stop))
            if len(found):
                yield batch.slice(int(found[0]), int(found[-1]) + 1 - int(found[0]))
            if number.max(initial=-1) >= stop:
                return

    def rows(self, batches: Iterable[Any]) -> ViewRows:
        """The checked rows of ``batches``."""
        parts: list[ViewRows] = []
        for batch in batches:
            with arrow_errors(self._name):
                batch.validate(full=True)
                part = _rows_of(batch)
            self._take(len(part) * _ROW_BYTES_MIN + len(part.keys.blob) + len(part.literals.blob))
            parts.append(part)
        rows = ViewRows.concat(parts)
        is_range = rows.shard >= 0
        fits = rows.literals.lengths == np.where(is_range, 0, rows.length)
        steps = np.diff(rows.record[rows.record >= 0])
        # Floats are added, because a sum of integers could wrap around to a valid one.
        if not (
            bool(fits.all())
            and bool((rows.length > 0).all())
            and bool((rows.offset >= 0).all())
            and bool((steps >= 0).all())
            and int(rows.length.sum(dtype=np.float64)) < np.iinfo(np.int64).max
        ):
            raise CorruptShardError(self._name, 0, "it is no view: its rows do not fit together")
        return rows

    def _take(self, inflated_bytes: int) -> None:
        # Pages that a stranger writes may repeat values of a dictionary; those of dsort do not.
        self._left -= inflated_bytes
        if self._left < 0:
            text = "it is no view: it has too few bytes for its rows"
            raise CorruptShardError(self._name, 0, text)


def _file_schema() -> Any:
    import pyarrow as pa

    return pa.schema(
        {
            "record": pa.int64(),
            "key": pa.string(),
            "shard": pa.int32(),
            "offset": pa.int64(),
            "bytes": pa.int64(),
            "literal": pa.binary(),
        }
    )


def _texts(keys: BytesColumn) -> Any:
    """Keys as texts, null where a row has none. A key that is not UTF-8 has the same form as in
    messages."""
    import pyarrow as pa

    found = _values(keys, pa.string())
    try:
        found.validate(full=True)
    except pa.ArrowInvalid:
        each = [readable(key).encode() if key else None for key in keys.tolist()]
        return arrow_bytes(each, pa.string())
    return found


def _values(column: BytesColumn, kind: Any) -> Any:
    """The rows of a column, null where they are empty."""
    import pyarrow as pa

    if len(column.blob) > LENGTH_MAX:
        raise InvariantError(f"{len(column.blob)} bytes are too many for {ROWS_A_GROUP} rows")
    validity = np.packbits(column.lengths > 0, bitorder="little")
    buffers = [validity, column.offsets.astype(np.int32), np.ascontiguousarray(column.blob)]
    return pa.Array.from_buffers(kind, len(column), [pa.py_buffer(each) for each in buffers])


def _rows_of(batch: Any) -> ViewRows:
    record, key, shard, offset, length, literal = batch.columns
    if record.null_count or length.null_count:
        raise ValueError("a number is missing")
    shards, is_range = numbers_in(shard)
    offsets, is_placed = numbers_in(offset)
    if not np.array_equal(is_range, is_placed):
        raise ValueError("a range has a shard without an offset, or an offset without a shard")
    if bool((shards[is_range] < 0).any()):
        raise ValueError("the number of a shard is negative")
    return ViewRows(
        numbers_in(record)[0],
        bytes_column(key),
        np.where(is_range, shards, np.int32(-1)),
        offsets,
        numbers_in(length)[0],
        bytes_column(literal),
    )
