"""Files of views: what is written is read, and a file that is no view is refused."""

from __future__ import annotations

import io
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dsort.containers.columnar.ranges import MemorySource
from dsort.containers.view import (
    ROWS_A_GROUP,
    ViewRows,
    ViewWriter,
    read_view,
    read_view_records,
)
from dsort.errors import CorruptShardError
from tests.support.internals import BytesColumn, Segments


def rows_of(count: int, first: int = 0) -> ViewRows:
    """Records of a literal and a range each."""
    numbers = np.arange(count, dtype=np.int64)
    start = np.stack([-1 - 3 * numbers, 1000 + numbers], 1).reshape(-1)
    length = np.tile(np.array([3, 5]), count)
    literals = np.frombuffer(b"".join(b"%03d" % (n % 1000) for n in range(count)), np.uint8)
    ranges = Segments(np.arange(count + 1) * 2, start, length, literals)
    keys = BytesColumn.of([b"key %d" % (first + n) for n in range(count)])
    return ViewRows.of(ranges, (numbers % 7).astype(np.int32), first + numbers, keys)


def written(parts: list[ViewRows], schema: str = "") -> bytes:
    out = io.BytesIO()
    writer = ViewWriter(out.writelines, schema)
    for part in parts:
        writer.add(part)
    writer.close()
    return out.getvalue()


def test_rows_are_read_as_they_were_written() -> None:
    rows = ViewRows.concat([ViewRows.literal(b"head"), rows_of(100), ViewRows.literal(b"end")])
    found, schema = read_view("v", written([rows], "of these"))
    assert schema == "of these"
    for name in ("record", "shard", "offset", "length"):
        assert np.array_equal(getattr(found, name), getattr(rows, name))
    assert found.literals.tolist() == rows.literals.tolist()
    assert found.keys.tolist() == rows.keys.tolist()
    assert found.keys.tolist()[:3] == [b"", b"key 0", b""]


def test_bytes_do_not_depend_on_how_many_rows_are_added_at_a_time() -> None:
    whole = rows_of(ROWS_A_GROUP)
    ends = [0, 10, 1000, ROWS_A_GROUP + 5, len(whole)]
    parts = [whole.run(*pair) for pair in pairwise(ends)]
    assert written(parts) == written([whole])


def test_a_record_has_its_key_once_whatever_its_pieces() -> None:
    one = Segments(np.arange(4), np.array([0, 10, 20]), np.array([5, 0, 5]), np.zeros(0, np.uint8))
    keys = BytesColumn.of([b"a", b"a", b"a"])
    rows = ViewRows.of(one, np.zeros(3, np.int32), np.zeros(3, np.int64), keys)
    assert (rows.record.tolist(), rows.keys.tolist()) == ([0, 0], [b"a", b""])


def test_keys_that_are_no_text_are_escaped() -> None:
    one = Segments(np.arange(2), np.array([0]), np.array([5]), np.zeros(0, np.uint8))
    rows = ViewRows.of(one, np.zeros(1, np.int32), np.zeros(1, np.int64), BytesColumn.of([b"\xff"]))
    assert read_view("v", written([rows]))[0].keys.tolist() == [rb"\xff"]


def test_a_shuffled_record_takes_few_bytes() -> None:
    rng = np.random.default_rng(1)
    count = 10_000
    start = rng.integers(0, 2_000_000, count) * 512
    length = rng.integers(100, 300, count) * 512
    ranges = Segments(np.arange(count + 1), start, length, np.zeros(0, np.uint8))
    keys = BytesColumn.of([b"%09d" % each for each in rng.integers(0, 10**9, count)])
    shard = rng.integers(0, 10_000, count).astype(np.int32)
    rows = ViewRows.of(ranges, shard, np.arange(count), keys)
    assert len(written([rows])) < 12 * count


def changed(**columns: Callable[[list[Any]], list[Any]]) -> bytes:
    """A file with some columns changed."""
    table = pq.read_table(pa.BufferReader(written([rows_of(3)])))
    for name, change in columns.items():
        at, field = table.schema.get_field_index(name), table.schema.field(name)
        table = table.set_column(at, field, pa.array(change(table[name].to_pylist()), field.type))
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PAR1",
        written([rows_of(3)])[:-9],
        changed(offset=lambda each: [-1 if x is not None else x for x in each]),
        changed(bytes=lambda each: [x + 1 for x in each]),
        changed(bytes=lambda each: [0 for _ in each]),
        changed(bytes=lambda each: [2**62 if at % 2 else x for at, x in enumerate(each)]),
        changed(shard=lambda each: [None for _ in each]),
        changed(shard=lambda each: [-1 if x is not None else x for x in each]),
        changed(record=lambda each: each[::-1]),
        changed(record=lambda each: [None for _ in each]),
        changed(literal=lambda each: [b"x" for _ in each]),
    ],
)
def test_a_file_that_is_no_view_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptShardError):
        read_view("v", data)


