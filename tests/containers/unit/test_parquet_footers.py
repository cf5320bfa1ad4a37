"""Footers and pages of Parquet: what pyarrow says of chunks, no end of the process where pyarrow
ends it, and no page that has not its CRC-32."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dsort import api
from dsort.containers.columnar.cells import cells_of_shard
from dsort.containers.columnar.footers import Chunk, chunks_of, schema_elements
from dsort.containers.columnar.parquet_types import with_types_of
from dsort.containers.columnar.reader import light_batches, open_table, plain_batches
from dsort.containers.columnar.schema import plain_schema
from dsort.containers.columnar.thrift import BINARY, I32, I64, LIST, STRUCT, read_struct, written
from dsort.containers.columnar.writer import check_types
from dsort.errors import CorruptShardError, InputError, UnsupportedShardError
from dsort.options import RunOptions
from tests.support.engine import count_of, spec_of
from tests.support.inline_runtime import Moved, run_inline
from tests.support.refusals import raises
from tests.support.tables import long_table, many_types, mixed_table

CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "GZIP": 2, "BROTLI": 4, "ZSTD": 6, "LZ4": 7}
MUTATIONS = 400


def shard_of(table: pa.Table, **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=17, **options)
    return file.getvalue()


def footer_of(shard: bytes) -> bytes:
    return shard[-8 - int.from_bytes(shard[-8:-4], "little") : -8]


def with_footer(shard: bytes, change: Callable[[Any], None]) -> bytes:
    """The shard with another footer. ``change``: of the first chunk, as a struct."""
    footer, _ = read_struct(memoryview(footer_of(shard)), 0)
    change(footer[4][1][1][0][1][1][1][0])
    end = written(footer)
    return shard[: -8 - len(footer_of(shard))] + end + len(end).to_bytes(4, "little") + b"PAR1"


@pytest.mark.parametrize("table", [long_table(40, seed=1), mixed_table(40, seed=1), many_types()])
def test_chunks_are_as_pyarrow_says(table: pa.Table) -> None:
    for codec, version in itertools.product(("none", "snappy", "zstd", "lz4"), ("1.0", "2.0")):
        data = shard_of(table, compression=codec, data_page_version=version)
        metadata = pq.ParquetFile(io.BytesIO(data)).metadata
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        wanted = [[group.column(at) for at in range(group.num_columns)] for group in groups]
        assert chunks_of(footer_of(data)) == [
            [
                Chunk(
                    CODECS[each.compression],
                    each.num_values,
                    each.total_uncompressed_size,
                    each.total_compressed_size,
                    each.data_page_offset,
                    each.dictionary_page_offset or 0,
                )
                for each in columns
            ]
            for columns in wanted
        ]


def _longer_histogram(chunk: Any) -> None:
    kind, (inner, counts) = chunk[3][1][16][1][3]
    chunk[3][1][16][1][3] = (kind, (inner, [*counts, 0]))


def _encrypted(chunk: Any) -> None:
    key = {1: (LIST, (BINARY, [b"id"]))}
    chunk[8] = (STRUCT, {2: (STRUCT, key)})


def _other_codec(chunk: Any) -> None:
    chunk[3][1][4] = (I32, 99)


def _negative(chunk: Any) -> None:
    chunk[3][1][9] = (I64, -5)


@pytest.mark.parametrize("change", [_longer_histogram, _negative])
def test_a_chunk_at_which_pyarrow_would_end_the_process_is_corrupt(
    change: Callable[[Any], None],
) -> None:
    data = with_footer(shard_of(long_table(40, seed=1)), change)
    with raises(CorruptShardError, shard="s", offset=0):
        cells_of_shard("s", memoryview(data), "", 1 << 30)


@pytest.mark.parametrize("change", [_encrypted, _other_codec])
def test_a_chunk_that_pyarrow_does_not_read_is_no_corrupt_one(
    change: Callable[[Any], None],
) -> None:
    data = with_footer(shard_of(long_table(40, seed=1)), change)
    with raises(UnsupportedShardError, "column id", shard="s"):
        cells_of_shard("s", memoryview(data), "", 1 << 30)


def test_pages_of_an_unknown_encoding_are_no_corrupt_ones() -> None:
    table = pa.table({"n": list(range(40))})
    data = shard_of(table, compression="none", use_dictionary=False)
    start = chunks_of(footer_of(data))[0][0].start
    header, end = read_struct(memoryview(data), start)
    header[5][1][2] = (I32, 30)
    assert len(written(header)) == end - start
    other = data[:start] + written(header) + data[end:]
    with raises(UnsupportedShardError, shard="s"):
        cells_of_shard("s", memoryview(other), "", 1 << 30)


def test_footers_may_say_anything(rng: random.Random) -> None:
    whole = footer_of(shard_of(mixed_table(40, seed=1)))
    for _ in range(MUTATIONS):
        data = bytearray(whole)
        for at in rng.sample(range(len(data)), rng.choice([1, 2, 8])):
            data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        with contextlib.suppress(ValueError, NotImplementedError):
            chunks_of(bytes(data[: rng.choice([len(data), rng.randrange(len(data))])]))


def test_a_field_that_comes_twice_is_refused() -> None:
    footer = footer_of(shard_of(long_table(20, seed=1)))
    assert footer.endswith(b"\0")
    with raises(ValueError):
        chunks_of(footer[:-1] + b"\x09\x08\x0c" + b"\0")


def elements_of(*columns: Any) -> list[Any]:
    return [{4: (BINARY, b"root"), 5: (I32, len(columns))}, *columns]


INTERVAL = {1: (I32, 7), 2: (I32, 12), 3: (I32, 1), 4: (BINARY, b"v"), 6: (I32, 21)}


def test_a_type_within_a_list_of_an_old_layout_is_refused_by_column() -> None:
    """Lists of two levels, as old writers have them: pyarrow writes three."""
    items = {4: (BINARY, b"v"), 5: (I32, 1), 6: (I32, 3)}
    schema = pa.schema([("v", pa.list_(pa.binary(12)))])
    typed = with_types_of(schema, elements_of(items, INTERVAL | {3: (I32, 2)}))
    with raises(InputError, "column v"):
        check_types(".parquet", typed)
    times = pa.schema([("v", pa.list_(pa.timestamp("ms", "UTC")))])
    time = {1: (I32, 2), 3: (I32, 2), 4: (BINARY, b"v"), 6: (I32, 9)}
    check_types(".parquet", with_types_of(times, elements_of(items, time)))  # Arrow has this type
    inner = {3: (I32, 2), 4: (BINARY, b"list"), 5: (I32, 1)}
    check_types(".parquet", with_types_of(schema, elements_of(items, inner, INTERVAL)))


def test_elements_that_are_no_columns_are_refused() -> None:
    schema = pa.schema([("v", pa.binary(12))])
    for elements in ([*elements_of(INTERVAL), INTERVAL], [INTERVAL, INTERVAL]):
        with raises(ValueError):
            with_types_of(schema, elements)
    with raises(ValueError):
        with_types_of(schema, elements_of(INTERVAL, INTERVAL))


def test_elements_may_say_anything(rng: random.Random) -> None:
    """What is read of them is clear, and is written again or refused."""
    kind = {10: (STRUCT, {16: (STRUCT, {1: (I32, 1)})})}
    schema = pa.schema([("v", pa.binary(12)), ("w", pa.binary())])
    one = {1: (I32, 6), 3: (I32, 1), 4: (BINARY, b"w")} | kind
    elements = elements_of(INTERVAL, one)
    whole = written({1: (I32, 2), 2: (LIST, (STRUCT, elements))})
    for _ in range(MUTATIONS):
        data = bytearray(whole)
        for at in rng.sample(range(len(data)), rng.choice([1, 2, 8])):
            data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        with contextlib.suppress(ValueError, InputError):
            typed = with_types_of(schema, schema_elements(bytes(data)))
            with contextlib.suppress(InputError):
                check_types(".arrow", typed)
            check_types(".parquet", typed)


ROWS = 60
COLUMNS = ["id", "image.bytes", "image.path", "text", "score", "raw"]


class Memory:
    """A shard in memory, or one of which ranges are read."""

    def __init__(self, data: bytes, *, mapped: bool) -> None:
        self._data, self._mapped, self.size_bytes = data, mapped, len(data)

    def whole(self) -> memoryview | None:
        return memoryview(self._data) if self._mapped else None

    def held(self, offset: int, length: int) -> memoryview | None:
        return None

    def read(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]


def shard(*, checksums: bool = True, columns: Sequence[str] | None = None, **options: Any) -> bytes:
    file = io.BytesIO()
    wanted: dict[str, Any] = {"row_group_size": 20, "data_page_size": 1000, "write_batch_size": 2}
    table = long_table(ROWS, seed=1)
    table = table.select(columns or table.column_names)
    pq.write_table(table, file, write_page_checksum=checksums, **{**wanted, **options})
    return file.getvalue()


def pages(data: bytes, group: int, column: int) -> Iterator[tuple[int, int]]:
    """The bytes of each page of a column chunk, without the header: (where they begin, end)."""
    footer = data[-8 - int.from_bytes(data[-8:-4], "little") : -8]
    chunk = chunks_of(footer)[group][column]
    at = chunk.start
    while at < chunk.stop:
        header, body = read_struct(memoryview(data), at)
        at = body + header[3][1]
        yield body, at


def flipped(data: bytes, at: int) -> bytes:
    torn = bytearray(data)
    torn[at] ^= 0x10
    return bytes(torn)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd", "gzip"])
@pytest.mark.sample(keep=2)
def test_a_flipped_byte_of_any_page_is_named_by_row_group_column_and_page(
    codec: str, version: str
) -> None:
    data = shard(compression=codec, data_page_version=version, use_dictionary=["id", "text"])
    looked_at = 0
    for column, path in enumerate(COLUMNS):
        for number, (start, stop) in enumerate(pages(data, 1, column)):
            if start == stop:
                continue
            torn, looked_at = flipped(data, (start + stop) // 2), looked_at + 1
            place = f"page {number} of column {path} in row group 1"
            for mapped, read in (
                (True, light_batches),
                (True, plain_batches),
                (False, plain_batches),
            ):
                table = open_table("s", Memory(torn, mapped=mapped), inflated_max=1 << 30)
                plain = plain_schema("s", table.schema)
                with raises(CorruptShardError, place, shard="s", offset=start):
                    list(read("s", table, plain, 1 << 20))
    assert looked_at > 20


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_pages_with_checksums_are_read_as_those_without(codec: str) -> None:
    found = []
    for checksums in (True, False):
        data = shard(checksums=checksums, compression=codec, use_dictionary=False)
        table = open_table("s", Memory(data, mapped=True), inflated_max=1 << 30)
        plain = plain_schema("s", table.schema)
        batches = list(light_batches("s", table, plain, 1 << 20))
        assert all(batch.leaves for batch in batches)
        found.append(sum(batch.num_rows for batch in batches))
    assert found == [ROWS, ROWS]


@pytest.mark.parametrize("stay", [True, False])
def test_a_job_ends_or_leaves_out_a_shard_with_a_torn_page(tmp_path: Path, *, stay: bool) -> None:
    (tmp_path / "in").mkdir()
    whole = shard(compression="none", use_dictionary=False)
    (tmp_path / "in" / "in-0.parquet").write_bytes(whole)
    _, stop = next(pages(whole, 0, COLUMNS.index("raw")))
    torn = flipped(whole, stop - 1)  # within a value, which is copied as it is
    (tmp_path / "in" / "in-1.parquet").write_bytes(torn)
    spec = spec_of(input_extension=".parquet", output_shard_records=500)
    moved = Moved("spill", partitions=2, values_stay=stay)
    with raises(
        CorruptShardError, "page 0 of column raw in row group 0", shard="in-1.parquet", offset=95456
    ):
        run_inline(spec, tmp_path, moved)
    report = run_inline({**spec, "corrupt_shards": "skip"}, tmp_path, moved)
    assert (report.records, count_of(report, "corrupt_shards")[0]) == (ROWS, 1)


def test_verify_names_the_page_of_an_input_that_is_torn(tmp_path: Path) -> None:
    source = tmp_path / "in" / "in-0.parquet"
    source.parent.mkdir()
    whole = shard(compression="none", use_dictionary=False, columns=["id", "text"])
    source.write_bytes(whole)
    spec = spec_of(input_extension=".parquet", output_shard_records=500)
    report = run_inline(spec, tmp_path, Moved("spill"))
    manifest = (tmp_path / "out" / str(report.manifest_name)).read_bytes()
    assert api.verify(manifest, options=RunOptions(root=tmp_path)).ok
    changed_ns = source.stat().st_mtime_ns
    _, stop = next(pages(whole, 2, 1))
    with source.open("r+b") as file:
        file.seek(stop - 1)
        file.write(b"!")
    os.utime(source, ns=(changed_ns, changed_ns))  # it looks as if it had not changed
    problem, *_ = api.verify(manifest, options=RunOptions(root=tmp_path)).problems
    assert (problem.kind, problem.shard) == ("corrupt_shard", "in-0.parquet")
    assert "page 0 of column text in row group 2" in problem.text
