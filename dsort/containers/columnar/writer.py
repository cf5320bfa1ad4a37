"""Writes record batches as columnar shards, and passes on their bytes in order.

The caller decides which rows make a row group: the bytes of a shard depend on its row groups, and
on nothing else. Each row group is passed in as a single batch, because pages end where chunks of
arrays end.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import numpy as np
from msgspec import Struct

from dsort.containers.base import ContainerOptions
from dsort.containers.columnar.arrow import pa, pc, pq
from dsort.containers.columnar.blocks import GroupRows, RowGroup
from dsort.containers.columnar.parquet_types import (
    has_types,
    refuse_types,
    with_types,
    without_types,
)
from dsort.containers.columnar.plain_chunks import (
    CODECS,
    MAGIC,
    GroupWritten,
    PlainColumn,
    footer_of,
    stitched_end,
)
from dsort.containers.columnar.schema import (
    encoded,
    for_parquet,
    is_binary,
    is_media,
    is_varying,
    plain_schema,
)
from dsort.containers.columnar.thrift import ThriftStruct
from dsort.containers.columnar.values import Leaf, leaves_of
from dsort.data.columns import Int64s
from dsort.errors import InputError
from dsort.naming.names import shortened

MEDIA_ROWS = 100
MEDIA_BYTES = 8 << 20
"""A row group with media ends when it has ``MEDIA_ROWS`` and ``MEDIA_BYTES``: readers of media take
a few rows at a time. Of files of 3 KB, a group has more than 100, because each group costs writers
and readers 0.2 ms."""
MEDIA_VALUES_A_BATCH = 8
"""The number of values after which the size of a page is checked. The default is 1,024, with which
all files of a row group would be one page, held in memory as a whole beside the row group."""
ROWS_MAX = 1 << 20
GATHERED_BYTES = 1 << 18
"""Headers of pages and small columns are gathered into pieces of so many bytes."""


Write = Callable[[Sequence[memoryview]], object]
Watch = Callable[[GroupRows], None]


class TableWriter(Protocol):
    """Writes one shard."""

    columns: tuple[PlainColumn, ...]
    """The columns that row groups have as pages instead of values, if possible."""

    def write(self, rows: GroupRows) -> None:
        """Write the next row group, in plain types."""

    def close(self) -> None:
        """Write the end of the shard."""


def open_writer(
    suffix: str,
    schema: Any,
    options: ContainerOptions,
    write: Write,
    *,
    long: Collection[str] = (),
) -> TableWriter:
    """A writer of a shard with the suffix ``suffix``, which passes its bytes to ``write`` in order.
    ``long``: columns of long texts or binaries; Parquet has them without dictionaries, compressed
    or not."""
    if suffix == ".parquet":
        return _ParquetWriter(schema, options, write, long)
    return _ArrowWriter(schema, options, write, is_stream=suffix == ".arrows")


def check_types(suffix: str, schema: Any) -> None:
    """``InputError`` for a column with a type that no shard with the suffix ``suffix`` can have."""
    if suffix != ".parquet":
        refuse_types(schema, suffix)
        return
    schema = for_parquet(schema)
    try:
        _Described.of(schema)
    except NotImplementedError:
        for field in schema:
            try:
                _Described.of(pa.schema([field]))
            except NotImplementedError as error:
                raise InputError(
                    f"column {shortened(field.name)} is {shortened(str(field.type))}, which "
                    f"{suffix} shards do not have",
                    hint="write .arrow, cast the column in the inputs, or leave it out with the "
                    "step fields",
                ) from error
        raise


class GroupLimits(Struct, frozen=True):
    """The limits of row groups: they end at ``rows_max`` or ``bytes_max``, or as soon as they have
    both ``rows_enough`` rows and ``bytes_enough`` bytes."""

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
        """The end of an open group, which has ``rows`` rows of ``size_bytes``; ``row`` is the next
        row. Returns the first row after the group, or ``stop + 1`` if the group is still open at
        ``stop``. ``running``: bytes before each row."""
        before = int(running[row]) - size_bytes
        by_bytes = int(np.searchsorted(running, before + self.bytes_max, side="right")) - 1
        if not rows:
            by_bytes = max(by_bytes, row + 1)  # a row larger than a group gets its own group
        if by_bytes >= stop:
            by_bytes = stop + 1  # the next one may fit, too
        enough = int(np.searchsorted(running, before + self.bytes_enough, side="left"))
        enough = max(enough, row + self.rows_enough - rows)
        return min(row + self.rows_max - rows, max(by_bytes, row), enough, stop + 1)


class RowGroups:
    """Writes the rows of one shard, row group by row group; the rows of the open group are in
    ``group``."""

    def __init__(
        self, table: TableWriter, limits: GroupLimits, group: RowGroup, watch: Watch | None = None
    ) -> None:
        """``watch``: called with each group before it is written."""
        self.group = group
        self._table = table
        self._limits = limits
        self._watch = watch
        self._rows = self._bytes = 0

    def add(self, running: Int64s, gather: Callable[[int, int], None]) -> None:
        """Write rows. ``running``: the bytes before each row, and at the end the bytes of all rows.
        ``gather(first, stop)`` adds some of these rows to the group."""
        row, count = 0, len(running) - 1
        while row < count:
            until = self._limits.end(running, row, count, self._rows, self._bytes)
            closes, until = until <= count, min(until, count)
            gather(row, until)
            self._rows += until - row
            self._bytes += int(running[until] - running[row])
            row = until
            if closes:
                self._write()

    def close(self) -> None:
        """Write the open group and the end of the shard."""
        self._write()
        self._table.close()

    def _write(self) -> None:
        if self._rows:
            rows = self.group.taken()
            if self._watch is not None:
                self._watch(rows)
            self._table.write(rows)
            self._rows = self._bytes = 0


class _Sink(io.RawIOBase):
    """The file that pyarrow writes to: a Python file without a position of its own."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if len(view):
            self._write([view])
        return len(view)

    def writable(self) -> bool:
        return True


