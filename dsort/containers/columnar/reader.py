"""Reads columnar shards: their schema, and their rows in record batches of bounded size.

pyarrow's errors about invalid bytes become ``CorruptShardError``, and those about content that
pyarrow or dsort cannot read become ``UnsupportedShardError``.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from dsort.containers.columnar.arrow import pq
from dsort.containers.columnar.arrow_ipc import STREAM_MARK, ArrowFile, ArrowStream
from dsort.containers.columnar.footers import (
    Chunk,
    chunks_of,
    int96_columns,
    refuse_wrapped,
    schema_elements,
)
from dsort.containers.columnar.page_bounds import (
    UNSEEN_BYTES_MAX,
    ColumnKind,
    Headers,
    arrow_errors,
    column_kinds,
    decoded_columns,
    headers_in,
    inflated_pages,
    refuse_larger,
    refuse_unread,
    torn_page,
)
from dsort.containers.columnar.parquet_types import with_types_of
from dsort.containers.columnar.plain_pages import IrregularPageError, LongColumn, is_long
from dsort.containers.columnar.ranges import Source, SourceFile, arrow_file, ranged_headers
from dsort.containers.columnar.schema import decoded
from dsort.containers.columnar.values import (
    IN_SHARD_SHARE,
    LONG_BYTES,
    ROWS_A_BATCH_MAX,
    Leaf,
    LightRows,
    PlacedLeaf,
    RowGroupRun,
    leaves_of,
    with_placed,
)
from dsort.errors import CorruptShardError
from dsort.naming.names import shortened

PLACE_BYTES = 64
"""The memory for a value that stays in its place: its place and its length, as they are found."""
LOOKED_INTO_GROUPS = 8
"""The number of row groups whose descriptions in the footer show which columns are long."""
READ_AHEAD_BYTES = 4 << 20
SECOND_BYTES_MAX = 16 << 20
"""The number of bytes of a column that are read at once, if the shard is not in memory."""
PARQUET_MAGIC = b"PAR1"
KNOWN_CODECS = frozenset({0, 1, 2, 4, 5, 6, 7})
"""The codecs of pages that dsort can read, with their numbers in footers; 3 is LZO."""
FOOTER_BYTES = 64 << 10
"""The number of bytes fetched at once to find a footer: most footers are smaller."""
PARQUET_END_BYTES = 8  # the length of the footer, the magic
ARROW_MAGIC = b"ARROW1"


class TableShard(Protocol):
    """One opened shard."""

    schema: Any
    """The stored schema, with its metadata."""

    def batches(self, bytes_max: int) -> Iterator[Any]:
        """All rows in order, in record batches of about ``bytes_max`` at most, or of one row."""

    def batches_from(
        self, first: int, bytes_max: int, column: str | None = None
    ) -> Iterator[tuple[int, Any]]:
        """(first row, batch) of each record batch, from the batch with row ``first`` or an earlier
        one: reading cannot begin everywhere. Only ``column``; None: all columns."""

    def count_rows(self) -> int:
        """The number of rows."""

    def memory_bytes(self) -> int:
        """The approximate size of its rows in memory."""

    def long_columns(self) -> list[str]:
        """The columns of long texts or binaries, as far as the shard shows their lengths before
        they are read."""


def open_table(
    shard: str,
    source: Source,
    *,
    inflated_max: float = math.inf,
    unseen_max: int = UNSEEN_BYTES_MAX,
) -> TableShard:
    """Open a shard; its first bytes show its format. ``CorruptShardError`` if the shard is not
    columnar, ``UnsupportedShardError`` if the shard is encrypted or has content that pyarrow cannot
    read.

    ``inflated_max``: how many bytes the pages or buffers that are inflated together may have,
    checked before they are inflated. ``unseen_max``: if the values of a dictionary could take more
    bytes than this, the dictionary is read to find their size."""
    head = source.read(0, min(len(ARROW_MAGIC), source.size_bytes))
    kind: Callable[[str, Source, float], TableShard] = ArrowStream
    if head[:4] == PARQUET_MAGIC:
        kind = partial(_Parquet, unseen_max=unseen_max)
    elif head == ARROW_MAGIC:
        kind = ArrowFile
    elif head[:4] != STREAM_MARK:
        refuse_unread(shard, head[:4])
        raise CorruptShardError(shard, 0, "it is neither Parquet nor Arrow IPC")
    with arrow_errors(shard):
        opened = kind(shard, source, inflated_max)
        _ = str(opened.schema), opened.schema.names  # names that are not UTF-8 are refused here
    return opened


def plain_batches(shard: str, table: TableShard, plain: Any, bytes_max: int) -> Iterator[Any]:
    """The rows of a shard as record batches of the schema ``plain``."""
    for batch in table.batches(bytes_max):
        with arrow_errors(shard):
            found = decoded(batch, plain)
        yield found


def light_batches(
    shard: str, table: TableShard, plain: Any, bytes_max: int, *, kept: Container[str] = ()
) -> Iterator[LightRows]:
    """Like :func:`plain_batches`, but long values stay where they are in the shard, if the shard is
    in memory or mapped and the form of the values allows it. The values of the columns ``kept`` are
    in the batches."""
    if isinstance(table, _Parquet):
        yield from table.light_batches(plain, bytes_max, kept)
        return
    for batch in plain_batches(shard, table, plain, bytes_max):
        yield LightRows(batch)


class _Parquet:
    """A Parquet file, row group by row group."""

    def __init__(self, shard: str, source: Source, inflated_max: float, unseen_max: int) -> None:
        self._shard = shard
        self._inflated_max = inflated_max
        self._unseen_max = unseen_max
        self._known_chunks: list[list[Chunk]] | None = None
        self._kinds: list[ColumnKind] = []
        self._source = source
        self._whole = source.whole()
        self._bytes = SourceFile(source)
        self._file = self._opened()
        self._footer = self._read_footer()
        elements = schema_elements(self._footer)
        self._int96 = int96_columns(elements)
        self.schema = with_types_of(self._file.schema_arrow, elements)
        metadata = self._file.metadata
        rows = sum(metadata.row_group(at).num_rows for at in range(metadata.num_row_groups))
        if rows != metadata.num_rows:
            raise ValueError(
                f"its row groups have {rows:,} rows, its footer has {metadata.num_rows:,}"
            )

    def _opened(self, **options: Any) -> Any:
        """The shard as pyarrow opens it."""
        buffer_bytes = 0 if self._whole is not None else READ_AHEAD_BYTES
        file = arrow_file(self._source, self._bytes)
        options |= {"buffer_size": buffer_bytes, "page_checksum_verification": True}
        return pq.ParquetFile(file, pre_buffer=False, **options)

    def _read_footer(self) -> bytes:
        end = self._source.size_bytes - PARQUET_END_BYTES
        at = max(end - FOOTER_BYTES, 0)
        data = self._source.read(at, end + 4 - at)
        footer_bytes = int.from_bytes(data[-4:], "little")
        if footer_bytes > end - at:
            return self._source.read(max(end - footer_bytes, 0), min(footer_bytes, end))
        return data[end - at - footer_bytes : -4]

    def _chunks(self) -> list[list[Chunk]]:
        """The chunks of all row groups. ``CorruptShardError`` if the footer contradicts itself."""
        if self._known_chunks is None:
            with arrow_errors(self._shard):
                found, metadata = chunks_of(self._footer), self._file.metadata
                columns = len(self._file.schema)
                if [len(each) for each in found] != [columns] * metadata.num_row_groups:
                    raise ValueError("a row group does not have the columns of its shard")
                self._refuse_codecs(found)
                self._refuse_second(found)
            self._known_chunks = found
        return self._known_chunks

    def _refuse_codecs(self, groups: Iterable[Sequence[Chunk]]) -> None:
        """``NotImplementedError`` for a column with a codec that pyarrow does not support."""
        for group in groups:
            for at, chunk in enumerate(group):
                if chunk.codec not in KNOWN_CODECS:
                    path = shortened(self._file.schema.column(at).path)
                    raise NotImplementedError(
                        f"column {path} has the codec {chunk.codec} of Parquet"
                    )

    def _refuse_second(self, groups: Sequence[Sequence[Chunk]]) -> None:
        """``ValueError`` for two files one after the other, because readers see the rows of only
        one."""
        size_bytes = self._source.size_bytes
        ends = (chunk.stop for group in groups[-1:] for chunk in group)
        end = min(max(max(ends, default=len(PARQUET_MAGIC)), 0), size_bytes)
        behind = self._source.read(end, min(SECOND_BYTES_MAX, size_bytes - end))
        # The end of one file, and the beginning of the next one.
        if PARQUET_MAGIC * 2 in behind:
            raise ValueError("a second Parquet file follows: write the rows of both to one")

    def memory_bytes(self) -> int:
        metadata = self._file.metadata
        groups = (metadata.row_group(at) for at in range(metadata.num_row_groups))
        return sum(max(group.total_byte_size, 0) for group in groups)

    def long_columns(self) -> list[str]:
        found = []
        with arrow_errors(self._shard):
            groups, schema = chunks_of(self._footer, LOOKED_INTO_GROUPS), self._file.schema
            for number, name in enumerate(schema.names):
                column = schema.column(number)
                if column.physical_type != "BYTE_ARRAY" or column.path != name or "." in name:
                    continue
                chunks = [group[number] for group in groups if number < len(group)]
                values = sum(chunk.values for chunk in chunks)
                if 0 < values * LONG_BYTES <= sum(chunk.inflated_bytes for chunk in chunks):
                    found.append(name)
        return found

    def batches(self, bytes_max: int) -> Iterator[Any]:
        return (batch for _, batch in self.batches_from(0, bytes_max))

    def count_rows(self) -> int:
        return int(self._file.metadata.num_rows)

    def batches_from(
        self, first: int, bytes_max: int, column: str | None = None
    ) -> Iterator[tuple[int, Any]]:
        metadata, begin, at = self._file.metadata, 0, 0
        while begin < metadata.num_row_groups:
            rows = metadata.row_group(begin).num_rows
            if at + rows > first:
                break
            begin, at = begin + 1, at + rows
        columns = None if column is None else self._columns_of(column)
        for run in self._runs(bytes_max, {}, range(begin, metadata.num_row_groups)):
            for batch in self._batches_of(run, columns):
                yield at, batch
                at += batch.num_rows

    def _columns_of(self, name: str) -> list[int]:
        """The numbers of the stored columns that make up the column ``name`` of the schema."""
        schema = self._file.schema
        paths = [schema.column(at).path for at in range(len(schema))]
        return [at for at, path in enumerate(paths) if path.split(".")[0] == name.split(".")[0]]

    def light_batches(
        self, plain: Any, bytes_max: int, kept: Container[str]
    ) -> Iterator[LightRows]:
        """See :func:`light_batches`."""
        leaves = self._leaves_in_place(plain, kept)
        for run in self._runs(bytes_max, leaves):
            if not run.leaves:
                yield from self._decoded_of(run, plain)
                continue
            done = 0
            for rows in self._apart(run, leaves, plain):
                done += rows.num_rows
                yield rows
            if done < run.rows:
                for again in self._runs(bytes_max, {}, run.groups):
                    yield from self._decoded_of(again, plain, done)
                    done = max(done - again.rows, 0)

    def _apart(
        self, run: RowGroupRun, leaves: Mapping[Leaf, int], plain: Any
    ) -> Iterator[LightRows]:
        """The rows of a run without its leaves, up to the first irregular page."""
        try:
            columns = {leaf: self._long_column(run, leaves[leaf]) for leaf in run.leaves}
        except IrregularPageError:
            return
        away = {leaves[leaf] for leaf in columns}
        others = [at for at in range(len(self._file.schema)) if at not in away]
        batches = self._batches_of(run, others) if others else run.batch_rows()
        for batch in batches:
            count = batch if isinstance(batch, int) else batch.num_rows
            placed = []
            try:
                for leaf, column in columns.items():
                    nullable = self.schema.field(plain.field(leaf.column).name).nullable
                    placed.append(PlacedLeaf(leaf, *column.take(count), column.level_max, nullable))
            except IrregularPageError:
                return
            with arrow_errors(self._shard):
                rows = with_placed(None if isinstance(batch, int) else batch, placed, plain)
            yield rows

    def _decoded_of(self, run: RowGroupRun, plain: Any, first: int = 0) -> Iterator[LightRows]:
        """The rows of a run from row ``first`` on."""
        for batch in self._batches_of(run, None):
            left = batch.slice(min(first, batch.num_rows))
            first -= batch.num_rows - left.num_rows
            if left.num_rows or not batch.num_rows:
                with arrow_errors(self._shard):
                    found = decoded(left, plain)
                yield LightRows(found)

    def _leaves_in_place(self, plain: Any, kept: Container[str]) -> dict[Leaf, int]:
        """The leaves of ``plain`` that may be read in place, and the numbers of their columns. A
        leaf whose name fits several columns is left out."""
        with arrow_errors(self._shard):
            schema = self._file.schema
            columns = [schema.column(at) for at in range(len(schema))]
            numbers = {column.path: at for at, column in enumerate(columns)}
            if self._whole is None or len(numbers) < len(columns):
                return {}
            if any("." in name for name in self.schema.names):
                return {}
            found = {}
            for leaf in leaves_of(plain):
                field = plain.field(leaf.column)
                path, stored = field.name, self.schema.field(field.name)
                level_max = int(stored.nullable)
                if leaf.child >= 0:
                    child = field.type.field(leaf.child)
                    path += f".{child.name}"
                    level_max += int(child.nullable)
                at = numbers.get(path, -1)
                if at < 0 or field.name in kept or path.count(".") != (leaf.child >= 0):
                    continue
                column = columns[at]
                is_plain = column.physical_type == "BYTE_ARRAY" and not column.max_repetition_level
                if is_plain and column.max_definition_level == level_max:
                    found[leaf] = at
        return found

    def _long_column(self, run: RowGroupRun, at: int) -> LongColumn:
        """The values of column ``at`` in a run of row groups, in their places.
        ``IrregularPageError``."""
        assert self._whole is not None
        metadata, schema = self._file.metadata, self._file.schema
        level_max = int(schema.column(at).max_definition_level)
        column = LongColumn(self._whole, level_max, self._inflated_max)
        for group in run.groups:
            column.add(self._chunks()[group][at], metadata.row_group(group).num_rows)
        return column

    def _batches_of(self, run: RowGroupRun, columns: Sequence[int] | None) -> Iterator[Any]:
        """The rows of a run: of ``columns``, or of all columns. ``CorruptShardError`` names a page
        with a wrong CRC-32."""
        try:
            yield from self._checked_batches_of(run, columns)
        except CorruptShardError as error:
            raise self._torn(run, columns) or error from None

    def _torn(self, run: RowGroupRun, columns: Sequence[int] | None) -> CorruptShardError | None:
        """The error for the first page of a run with a wrong CRC-32, if there is one."""
        schema, source = self._file.schema, self._source
        with contextlib.suppress(ValueError, TypeError, CorruptShardError):
            headers = self._headers(run)
            for group in run.groups:
                for at in range(len(schema)) if columns is None else columns:
                    chunk = self._chunks()[group][at]
                    torn = torn_page(headers, source.read, chunk, source.size_bytes)
                    if torn is not None:
                        path = shortened(schema.column(at).path)
                        text = (
                            f"page {torn[0]} of column {path} in row group {group} does not match "
                        )
                        return CorruptShardError(self._shard, torn[1], text + "its CRC-32")
        return None

    def _checked_batches_of(self, run: RowGroupRun, columns: Sequence[int] | None) -> Iterator[Any]:
        schema = self._file.schema
        with arrow_errors(self._shard):
            paths = None if columns is None else [schema.column(at).path for at in columns]
            columns = range(len(schema)) if columns is None else columns
        some = min(run.rows_at_once, self._check_pages(run, columns))
        with arrow_errors(self._shard):
            opened = partial(self._opened, metadata=self._file.metadata)
            for at in self._int96.intersection(columns):
                refuse_wrapped(opened, schema.column(at).path, run.groups, some)
            found = self._file.iter_batches(
                some, row_groups=run.groups, columns=paths, use_threads=False
            )
        seen = 0
        while True:
            with arrow_errors(self._shard):
                batch = next(found, None)
                if batch is not None:
                    # Offsets that lead out of their buffer would show other memory of this process.
                    batch.validate()
            if batch is None:
                break
            seen += batch.num_rows
            yield batch
        if seen != run.rows:
            groups = run.groups
            many = f"s {groups[0]} to {groups[-1]} have" if len(groups) > 1 else f" {groups[0]} has"
            text = f"row group{many} {seen} rows, but the footer has {run.rows}"
            raise CorruptShardError(self._shard, 0, text)

    def _check_pages(self, run: RowGroupRun, numbers: Iterable[int]) -> int:
        """How many rows of some columns may be decoded at once, however often values are repeated.
        ``CorruptShardError`` if the inflated pages of a row group, or its lists, take too much
        memory."""
        fit = ROWS_A_BATCH_MAX
        if math.isinf(self._inflated_max):
            return fit
        opened = partial(self._opened, metadata=self._file.metadata)
        with arrow_errors(self._shard):
            headers = self._headers(run)
            self._kinds = self._kinds or column_kinds(self._file.schema)
        for number in run.groups:
            with arrow_errors(self._shard):
                chunks = {at: self._chunks()[number][at] for at in numbers}
                pages = inflated_pages(headers, self._source.size_bytes, chunks)
                # The longest page of each column: these are in memory at the same time.
                size_bytes = sum(each.longest_bytes for each in pages.values())
                what = f"the pages of row group {number}"
                refuse_larger(self._shard, what, size_bytes, self._inflated_max)
                rows = self._file.metadata.row_group(number).num_rows
                columns = decoded_columns(
                    opened,
                    self._kinds,
                    number,
                    rows,
                    pages,
                    self._inflated_max,
                    self._unseen_max,
                )
            for each in columns:
                what = f"the values of column {shortened(each.path)} in row group {number}"
                refuse_larger(self._shard, what, each.list_bytes, self._inflated_max)
            fit = min(fit, run.bytes_max // max(sum(each.row_bytes for each in columns), 1))
        return max(fit, 1)

    def _headers(self, run: RowGroupRun) -> Headers:
        """The reader of page headers. If the shard is not in memory and there is room, the bytes of
        the run are held in memory."""
        if self._whole is not None:
            return headers_in(self._whole)
        chunks = [chunk for number in run.groups for chunk in self._chunks()[number]]
        start = max(min(chunk.start for chunk in chunks), 0)
        stop = min(max(chunk.stop for chunk in chunks), self._source.size_bytes)
        held = self._bytes.hold(start, stop) if start < stop else None
        return ranged_headers(self._source) if held is None else headers_in(held, start)

    def _runs(
        self,
        bytes_max: int,
        leaves: Mapping[Leaf, int],
        numbers: Sequence[int] | None = None,
    ) -> Iterator[RowGroupRun]:
        """Runs of row groups that are read at once, because a read costs 0.2 ms whatever its size.
        ``leaves`` that may stay in their places take only the memory for these places."""
        chunks = self._chunks()
        groups, found = list[int](), tuple[Leaf, ...]()
        size_bytes = widest = rows = 0
        for at in range(len(chunks)) if numbers is None else numbers:
            with arrow_errors(self._shard):
                group = self._file.metadata.row_group(at)
                more, count = max(group.total_byte_size, 0), group.num_rows
                long = tuple(leaf for leaf in leaves if is_long(chunks[at][leaves[leaf]], count))
                for chunk in (chunks[at][leaves[leaf]] for leaf in long):
                    if chunk.is_stored:
                        held = PLACE_BYTES * count + chunk.stored_bytes // IN_SHARD_SHARE
                        more = max(more - chunk.stored_bytes, 0) + held
            if groups and (size_bytes + more > bytes_max or long != found):
                yield RowGroupRun(groups, found, widest, rows, bytes_max)
                groups, size_bytes, widest, rows = [], 0, 0, 0
            found = long
            groups.append(at)
            size_bytes, rows = size_bytes + more, rows + count
            widest = max(widest, more // max(count, 1), 1)
        if groups:
            yield RowGroupRun(groups, found, widest, rows, bytes_max)
