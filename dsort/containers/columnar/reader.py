"""Reads columnar shards: their schema, and their rows in record batches of bounded size.

What pyarrow makes of bytes that are not as their format says comes out as ``CorruptShardError``.
Batches of Arrow IPC are checked before anybody looks into them, for their offsets are used as they
are stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from dsort.containers.columnar.schema import decoded
from dsort.errors import CorruptShardError

__all__ = [
    "ROWS_A_BATCH_MAX",
    "Source",
    "TableShard",
    "arrow_errors",
    "open_table",
    "plain_batches",
]

ROWS_A_BATCH_MAX = 1 << 16
READ_AHEAD_BYTES = 4 << 20
SECOND_BYTES_MAX = 16 << 20
"""What is read of a column at once, where the shard is not in memory."""
PARQUET_MAGIC = b"PAR1"
ARROW_MAGIC = b"ARROW1"
ARROW_HEAD_BYTES = 8  # the magic, padded
ARROW_END_BYTES = 10  # the length of the footer, the magic
ARROW_PADDING_BYTES = 64
"""Whoever aligns a footer puts less than this before it."""
STREAM_MARK = b"\xff\xff\xff\xff"
"""What a stream begins with since Arrow 0.15; older ones are not read."""
END_MARK = STREAM_MARK + bytes(4)


class Source(Protocol):
    """The bytes of a shard."""

    size_bytes: int

    def whole(self) -> memoryview | None:
        """All of them, if they are in memory or mapped."""

    def read(self, offset: int, length: int) -> bytes:
        """Some of them; ``StorageError``."""


class TableShard(Protocol):
    """One opened shard."""

    schema: Any
    """As it is stored, with its metadata."""

    def batches(self, bytes_max: int) -> Iterator[Any]:
        """All rows in order, in record batches of about ``bytes_max`` at most, or of one row."""

    def memory_bytes(self) -> int:
        """About how much its rows take in memory."""


@contextmanager
def arrow_errors(shard: str) -> Iterator[None]:
    """The body reads bytes of ``shard``: what it finds wrong with them is ``CorruptShardError``."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError, OverflowError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise CorruptShardError(shard, 0, lines[0][:300]) from None


def open_table(shard: str, source: Source) -> TableShard:
    """Open a shard by its first bytes. ``CorruptShardError`` if it is no columnar shard."""
    head = source.read(0, min(len(ARROW_MAGIC), source.size_bytes))
    kind: type[_Parquet | _ArrowFile | _ArrowStream] = _ArrowStream
    if head[:4] == PARQUET_MAGIC:
        kind = _Parquet
    elif head == ARROW_MAGIC:
        kind = _ArrowFile
    elif head[:4] != STREAM_MARK:
        raise CorruptShardError(shard, 0, "it is neither Parquet nor Arrow IPC")
    with arrow_errors(shard):
        opened = kind(shard, source)
        _ = str(opened.schema), opened.schema.names  # names that are no UTF-8 are refused here
    return opened


def plain_batches(shard: str, table: TableShard, plain: Any, bytes_max: int) -> Iterator[Any]:
    """The rows of a shard as record batches of the schema ``plain``."""
    for batch in table.batches(bytes_max):
        with arrow_errors(shard):
            found = decoded(batch, plain)
        yield found