def byte_sink(write: Write) -> Any:
    """The stream to which pyarrow writes, and which passes its bytes to ``write`` in order."""
    return pa.BufferedOutputStream(pa.PythonFile(_Sink(write), mode="w"), GATHERED_BYTES)


class _ParquetWriter:
    """Writes Parquet files like those of Hugging Face's libraries: files in columns are
    uncompressed, everything else is compressed; there is a page index. Files and long values are
    written here, and everything else by pyarrow."""

    def __init__(
        self, schema: Any, options: ContainerOptions, write: Write, long: Collection[str]
    ) -> None:
        schema = for_parquet(schema)
        described = _Described.of(schema)
        has_own_types, schema = has_types(schema), without_types(schema)
        codec = options.compression or "snappy"
        self._plain = plain_schema("of the job", schema)
        by_content = options.content_defined_chunks
        # Pages that are written here end by their size, and not by their content.
        self.columns = () if by_content else tuple(_plain_columns(schema, codec, long))
        self._numbers = [described.paths.index(".".join(each.path)) for each in self.columns]
        self._away = tuple(each.leaf for each in self.columns)
        self._whole = described.footer
        self._is_stitched = bool(self._away) or has_own_types
        self._schema = _without(schema, self._away)
        self._write_on, self._at, self._own_at = write, 0, 0
        self._groups: list[GroupWritten] = []
        self._end: bytearray | None = None
        if not len(self._schema):
            self._writer: Any = None
            self._write_on([memoryview(MAGIC)])
            self._at = len(MAGIC)
            return
        own = [".".join(each.path) for each in self.columns]
        paths = [path for path in described.paths if path not in own]
        encoded_paths = [path for path in paths if path not in described.binary]
        ordered_paths = [path for path in encoded_paths if path not in described.unordered]
        has_files = any(path in described.media for path in paths) and not own
        self._out = byte_sink(self._take)
        self._writer = pq.ParquetWriter(
            self._out,
            self._schema,
            compression={path: "none" if path in described.media else codec for path in paths},
            use_dictionary=encoded_paths,
            write_statistics=ordered_paths or False,
            write_page_index=True,
            write_batch_size=MEDIA_VALUES_A_BATCH if has_files else None,
            use_content_defined_chunking=by_content,
        )
        self._flush = self._out.flush
        self._flush()
        self._table_of = pa.Table.from_batches

    def write(self, rows: GroupRows) -> None:
        if rows.columns != self.columns:
            rows = GroupRows.of_batch(rows.light, self._plain, self.columns)
        chunks = []
        for pages in rows.pages:
            chunks.append(pages.write(self._at, self._write_on))
            self._at += chunks[-1].size_bytes
        start, shift = self._own_at, self._at - self._own_at
        if self._writer is not None:
            batch = encoded(_without_leaves(rows.light, self._away, self._schema), self._schema)
            table = self._table_of([batch], self._schema)
            # As one group: pyarrow would divide large tables by itself.
            self._writer.write_table(table, row_group_size=max(batch.num_rows, 1))
            self._flush()
        self._groups.append(GroupWritten(rows.num_rows, tuple(chunks), start, self._own_at, shift))

    def close(self) -> None:
        if self._writer is not None:
            if self._is_stitched:
                self._end = bytearray()
            self._writer.close()
            self._flush()
        if self._is_stitched:
            end = stitched_end(
                None if self._end is None else memoryview(self._end),
                self._own_at - len(self._end or b""),
                self._whole,
                self.columns,
                self._numbers,
                self._groups,
                self._at,
            )
            self._write_on([memoryview(end)])

    def _take(self, slices: Sequence[memoryview]) -> None:
        """Receive the bytes that pyarrow writes: its row groups are passed on, its footer is
        not."""
        size_bytes = sum(map(len, slices))
        self._own_at += size_bytes
        if self._end is not None:
            self._end += b"".join(slices)
            return
        self._write_on(slices)
        self._at += size_bytes


