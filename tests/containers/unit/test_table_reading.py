"""Columnar shards as they are read: the sizes of rows, keys and cells, and hostile bytes."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import random
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dsort.containers.columnar.cells import row_keys
from dsort.containers.columnar.footers import chunks_of
from dsort.containers.columnar.page_bounds import inflated_pages
from dsort.containers.columnar.ranges import MemorySource, ranged_headers
from dsort.containers.columnar.reader import light_batches, open_table, plain_batches
from dsort.containers.columnar.schema import plain_schema, row_bytes, with_columns
from dsort.containers.columnar.thrift import I32, read_struct
from dsort.containers.columnar.thrift import written as written_struct
from dsort.errors import CorruptShardError, InputError, UnsupportedShardError
from tests.support.refusals import raises
from tests.support.tables import SUFFIXES, long_table, mixed_table, write_plain, write_table

MUTATIONS = 120


class StoredSource(MemorySource):
    """A shard in a store: neither mapped nor in memory. ``room``: so many bytes may be held.
    ``asked``: how long each range was that was asked for."""

    def __init__(self, data: bytes, room: int) -> None:
        super().__init__(memoryview(data))
        self.room, self.asked = room, list[int]()

    def whole(self) -> memoryview | None:
        return None

    def read(self, offset: int, length: int) -> bytes:
        assert 0 <= offset <= offset + length <= self.size_bytes
        self.asked.append(length)
        return super().read(offset, length)

    def held(self, offset: int, length: int) -> memoryview | None:
        assert 0 <= offset <= offset + length <= self.size_bytes
        if length > self.room:
            return None
        self.asked.append(length)
        return super().held(offset, length)


def mapped(data: bytes) -> MemorySource:
    return MemorySource(memoryview(data))


def held(data: bytes) -> MemorySource:
    return StoredSource(data, room=1 << 30)


def ranged(data: bytes) -> MemorySource:
    return StoredSource(data, room=0)


SOURCES = [mapped, held, ranged]


def batches_of(
    data: bytes,
    bytes_max: int = 300,
    *,
    inflated_max: float = 1 << 30,
    source: Callable[[bytes], MemorySource] = mapped,
) -> Iterator[Any]:
    """All that a job reads of a shard."""
    table = open_table("s", source(data), inflated_max=inflated_max)
    yield from plain_batches("s", table, plain_schema("s", table.schema), bytes_max)


def written(directory: Path, suffix: str, table: pa.Table) -> bytes:
    path = directory / f"shard{suffix}"
    write_table(path, table)
    return path.read_bytes()


def value_bytes(value: object) -> int:
    """What a plain value takes, slowly; numbers here are 8 bytes wide, but for the vectors'."""
    match value:
        case None:
            return 0
        case str():
            return len(value.encode())
        case bytes():
            return len(value)
        case dict():
            return sum(map(value_bytes, value.values()))
        case list():
            return sum(map(value_bytes, value))
        case bool():
            return 1
    return 8


def test_the_bytes_of_rows_are_those_of_their_values() -> None:
    table = mixed_table(40, seed=3).select(["id", "image", "tags", "good"])
    batch = table.combine_chunks().to_batches()[0]
    wanted = [sum(map(value_bytes, row.values())) for row in batch.to_pylist()]
    assert row_bytes(batch).tolist() == wanted
    assert row_bytes(batch.slice(7, 20)).tolist() == wanted[7:27]
    numbers = pa.record_batch({"a": pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2))})
    assert row_bytes(numbers).tolist() == [8, 8]
    pairs = pa.array([[("k", 1)], [], [("ab", 2), ("c", 3)]], pa.map_(pa.string(), pa.int64()))
    assert row_bytes(pa.record_batch({"m": pairs})).tolist() == [9, 0, 19]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_batches_hold_every_row_in_order_whatever_their_size(tmp_path: Path, suffix: str) -> None:
    data = written(tmp_path, suffix, mixed_table(50, seed=1))
    for bytes_max, source in itertools.product((1, 1000, 1 << 30), SOURCES):
        batches = list(batches_of(data, bytes_max, source=source))
        found = [key for batch in batches for key in batch["id"].to_pylist()]
        assert found == [f"1/{at:04d}" for at in range(50)]
    assert max(batch.num_rows for batch in batches_of(data, 1)) == 1


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_shard_that_is_cut_off_anywhere_is_corrupt(tmp_path: Path, suffix: str) -> None:
    data = written(tmp_path, suffix, mixed_table(25, seed=1))
    for length in [*range(0, len(data), 97), len(data) - 8, len(data) - 1]:
        with raises(CorruptShardError, shard="s", offset=0):
            list(batches_of(data[:length], source=SOURCES[length % 3]))
    with pytest.raises(CorruptShardError):
        list(batches_of(data + b"more"))


