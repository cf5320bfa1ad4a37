"""Summarises the content of one table, batch by batch. Of each row only its key is kept, where a
column has keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from dsort.containers.columnar.cells import cell_contents
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
from dsort.naming.safe_names import UNSAFE_NAMES, unsafe_rows
from dsort.reading.table_records import Rows, TableRecords

__all__ = ["summarise_table"]

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
        oddities.append(Oddity("unsafe_names", counts.unsafe, UNSAFE_NAMES, tuple(counts.samples)))
    if len(again):
        samples = tuple(table.keys[number] for number in again[:SAMPLES_MAX].tolist())
        oddities.append(Oddity("duplicate_keys", len(again), DUPLICATE_KEYS, samples))
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
        found = pa.array(np.append(words, -1)).take(encoded.indices.fill_null(len(words)))
    else:
        cells = cell_contents(name, column)
        return np.array([-1 if cell is None else len(cell) for cell in cells], np.int64)
    return np.asarray(found.fill_null(-1), np.int64)


def _is_time(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind))