def _plain_columns(schema: Any, codec: str, long: Collection[str]) -> list[PlainColumn]:
    """The columns that are written here: the content of files, and long values."""
    found = []
    for leaf in leaves_of(plain_schema("of the job", schema)):
        field = schema.field(leaf.column)
        if leaf.child < 0:
            if field.name in long and is_varying(field.type) and codec in CODECS:
                found.append(PlainColumn(leaf, (field.name,), False, field.nullable, codec))
        elif is_media(field.type) and is_binary(leaf.kind):
            child = field.type.field(leaf.child)
            if child.name == "bytes":
                path = (field.name, child.name)
                found.append(PlainColumn(leaf, path, field.nullable, child.nullable))
    return found


def _without(schema: Any, leaves: Sequence[Leaf]) -> Any:
    """The schema of a file without these columns and fields of structs."""
    fields = []
    for at, field in enumerate(schema):
        gone = {leaf.child for leaf in leaves if leaf.column == at}
        if -1 in gone:
            continue
        if gone:
            kind = field.type
            kept = [kind.field(child) for child in range(kind.num_fields) if child not in gone]
            field = field.with_type(pa.struct(kept))
        fields.append(field)
    return pa.schema(fields, metadata=None if leaves else schema.metadata)


def _without_leaves(batch: Any, leaves: Sequence[Leaf], schema: Any) -> Any:
    """The batch for a file without ``leaves``."""
    whole = {leaf.column for leaf in leaves if leaf.child < 0}
    parts = {leaf.column for leaf in leaves} - whole
    columns: list[Any] = []
    for at, column in enumerate(batch.columns):
        if at in parts:
            kind = schema.field(len(columns)).type
            fields = [kind.field(child) for child in range(kind.num_fields)]
            inner = [column.field(field.name) for field in fields]
            nulls = column.is_null() if column.null_count else None
            column = pa.StructArray.from_arrays(inner, fields=fields, mask=nulls)
        if at not in whole:
            columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


class _Described(Struct, frozen=True):
    """Parquet's description of a schema: the paths of all columns, of media columns, of binary
    columns and of columns without an order, and the footer of a file without rows."""

    paths: list[str]
    media: set[str]
    binary: set[str]
    footer: ThriftStruct
    unordered: set[str]

    @classmethod
    def of(cls, schema: Any) -> _Described:
        buffer = pa.BufferOutputStream()
        pq.ParquetWriter(
            buffer, without_types(schema)
        ).close()  # a table without rows would load pandas
        file = buffer.getvalue()
        columns = pq.ParquetFile(pa.BufferReader(file)).schema
        footer = footer_of(memoryview(file).cast("B"))
        found = cls([], set(), set(), footer, with_types(footer, schema))
        media_names = {field.name for field in schema if is_media(field.type)}
        for at in range(len(columns)):
            column = columns.column(at)
            found.paths.append(column.path)
            is_text = column.logical_type.type in ("STRING", "JSON", "DECIMAL", "FLOAT16", "UUID")
            if column.physical_type == "BYTE_ARRAY" and not is_text:
                found.binary.add(column.path)
            if column.path.split(".")[0] in media_names:
                found.media.add(column.path)
                found.binary.add(column.path)
        return found


class _ArrowWriter:
    """Writes Arrow IPC. In a stream, each batch has its own dictionaries. A file has one dictionary
    for a column, and a batch with new values comes with an addition to it."""

    columns: tuple[PlainColumn, ...] = ()

    def __init__(
        self,
        schema: Any,
        options: ContainerOptions,
        write: Write,
        *,
        is_stream: bool,
    ) -> None:
        codec = options.compression if options.compression not in ("", "none") else None
        wanted = pa.ipc.IpcWriteOptions(
            compression=codec, use_threads=False, emit_dictionary_deltas=not is_stream
        )
        schema = without_types(schema)
        self._schema = schema
        self._known: dict[str, Any] | None = None if is_stream else {}
        opened = pa.ipc.new_stream if is_stream else pa.ipc.new_file
        self._out = byte_sink(write)
        self._writer = opened(self._out, schema, options=wanted)

    def write(self, rows: GroupRows) -> None:
        batch = rows.light
        if self._known is not None:
            batch = self._with_known(batch, self._known)
        self._writer.write_batch(encoded(batch, self._schema))

    def close(self) -> None:
        self._writer.close()
        self._out.flush()

    def _with_known(self, batch: Any, known: dict[str, Any]) -> Any:
        """The batch, with each dictionary column encoded by one dictionary: the values known so
        far, and then its new values, which become known."""
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