def test_what_is_neither_is_said_to_be() -> None:
    for data in (b"", b"PK\3\4" + bytes(100), b"{}\n", bytes(512)):
        with raises(CorruptShardError, shard="s", offset=0):
            list(batches_of(data))


@pytest.mark.parametrize(
    ("table", "named"),
    [
        (pa.table({}), "shard s"),
        (pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), "shard s"),
        (pa.table({"a": pa.array([["x"]], pa.list_(pa.string_view()))}), "string_view"),
    ],
)
def test_schemas_that_cannot_be_moved_are_refused(table: pa.Table, named: str) -> None:
    with raises(InputError, named):
        plain_schema("s", table.schema)


def test_keys_are_texts_or_whole_numbers_of_a_column_or_positions() -> None:
    batch = pa.record_batch(
        {"n": [7, 8], "t": ["a", ""], "f": [0.5, 1.0], "__key__": ["x", "y"], "z": ["a", None]}
    )
    assert row_keys("s", batch, "n", 0).tolist() == [b"7", b"8"]
    assert row_keys("s", batch, "", 0).tolist() == [b"x", b"y"]
    plain = batch.select(["n"])
    assert row_keys("d/s.parquet", plain, "", 5).tolist() == [b"d/s-000000005", b"d/s-000000006"]
    for column, named in (("t", "row 4"), ("f", "column f"), ("z", "row 4"), ("q", "column q")):
        with raises(InputError, "shard s", named):
            row_keys("s", batch, column, 3)


def test_two_arrow_files_one_behind_the_other_are_refused(tmp_path: Path) -> None:
    data = written(tmp_path, ".arrow", mixed_table(50, seed=1))
    longer = written(tmp_path, ".arrow", mixed_table(90, seed=1))
    for source in SOURCES:
        assert sum(batch.num_rows for batch in batches_of(data, source=source)) == 50
        for two in (data + data, data + longer, longer + data):
            with raises(CorruptShardError, shard="s", offset=0):
                list(batches_of(two, source=source))


ZEROS = pa.table({"zeros": [bytes(24 << 20)]})
ONE_WORD = pa.table({"word": pa.DictionaryArray.from_arrays([0, 0], ["x" * (24 << 20)])})
RANDOM = pa.table({"id": pa.array([f"{at * at:x}" for at in range(500)])})


def written_small(suffix: str, table: pa.Table, codec: str) -> bytes:
    """A shard of one row group, or batch, whose values are compressed."""
    file = io.BytesIO()
    if suffix == ".parquet":
        pq.write_table(table, file, compression=codec, use_dictionary=table is ONE_WORD)
        return file.getvalue()
    opened = pa.ipc.new_file if suffix == ".arrow" else pa.ipc.new_stream
    with opened(file, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table)
    return file.getvalue()


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_page_or_buffer_that_takes_too_much_is_refused_before_it_is_inflated(
    suffix: str, codec: str
) -> None:
    for table, source in itertools.product((ZEROS, ONE_WORD), SOURCES):
        data = written_small(suffix, table, codec)
        with counted_memory() as pool:
            with raises(CorruptShardError, "MiB", hint="max_expansion", shard="s", offset=0):
                list(batches_of(data, inflated_max=1 << 20, source=source))
            assert (pool.max_memory() or 0) < 5 << 20  # a read-ahead of pyarrow's among it
        with contextlib.suppress(InputError):  # the job would refuse nested dictionaries
            rows = sum(batch.num_rows for batch in batches_of(data, 1 << 22, inflated_max=1 << 28))
            assert rows == len(table)


def repeated(rows: int, value: bytes, *, nested: bool = False) -> pa.Table:
    """Rows, or items of one row, that are all the last of the three words of a dictionary."""
    words = pa.array([b"a", b"bc", value], pa.binary())
    column = pa.DictionaryArray.from_arrays(pa.array([2] * rows, pa.int32()), words)
    if nested:
        column = pa.ListArray.from_arrays(pa.array([0, rows], pa.int32()), column)
    return pa.table({"id": pa.array(range(len(column))), "value": column})


