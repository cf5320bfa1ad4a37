"""Reads record batches of Arrow IPC: files and streams.

Batches are validated before their values are read, because stored offsets are used unchanged.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, islice
from typing import Any

import numpy as np

from dsort.containers.columnar.arrow import pa, pc
from dsort.containers.columnar.page_bounds import arrow_errors, refuse_larger
from dsort.containers.columnar.parquet_types import without_types
from dsort.containers.columnar.ranges import (
    MessageFile,
    Source,
    SourceFile,
    arrow_file,
    file_messages,
    inflated_bytes,
    message_places,
)
from dsort.containers.columnar.schema import batch_bytes, is_view
from dsort.containers.columnar.values import ROWS_A_BATCH_MAX

ARROW_HEAD_BYTES = 8  # the magic, padded
ARROW_END_BYTES = 10  # the length of the footer, the magic
ARROW_PADDING_BYTES = 64
"""A footer that is aligned has less padding than this before it."""
STREAM_MARK = b"\xff\xff\xff\xff"
"""The first bytes of a stream since Arrow 0.15; older streams are not read."""
END_MARK = STREAM_MARK + bytes(4)
VIEW_NUMBERS = 4
"""A view has 16 bytes, of which the first four are its length."""


class _Arrow:
    """Record batches of Arrow IPC."""

    schema: Any

    def __init__(self, shard: str, source: Source, inflated_max: float) -> None:
        self._shard = shard
        self._size_bytes = source.size_bytes
        self._source = source
        self._inflated_max = inflated_max
        self._first_rows: list[int] | None = None  # of each batch, then the number of all rows

    def memory_bytes(self) -> int:
        return self._size_bytes

    def long_columns(self) -> list[str]:
        return []

    def _stored(self, first: int = 0) -> Iterator[Any]:
        """The batches from number ``first`` on."""
        raise NotImplementedError

    def _messages(self, whole: memoryview) -> Iterator[Any]:
        raise NotImplementedError

    def _check(self, metadata: memoryview, body: memoryview) -> None:
        """``CorruptShardError`` if the inflated buffers of a message would take too much memory."""
        size_bytes = inflated_bytes(metadata, body)
        refuse_larger(self._shard, "the buffers of a batch", size_bytes, self._inflated_max)

    def _check_all(self) -> None:
        """Check all messages of a shard that is in memory. In other shards, each message is checked
        when it is read."""
        whole = self._source.whole()
        if whole is not None and not math.isinf(self._inflated_max):
            for each in self._messages(whole):
                body = b"" if each.body is None else each.body
                self._check(memoryview(each.metadata), memoryview(body))

    def batches(self, bytes_max: int) -> Iterator[Any]:
        with arrow_errors(self._shard):
            self._check_all()
        for batch in self._checked(self._stored()):
            yield from _slices(self._shard, batch, bytes_max)

    def _checked(self, stored: Iterator[Any]) -> Iterator[Any]:
        while True:
            with arrow_errors(self._shard):
                batch = next(stored, None)
                if batch is None:
                    return
                batch.validate(full=True)
            yield batch

    def count_rows(self) -> int:
        if self._first_rows is None:
            with arrow_errors(self._shard):
                self._check_all()
            counts = [batch.num_rows for batch in self._checked(self._stored())]
            self._first_rows = [*accumulate(counts, initial=0)]
        return self._first_rows[-1]

    def batches_from(
        self, first: int, bytes_max: int, column: str | None = None
    ) -> Iterator[tuple[int, Any]]:
        if not 0 <= first < self.count_rows():
            return
        assert self._first_rows is not None
        number = bisect_right(self._first_rows, first) - 1
        at = self._first_rows[number]
        for batch in self._checked(self._stored(number)):
            for some in _slices(self._shard, batch, bytes_max):
                yield at, some if column is None else some.select([column])
                at += some.num_rows


def _slices(shard: str, batch: Any, bytes_max: int) -> Iterator[Any]:
    """A batch in slices of about ``bytes_max`` at most, or of one row."""
    rows = batch.num_rows
    with arrow_errors(shard):
        size_bytes = _decoded_bytes(batch)
    step = max(rows * bytes_max // max(size_bytes, bytes_max), 1)
    for at in range(0, rows, min(step, ROWS_A_BATCH_MAX)):
        yield batch.slice(at, min(step, ROWS_A_BATCH_MAX))


def _decoded_bytes(batch: Any) -> int:
    """The maximum size of a batch once its dictionaries and views are decoded."""
    size_bytes = batch_bytes(batch)
    for column in batch.columns:
        if pa.types.is_dictionary(column.type):
            words = column.dictionary
            if is_view(words.type):
                words = words.cast(pa.large_binary())
            width = max(words.nbytes // max(len(words), 1), 1)
            if words.type in (pa.binary(), pa.string(), pa.large_binary(), pa.large_string()):
                width = pc.max(pc.binary_length(words)).as_py() or 0
            size_bytes += width * len(column)
        elif is_view(column.type) and len(column):  # many views may refer to the same bytes
            start, views = column.offset, np.frombuffer(column.buffers()[1], "<i4")[::VIEW_NUMBERS]
            size_bytes += int(views[start : start + len(column)].sum(dtype=np.int64))
    return size_bytes


class ArrowFile(_Arrow):
    def __init__(self, shard: str, source: Source, inflated_max: float) -> None:
        super().__init__(shard, source, inflated_max)
        self._end = source.size_bytes - ARROW_END_BYTES
        footer_bytes = int.from_bytes(source.read(max(self._end, 0), 4), "little", signed=True)
        self._end -= footer_bytes
        if footer_bytes < 0 or self._end < 0:
            raise ValueError("the footer is longer than its shard")
        self._places = message_places(memoryview(source.read(self._end, footer_bytes)))
        begins = {start for start, _ in self._places}
        file = MessageFile(source, self._check, begins)
        self._reader = pa.ipc.open_file(arrow_file(source, file))
        self.schema = without_types(self._reader.schema)
        self._refuse_second(source)

    def _refuse_second(self, source: Source) -> None:
        """``ValueError`` for two files one after the other, because readers see the rows of only
        one. The footer follows the end mark of the batches; a file without an end mark is not
        refused."""
        last = max((stop for _, stop in self._places), default=0)
        if 0 <= self._end - last < ARROW_PADDING_BYTES:
            return
        file = arrow_file(source, SourceFile(source))
        file.seek(ARROW_HEAD_BYTES)
        messages = pa.ipc.MessageReader.open_stream(file)
        try:
            while True:
                messages.read_next_message()
        except StopIteration:
            between = self._end - int(file.tell())
        except (OSError, ValueError):
            return
        if between >= ARROW_PADDING_BYTES:
            raise ValueError("a second Arrow file follows: write the rows of both to one")

    def _messages(self, whole: memoryview) -> Iterator[Any]:
        return file_messages(whole, self._places)

    def _stored(self, first: int = 0) -> Iterator[Any]:
        for at in range(first, self._reader.num_record_batches):
            yield self._reader.get_batch(at)


class ArrowStream(_Arrow):
    """A stream. Without the end-of-stream mark, the shard may have been cut off."""

    def __init__(self, shard: str, source: Source, inflated_max: float) -> None:
        super().__init__(shard, source, inflated_max)
        self.schema = without_types(pa.ipc.open_stream(self._opened()).schema)

    def _opened(self) -> Any:
        return arrow_file(self._source, MessageFile(self._source, self._check))

    def _messages(self, whole: memoryview) -> Iterator[Any]:
        return iter(pa.ipc.MessageReader.open_stream(pa.py_buffer(whole)))

    def _stored(self, first: int = 0) -> Iterator[Any]:
        file = self._opened()
        yield from islice(pa.ipc.open_stream(file), first, None)
        end = file.tell()
        if self._source.read(max(end - 8, 0), min(8, end)) != END_MARK:
            raise ValueError("the stream ends without its end mark: it may be cut off")
        if end != self._source.size_bytes:
            raise ValueError(f"the stream ends at byte {end:,}, and more bytes follow")
