"""Writes columnar shards: record batches in, bytes out in order.

Which rows make a row group is the caller's: the bytes of a shard depend on its row groups, and on
nothing else. Every group comes as one batch without gaps, for pages end where chunks end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dsort.containers.base import ContainerOptions
from dsort.containers.columnar.schema import encoded, is_media
from dsort.data.columns import Int64s

__all__ = ["GroupLimits", "TableWriter", "open_writer"]

MEDIA_ROWS = 100
MEDIA_BYTES = 8 << 20
"""Readers of media take a few rows at a time: row groups are no larger than that asks for. Files of
3 KB are more than 100 a group, for each group costs writers and readers 0.2 ms."""
MEDIA_VALUES_A_BATCH = 8
"""A page is looked at for its size after so many values. By default it is after 1,024: all files of
a row group were one page, which is in memory whole beside the row group."""
ROWS_MAX = 1 << 20
GATHERED_BYTES = 1 << 18
"""Headers of pages and small columns are gathered to pieces of so many bytes."""


class TableWriter(Protocol):
    """Writes one shard."""

    def write(self, batch: Any) -> None:
        """The next row group, in plain types."""

    def close(self) -> None:
        """Write what ends the shard."""


def open_writer(
    suffix: str, schema: Any, options: ContainerOptions, write: Callable[[memoryview], None]
) -> TableWriter:
    """A writer of a shard with the suffix ``suffix``, whose bytes go to ``write`` in order."""
    if suffix == ".parquet":
        return _ParquetWriter(schema, options, write)
    return _ArrowWriter(schema, options, write, is_stream=suffix == ".arrows")


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Where row groups end: at ``rows_max``, or ``bytes_max``; or as soon as ``rows_enough`` rows
    have ``bytes_enough``."""

    rows_max: int
    bytes_max: int
    rows_enough: int
    bytes_enough: int

    @classmethod
    def of(cls, schema: Any, options: ContainerOptions) -> GroupLimits:
        """The limits of a shard."""
        bytes_max = options.row_group_bytes
        if options.row_group_rows is not None:
            return cls(options.row_group_rows, bytes_max, options.row_group_rows, 0)
        if any(is_media(field.type) for field in schema):
            return cls(ROWS_MAX, bytes_max, MEDIA_ROWS, MEDIA_BYTES)
        return cls(ROWS_MAX, bytes_max, ROWS_MAX, 0)

    def end(self, running: Int64s, row: int, stop: int, rows: int, size_bytes: int) -> int:
        """The row before which a group ends that has ``rows`` rows of ``size_bytes`` and goes on
        with ``row``; ``stop + 1`` if it goes on behind ``stop``. ``running``: bytes before each
        row."""
        before = int(running[row]) - size_bytes
        by_bytes = int(np.searchsorted(running, before + self.bytes_max, side="right")) - 1
        if not rows:
            by_bytes = max(by_bytes, row + 1)  # a row larger than a group has one of its own
        if by_bytes >= stop:
            by_bytes = stop + 1  # perhaps the next one fits, too
        enough = int(np.searchsorted(running, before + self.bytes_enough, side="left"))
        enough = max(enough, row + self.rows_enough - rows)
        return min(row + self.rows_max - rows, max(by_bytes, row), enough, stop + 1)


class _Sink:
    """Where pyarrow writes to: a Python file without a place of its own."""

    closed = False

    def __init__(self, write: Callable[[memoryview], None]) -> None:
        self._write = write

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if len(view):
            self._write(view)
        return len(view)

    def flush(self) -> None:
        """The receiver decides when."""

    def close(self) -> None:
        """It is the receiver's."""

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


def _sink(write: Callable[[memoryview], None]) -> Any:
    import pyarrow as pa

    return pa.BufferedOutputStream(pa.PythonFile(_Sink(write), mode="w"), GATHERED_BYTES)


class _ParquetWriter:
    """As Hugging Face's libraries write them: files in columns are stored as they are, all else is
    compressed; there is a page index."""

    def __init__(
        self, schema: Any, options: ContainerOptions, write: Callable[[memoryview], None]
    ) -> None:
        import pyarrow.parquet as pq

        self._schema = schema
        leaves, media, binary = _leaves(schema)
        codec = options.compression or "snappy"
        self._out = _sink(write)
        self._writer = pq.ParquetWriter(
            self._out,
            schema,
            compression={path: "none" if path in media else codec for path in leaves},
            use_dictionary=[path for path in leaves if path not in binary],
            write_statistics=[path for path in leaves if path not in binary] or False,
            write_page_index=True,
            write_batch_size=MEDIA_VALUES_A_BATCH if media else None,
        )

    def write(self, batch: Any) -> None:
        import pyarrow as pa

        table = pa.Table.from_batches([encoded(batch, self._schema)], self._schema)
        self._writer.write_table(table, row_group_size=max(batch.num_rows, 1))

    def close(self) -> None:
        self._writer.close()
        self._out.flush()


def _leaves(schema: Any) -> tuple[list[str], set[str], set[str]]:
    """The paths of all columns that Parquet makes of a schema; those of media, and of binaries."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), buffer)
    columns = pq.ParquetFile(pa.BufferReader(buffer.getvalue())).schema
    paths, media, binary = [], set(), set()
    media_names = {field.name for field in schema if is_media(field.type)}
    for at in range(len(columns)):
        column = columns.column(at)
        paths.append(column.path)
        is_text = column.logical_type.type in ("STRING", "JSON", "DECIMAL", "FLOAT16", "UUID")
        if column.physical_type == "BYTE_ARRAY" and not is_text:
            binary.add(column.path)
        if column.path.split(".")[0] in media_names:
            media.add(column.path)
            binary.add(column.path)
    return paths, media, binary


class _ArrowWriter:
    """Arrow IPC. In a stream each batch has dictionaries of its own. A file has one for a column:
    what a batch has besides comes as an addition to it."""

    def __init__(
        self,
        schema: Any,
        options: ContainerOptions,
        write: Callable[[memoryview], None],
        *,
        is_stream: bool,
    ) -> None:
        import pyarrow as pa

        codec = options.compression if options.compression not in ("", "none") else None
        wanted = pa.ipc.IpcWriteOptions(
            compression=codec, use_threads=False, emit_dictionary_deltas=not is_stream
        )
        self._schema = schema
        self._known: dict[str, Any] | None = None if is_stream else {}
        opened = pa.ipc.new_stream if is_stream else pa.ipc.new_file
        self._out = _sink(write)
        self._writer = opened(self._out, schema, options=wanted)

    def write(self, batch: Any) -> None:
        if self._known is not None:
            batch = self._with_known(batch, self._known)
        self._writer.write_batch(encoded(batch, self._schema))

    def close(self) -> None:
        self._writer.close()
        self._out.flush()

    def _with_known(self, batch: Any, known: dict[str, Any]) -> Any:
        """The batch with its dictionary columns encoded by the values so far, and new ones."""
        import pyarrow as pa
        import pyarrow.compute as pc

        columns = list(batch.columns)
        for at, field in enumerate(self._schema):
            if not pa.types.is_dictionary(field.type):
                continue
            values = known.get(field.name, pa.array([], columns[at].type))
            fresh = columns[at].unique().drop_null()
            fresh = fresh.filter(pc.invert(pc.is_in(fresh, value_set=values)))
            known[field.name] = values = pa.concat_arrays([values, fresh])
            places = pc.index_in(columns[at], value_set=values).cast(field.type.index_type)
            columns[at] = pa.DictionaryArray.from_arrays(places, values, ordered=field.type.ordered)
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