def written_repeated(suffix: str, table: pa.Table) -> bytes:
    file = io.BytesIO()
    if suffix == ".parquet":
        kept = {"dictionary_pagesize_limit": 8 << 20, "store_schema": False}
        pq.write_table(table, file, compression="NONE", **kept)
    else:
        opened = pa.ipc.new_file if suffix == ".arrow" else pa.ipc.new_stream
        with opened(file, table.schema) as writer:
            writer.write_table(table)
    return file.getvalue()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_looking_at_a_shard_in_a_store_costs_few_requests(suffix: str) -> None:
    """A run of row groups is one range, a message of Arrow two: what it begins with, and all."""
    file = io.BytesIO()
    values = pa.array([random.Random(at).randbytes(30_000) for at in range(200)])
    table = pa.table({"id": range(200), "value": values})
    if suffix == ".parquet":
        pq.write_table(table, file, row_group_size=50, compression="snappy", use_dictionary=False)
    else:
        opened = pa.ipc.new_file if suffix == ".arrow" else pa.ipc.new_stream
        with opened(file, table.schema) as writer:
            writer.write_table(table, 50)
    data = file.getvalue()
    stored = StoredSource(data, room=1 << 30)
    batches = list(batches_of(data, 2 << 20, source=lambda _: stored))
    assert sum(batch.num_rows for batch in batches) == 200
    assert len(stored.asked) <= 8 + 2 * 4
    assert sum(stored.asked) < 1.2 * len(data)
    assert max(stored.asked) < len(data) // 3
    if suffix == ".parquet":
        stored = StoredSource(data, room=0)
        headers = ranged_headers(stored)
        footer = data[-8 - int.from_bytes(data[-8:-4], "little") : -8]
        chunks = dict(enumerate(chunks_of(footer)[0]))
        assert inflated_pages(headers, len(data), chunks)[1].longest_bytes > 1 << 20
        assert sum(stored.asked) <= 4 * (64 << 10)


POOLS: list[pa.MemoryPool] = []
"""An array that outlives its pool ends the process."""


