"""CRC-32s of Parquet's pages: where a writer put them, no page that is not as it was is taken."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dsort import api
from dsort.containers.columnar.footers import chunks_of
from dsort.containers.columnar.reader import light_batches, open_table, plain_batches
from dsort.containers.columnar.schema import plain_schema
from dsort.containers.columnar.thrift import read_struct
from dsort.errors import CorruptShardError
from dsort.options import RunOptions
from tests.support.engine import count_of, spec_of
from tests.support.inline_runtime import Moved, run_inline
from tests.support.tables import long_table

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
            words = re.escape(f"page {number} of column {path} in row group 1 has not its CRC-32")
            for mapped, read in (
                (True, light_batches),
                (True, plain_batches),
                (False, plain_batches),
            ):
                table = open_table("s", Memory(torn, mapped=mapped), inflated_max=1 << 30)
                plain = plain_schema("s", table.schema)
                with pytest.raises(CorruptShardError, match=words) as refused:
                    list(read("s", table, plain, 1 << 20))
                assert (refused.value.shard, refused.value.offset) == ("s", start)
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
    with pytest.raises(CorruptShardError, match="page 0 of column raw in row group 0"):
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