class _SourceFile:
    """A source as Python's files are, which pyarrow reads by."""

    closed = False

    def __init__(self, source: Source) -> None:
        self._source = source
        self._at = 0

    def read(self, size: int | None = None) -> bytes:
        left = self._source.size_bytes - self._at
        size = left if size is None or size < 0 else min(size, left)
        data = self._source.read(self._at, size) if size > 0 else b""
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._at, self._source.size_bytes)[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def flush(self) -> None:
        """Nothing is written."""

    def close(self) -> None:
        """The source is its opener's."""


def _arrow_file(source: Source) -> Any:
    import pyarrow as pa

    whole = source.whole()
    if whole is not None:
        return pa.BufferReader(pa.py_buffer(whole))
    return pa.PythonFile(_SourceFile(source), mode="r")


class _Parquet:
    """A Parquet file, row group by row group."""

    def __init__(self, shard: str, source: Source) -> None:
        import pyarrow.parquet as pq

        self._shard = shard
        in_memory = source.whole() is not None
        self._file = pq.ParquetFile(
            _arrow_file(source), buffer_size=0 if in_memory else READ_AHEAD_BYTES, pre_buffer=False
        )
        self.schema = self._file.schema_arrow
        metadata = self._file.metadata
        rows = sum(metadata.row_group(at).num_rows for at in range(metadata.num_row_groups))
        if rows != metadata.num_rows:
            raise ValueError(f"its row groups have {rows:,} rows, it says {metadata.num_rows:,}")
        self._refuse_second(source)

    def _refuse_second(self, source: Source) -> None:
        """``ValueError`` for two files one behind the other: readers see the rows of one."""
        metadata, end = self._file.metadata, len(PARQUET_MAGIC)
        if metadata.num_row_groups:
            group = metadata.row_group(metadata.num_row_groups - 1)
            columns = map(group.column, range(group.num_columns))
            end = max(
                (
                    (each.dictionary_page_offset or each.data_page_offset)
                    + each.total_compressed_size
                    for each in columns
                ),
                default=end,
            )
        end = min(max(end, 0), source.size_bytes)
        behind = source.read(end, min(SECOND_BYTES_MAX, source.size_bytes - end))
        if PARQUET_MAGIC * 2 in behind:
            raise ValueError("another Parquet file follows it: put its rows into one file")

    def memory_bytes(self) -> int:
        metadata = self._file.metadata
        groups = (metadata.row_group(at) for at in range(metadata.num_row_groups))
        return sum(max(group.total_byte_size, 0) for group in groups)

    def batches(self, bytes_max: int) -> Iterator[Any]:
        for groups, a_row, rows in self._runs(bytes_max):
            with arrow_errors(self._shard):
                some = min(max(bytes_max // a_row, 1), max(rows, 1), ROWS_A_BATCH_MAX)
                found = self._file.iter_batches(some, row_groups=groups, use_threads=False)
            seen = 0
            while True:
                with arrow_errors(self._shard):
                    batch = next(found, None)
                    if batch is not None:
                        batch.validate()
                if batch is None:
                    break
                seen += batch.num_rows
                yield batch
            if seen != rows:
                many = (
                    f"s {groups[0]} to {groups[-1]} have"
                    if len(groups) > 1
                    else f" {groups[0]} has"
                )
                text = f"row group{many} {seen} rows, the footer says {rows}"
                raise CorruptShardError(self._shard, 0, text)

    def _runs(self, bytes_max: int) -> Iterator[tuple[list[int], int, int]]:
        """Row groups that are read at once, which costs 0.2 ms whatever their size: (numbers, bytes
        of a row in the widest of them, rows of all)."""
        metadata, groups = self._file.metadata, list[int]()
        size_bytes = widest = rows = 0
        for at in range(metadata.num_row_groups):
            with arrow_errors(self._shard):
                group = metadata.row_group(at)
                more, count = max(group.total_byte_size, 0), group.num_rows
            if groups and size_bytes + more > bytes_max:
                yield groups, widest, rows
                groups, size_bytes, widest, rows = [], 0, 0, 0
            groups.append(at)
            size_bytes, rows = size_bytes + more, rows + count
            widest = max(widest, more // max(count, 1), 1)
        if groups:
            yield groups, widest, rows


class _Arrow:
    """Record batches of Arrow IPC."""

    schema: Any

    def __init__(self, shard: str, source: Source) -> None:
        self._shard = shard
        self._size_bytes = source.size_bytes
        self._source = source

    def memory_bytes(self) -> int:
        return self._size_bytes

    def _stored(self) -> Iterator[Any]:
        raise NotImplementedError

    def batches(self, bytes_max: int) -> Iterator[Any]:
        stored = self._stored()
        while True:
            with arrow_errors(self._shard):
                batch = next(stored, None)
                if batch is None:
                    return
                batch.validate(full=True)
                rows = batch.num_rows
                size_bytes = batch.nbytes
            step = max(rows * bytes_max // max(size_bytes, bytes_max), 1)
            for at in range(0, rows, min(step, ROWS_A_BATCH_MAX)):
                yield batch.slice(at, min(step, ROWS_A_BATCH_MAX))


class _ArrowFile(_Arrow):
    def __init__(self, shard: str, source: Source) -> None:
        import pyarrow as pa

        super().__init__(shard, source)
        self._reader = pa.ipc.open_file(_arrow_file(source))
        self.schema = self._reader.schema
        self._refuse_second(source)

    def _refuse_second(self, source: Source) -> None:
        """``ValueError`` for two files one behind the other: readers see the rows of one. The
        footer follows the end mark of the batches; whoever writes no mark is believed."""
        import pyarrow as pa

        footer_bytes = int.from_bytes(source.read(source.size_bytes - ARROW_END_BYTES, 4), "little")
        file = _arrow_file(source)
        file.seek(ARROW_HEAD_BYTES)
        messages = pa.ipc.MessageReader.open_stream(file)
        try:
            while True:
                messages.read_next_message()
        except StopIteration:
            between = source.size_bytes - ARROW_END_BYTES - footer_bytes - int(file.tell())
        except (OSError, ValueError):
            return
        if between >= ARROW_PADDING_BYTES:
            raise ValueError("another Arrow file follows it: put its rows into one file")

    def _stored(self) -> Iterator[Any]:
        for at in range(self._reader.num_record_batches):
            yield self._reader.get_batch(at)


class _ArrowStream(_Arrow):
    """A stream; the end-of-stream mark is there, or the shard may have been cut off."""

    def __init__(self, shard: str, source: Source) -> None:
        import pyarrow as pa

        super().__init__(shard, source)
        self.schema = pa.ipc.open_stream(_arrow_file(source)).schema

    def _stored(self) -> Iterator[Any]:
        import pyarrow as pa

        file = _arrow_file(self._source)
        yield from pa.ipc.open_stream(file)
        end = file.tell()
        if self._source.read(max(end - 8, 0), min(8, end)) != END_MARK:
            raise ValueError("the stream ends without its end mark: it may be cut off")
        if end != self._source.size_bytes:
            raise ValueError(f"the stream ends at byte {end:,}, and something follows")
