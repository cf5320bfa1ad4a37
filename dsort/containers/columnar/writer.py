"""Writes columnar shards: record batches in, bytes out in order.

Which rows make a row group is the caller's: the bytes of a shard depend on its row groups, and on
nothing else. Every group comes as one batch without gaps, for pages end where chunks end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dsort.containers.base import ContainerOptions
from dsort.containers.columnar.schema import encoded, is_media

__all__ = ["TableWriter", "open_writer", "rows_a_group_max"]

MEDIA_ROWS = 100
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


def rows_a_group_max(schema: Any, options: ContainerOptions) -> int:
    """How many rows a row group has at most. Readers of media take few rows at a time."""
    if options.row_group_rows is not None:
        return options.row_group_rows
    return MEDIA_ROWS if any(is_media(field.type) for field in schema) else ROWS_MAX


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