@contextlib.contextmanager
def counted_memory() -> Iterator[pa.MemoryPool]:
    """What arrow takes in the body."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    POOLS.append(pool)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_a_dictionary_repeats_is_decoded_as_many_rows_at_a_time_as_fit(
    suffix: str, source: Callable[[bytes], MemorySource]
) -> None:
    data = written_repeated(suffix, repeated(5000, bytes(1 << 20)))
    assert len(data) < 2 << 20
    with counted_memory() as pool:
        rows = 0
        for batch in batches_of(data, 8 << 20, inflated_max=1 << 40, source=source):
            assert batch.nbytes < 9 << 20
            assert batch.column(1)[0].as_py() == bytes(1 << 20)
            rows += batch.num_rows
            if rows >= 40:
                break
        assert rows >= 40
        assert (pool.max_memory() or 0) < 64 << 20


@pytest.mark.parametrize("suffix", [".arrow", ".arrows"])
def test_what_views_show_again_and_again_is_decoded_as_many_rows_at_a_time_as_fit(
    suffix: str,
) -> None:
    rows, value = 50_000, b"x" * 100_000
    view = struct.pack("<i4sii", len(value), value[:4], 0, 0)
    buffers = [None, pa.py_buffer(view * rows), pa.py_buffer(value)]
    column = pa.Array.from_buffers(pa.binary_view(), rows, buffers)
    file = io.BytesIO()
    opened = pa.ipc.new_file if suffix == ".arrow" else pa.ipc.new_stream
    table = pa.table({"id": range(rows), "value": column})
    with opened(file, table.schema) as writer:
        writer.write_table(table)
    found = batches_of(file.getvalue(), 8 << 20)
    some = list(itertools.islice(found, 3))
    assert max(batch.nbytes for batch in some) <= 8 << 20
    assert {len(each) for batch in some for each in batch["value"].to_pylist()} == {len(value)}


@pytest.mark.parametrize("source", SOURCES)
def test_a_list_that_repeats_a_value_beyond_the_bound_is_refused_before_it_is_decoded(
    source: Callable[[bytes], MemorySource],
) -> None:
    data = written_repeated(".parquet", repeated(4000, bytes(1 << 20), nested=True))
    with (
        counted_memory() as pool,
        raises(CorruptShardError, "value", "1 GiB", hint="max_expansion", shard="s", offset=0),
    ):
        list(batches_of(data, 8 << 20, inflated_max=1 << 30, source=source))
    assert (pool.max_memory() or 0) < 64 << 20


def test_lists_of_which_few_items_are_long_are_read() -> None:
    """Each item as long as the longest would be more than is allowed."""
    words = pa.array([b"a", bytes(1 << 20)], pa.binary())
    items = pa.DictionaryArray.from_arrays(pa.array([0] * 3999 + [1], pa.int32()), words)
    table = pa.table({"value": pa.ListArray.from_arrays(pa.array([0, 4000], pa.int32()), items)})
    (batch,) = batches_of(written_repeated(".parquet", table), 8 << 20, inflated_max=1 << 30)
    assert len(batch.column(0)[0].as_py()) == 4000


@pytest.mark.parametrize("kind", [pa.int64(), pa.binary(1 << 10)])
def test_a_list_of_many_equal_items_of_a_fixed_width_is_refused_too(kind: pa.DataType) -> None:
    item = pa.scalar(0 if kind == pa.int64() else bytes(1 << 10), kind)
    items = pa.repeat(item, 100_000)
    table = pa.table({"value": pa.ListArray.from_arrays(pa.array([0, 100_000], pa.int32()), items)})
    data = written_repeated(".parquet", table)
    assert len(data) < 100_000
    with raises(CorruptShardError, "value", "256 KiB", hint="max_expansion", shard="s", offset=0):
        list(batches_of(data, 8 << 20, inflated_max=1 << 18))


def test_an_unknown_codec_is_refused(tmp_path: Path) -> None:
    """pyarrow 26 ends the process where it is asked for the name of such a codec."""
    write_plain(tmp_path / "a.parquet", long_table(20, seed=1))
    data = (tmp_path / "a.parquet").read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    footer, _ = read_struct(memoryview(data[-8 - size : -8]), 0)
    for chunk in footer[4][1][1][0][1][1][1]:
        chunk[3][1][4] = (I32, 99)
    end = written_struct(footer)
    data = data[: -8 - size] + end + len(end).to_bytes(4, "little") + b"PAR1"
    for read in (plain_batches, light_batches):
        table = open_table("s", MemorySource(memoryview(data)), inflated_max=1 << 30)
        with raises(UnsupportedShardError, "column id", "codec 99", shard="s"):
            list(read("s", table, plain_schema("s", table.schema), 1 << 20))


class FullSource(MemorySource):
    """A shard whose machine has no memory left for more than a few bytes."""

    def whole(self) -> memoryview | None:
        return None

    def held(self, offset: int, length: int) -> memoryview | None:
        return None

    def read(self, offset: int, length: int) -> bytes:
        if length > 70_000:
            raise MemoryError("malloc failed")
        return super().read(offset, length)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_shard_for_which_there_is_no_memory_is_no_corrupt_one(
    tmp_path: Path, suffix: str
) -> None:
    values = [random.Random(at).randbytes(300_000) for at in range(20)]
    data = written(tmp_path, suffix, pa.table({"id": range(20), "value": values}))
    with raises(UnsupportedShardError, hint="memory"):
        list(batches_of(data, source=lambda data: FullSource(memoryview(data))))


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_said_of_pages_and_buffers_may_be_anything(
    suffix: str, codec: str, rng: random.Random
) -> None:
    whole = written_small(suffix, RANDOM, codec)
    assert sum(batch.num_rows for batch in batches_of(whole)) == 500
    for _ in range(MUTATIONS):
        data = bytearray(whole)
        for at in rng.sample(range(len(data)), rng.choice([1, 2, 8])):
            data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        with contextlib.suppress(CorruptShardError, InputError):
            for batch in batches_of(bytes(data), source=rng.choice(SOURCES)):
                assert batch.num_rows


def test_features_are_described_anew_unless_they_are_too_long_to_decode() -> None:
    features = {"a": {"dtype": "int64", "_type": "Value"}}
    known = json.dumps({"info": {"features": features}}).encode()
    schema = pa.schema({"a": pa.int64()}, {b"huggingface": known})
    found = json.loads(with_columns(schema, [("b", 0)]).metadata[b"huggingface"])
    assert found == {"info": {"features": {"b": features["a"]}}}
    bomb = b'{"x": [' + b"[]," * (6 << 20) + b"[]]}"
    tracemalloc.start()
    try:
        left = with_columns(schema.with_metadata({b"huggingface": bomb}), [("b", 0)])
        assert tracemalloc.get_traced_memory()[1] < 4 * len(bomb)
    finally:
        tracemalloc.stop()
    assert not left.metadata