def test_other_columns_are_no_view() -> None:
    out = io.BytesIO()
    pq.write_table(pa.table({"record": [1]}), out)
    with pytest.raises(CorruptShardError):
        read_view("v", out.getvalue())


@pytest.mark.parametrize("column", ["rows", "key", "literal"])
def test_a_small_file_does_not_become_many_rows_or_long_texts(column: str) -> None:
    count = 3 << 20 if column == "rows" else 1 << 12
    text = {"key": "x" * 100_000, "literal": b"x" * 100_000}.get(column)
    columns = {
        "record": pa.array([0]),
        "key": pa.array([text if column == "key" else None]).cast(pa.string()),
        "shard": pa.array([None if column == "literal" else 0], pa.int32()),
        "offset": pa.array([None if column == "literal" else 0], pa.int64()),
        "bytes": pa.array([100_000], pa.int64()),
        "literal": pa.array([text if column == "literal" else None], pa.binary()),
    }
    first = pa.array(np.zeros(count, np.int32))
    repeated = {name: each.take(first) for name, each in columns.items()}
    out = io.BytesIO()
    pq.write_table(pa.table(repeated), out, max_rows_per_page=count)
    assert out.tell() < 1 << 20
    with pytest.raises(CorruptShardError):
        read_view("v", out.getvalue())


class Counted(MemorySource):
    """A file in a store, and how much of it was read."""

    bytes_read = 0

    def whole(self) -> None:
        """It is not in memory."""

    def read(self, offset: int, length: int) -> bytes:
        self.bytes_read += length
        return super().read(offset, length)

    def held(self, offset: int, length: int) -> memoryview | None:
        return memoryview(self.read(offset, length))


def shuffled_rows(count: int) -> ViewRows:
    """Records of a range each."""
    rng = np.random.default_rng(1)
    start, length = rng.integers(0, 2**40, count), rng.integers(1, 2**20, count)
    ranges = Segments(np.arange(count + 1), start, length, np.zeros(0, np.uint8))
    keys = BytesColumn.of([b"%09d" % each for each in rng.integers(0, 10**9, count)])
    return ViewRows.of(ranges, np.zeros(count, np.int32), np.arange(count), keys)


def test_some_records_are_read_from_their_row_groups() -> None:
    parts = [ViewRows.literal(b"head"), shuffled_rows(5 * ROWS_A_GROUP), ViewRows.literal(b"end")]
    data = written(parts)
    whole, _ = read_view("v", data)
    for first, count in ((0, 3), (ROWS_A_GROUP - 2, 4), (5 * ROWS_A_GROUP - 1, 1)):
        found, _ = read_view_records("v", MemorySource(memoryview(data)), first, first + count)
        wanted = np.flatnonzero((whole.record >= first) & (whole.record < first + count))
        assert found.record.tolist() == whole.record[wanted].tolist()
        assert found.keys.tolist() == whole.keys.take(wanted).tolist()
        assert found.offset.tolist() == whole.offset[wanted].tolist()
    source = Counted(memoryview(data))
    read_view_records("v", source, 65_000, 65_003)
    assert source.bytes_read < len(data) // 2


@pytest.mark.parametrize(("first", "stop"), [(2, 5), (3, 4), (0, 1 << 62)])
def test_records_that_are_not_all_in_a_file_are_refused(first: int, stop: int) -> None:
    source = MemorySource(memoryview(written([rows_of(3)])))
    with pytest.raises(CorruptShardError):
        read_view_records("v", source, first, stop)


def test_numbers_of_many_rows_in_few_bytes_are_refused() -> None:
    count = 3 << 20
    columns = {
        "record": pa.array(np.zeros(count, np.int64)),
        "key": pa.nulls(count, pa.string()),
        "shard": pa.array(np.zeros(count, np.int32)),
        "offset": pa.array(np.zeros(count, np.int64)),
        "bytes": pa.array(np.ones(count, np.int64)),
        "literal": pa.nulls(count, pa.binary()),
    }
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    with pytest.raises(CorruptShardError):
        read_view_records("v", MemorySource(memoryview(out.getvalue())), 0, 1)
