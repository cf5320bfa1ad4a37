"""Parquet shards that two writers make: their rows, and what the page index says of pages."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dsort.containers.base import ContainerOptions
from dsort.containers.columnar.blocks import GroupRows
from dsort.containers.columnar.plain_chunks import footer_of
from dsort.containers.columnar.schema import plain_schema
from dsort.containers.columnar.thrift import read_struct
from dsort.containers.columnar.writer import open_writer
from tests.support.tables import MEDIA, long_table


def shard_of(
    table: pa.Table, group_rows: int, *, compression: str = "", long: tuple[str, ...] = ()
) -> bytes:
    out = bytearray()
    options = ContainerOptions(compression=compression)
    writer = open_writer(
        ".parquet", table.schema, options, lambda slices: out.extend(b"".join(slices)), long=long
    )
    plain = plain_schema("s", table.schema)
    for batch in table.combine_chunks().to_batches(group_rows):
        writer.write(GroupRows(pa.RecordBatch.from_arrays(batch.columns, schema=plain)))
    writer.close()
    return bytes(out)


def files_table(files: list[bytes | None], *, field_nullable: bool = True) -> pa.Table:
    """Files of these contents; every third row but the first is null as a whole, if it may be."""
    kind = MEDIA if field_nullable else pa.struct([pa.field("bytes", pa.binary(), False), MEDIA[1]])
    values = [
        None if field_nullable and at % 3 == 2 else {"bytes": file, "path": str(at)}
        for at, file in enumerate(files)
    ]
    schema = pa.schema([("id", pa.int64()), pa.field("file", kind, field_nullable)])
    return pa.table([pa.array(range(len(files))), pa.array(values, kind)], schema=schema)


@pytest.mark.parametrize(
    "table",
    [
        long_table(90, seed=1),
        files_table([b"x" * (700 * at) for at in range(40)]),
        files_table([b"x" * at for at in range(40)], field_nullable=False),
        files_table([None] * 20),
        files_table([b""] * 20, field_nullable=False),
        files_table([bytes(700_000), None, bytes(2_500_000), b"y"] * 2),
        files_table([]),
    ],
)
def test_what_is_written_is_what_pyarrow_reads(table: pa.Table) -> None:
    data = shard_of(table, 17, compression="zstd")
    file = pq.ParquetFile(io.BytesIO(data))
    found = file.read()
    found.validate(full=True)
    assert found.schema.equals(table.schema, check_metadata=True)
    assert found.to_pylist() == table.to_pylist()
    assert file.metadata.num_row_groups == -(-len(table) // 17)


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip", "brotli", "lz4"])
def test_long_columns_are_compressed_page_by_page(compression: str) -> None:
    table = long_table(90, seed=1)
    long = ("text", "raw", "absent")
    for columns in (table.column_names, ["raw"], ["text", "score"]):
        chosen = table.select(columns)
        data = shard_of(chosen, 37, compression=compression, long=long)
        file = pq.ParquetFile(io.BytesIO(data))
        found = file.read()
        found.validate(full=True)
        assert found.schema.equals(chosen.schema, check_metadata=True)
        assert found.to_pylist() == chosen.to_pylist()
        for at in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(at)
            chunks = [group.column(number) for number in range(group.num_columns)]
            assert group.total_byte_size == sum(each.total_uncompressed_size for each in chunks)
            for chunk in chunks:
                if chunk.path_in_schema in long and compression != "lz4":
                    assert not chunk.has_dictionary_page
                    assert chunk.compression in (compression.upper(), "UNCOMPRESSED")
    pages = [b"y" * 700_000, None, b"x" * 2_500_000, b"", bytes(400_000), b"z"] * 3
    large = pa.table({"raw": pa.array(pages), "id": list(range(18))})
    data = shard_of(large, 11, compression=compression, long=long)
    assert pq.read_table(io.BytesIO(data)).to_pylist() == large.to_pylist()


def test_the_page_index_says_where_the_pages_of_all_columns_are() -> None:
    table = files_table([bytes(300_000 + at) for at in range(40)])
    data = memoryview(shard_of(table, 17))
    groups = footer_of(data)[4][1][1]
    assert [group[3][1] for group in groups] == [17, 17, 6]
    for group in groups:
        chunks = group[1][1][1]
        assert group[5][1] == min(chunk[3][1][9][1] for chunk in chunks)
        assert group[6][1] == sum(chunk[3][1][7][1] for chunk in chunks)
        for chunk in chunks:
            rows, size_bytes = [], 0
            for page in read_struct(data, chunk[4][1])[0][1][1][1]:
                header, body = read_struct(data, page[1][1])
                assert body + header[3][1] == page[1][1] + page[2][1]
                rows.append((page[3][1], header[5][1][1][1]))
                size_bytes += page[2][1]
            assert [first for first, _ in rows] == [
                sum(n for _, n in rows[:at]) for at in range(len(rows))
            ]
            assert sum(count for _, count in rows) == group[3][1]
            path = b".".join(chunk[3][1][3][1][1])
            if path == b"file.bytes":
                assert len(rows) == {17: 3, 6: 1}[group[3][1]]
                assert size_bytes == chunk[3][1][7][1]
            else:
                assert (path == b"id") == (6 in chunk)
