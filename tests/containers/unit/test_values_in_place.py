"""Long values of Parquet are taken from where they lie: the same that pyarrow reads, and no others;
what is not as it should be is left to pyarrow."""

from __future__ import annotations

import contextlib
import io
import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dsort.containers.columnar import thrift
from dsort.containers.columnar.blocks import RowBlocks, RowGroup, deal_out
from dsort.containers.columnar.plain_pages import IrregularPageError, LongColumn
from dsort.containers.columnar.ranges import MemorySource
from dsort.containers.columnar.reader import light_batches, open_table, plain_batches
from dsort.containers.columnar.schema import plain_schema, row_bytes
from dsort.containers.columnar.values import LightRows, leaves_of, whole_batch
from dsort.errors import CorruptShardError
from tests.support.refusals import raises
from tests.support.tables import long_table, write_plain

MUTATIONS = 150
PAGES = ("1.0", "2.0")


def light_rows(data: bytes, bytes_max: int = 30_000, kept: tuple[str, ...] = ()) -> list[LightRows]:
    table = open_table("s", MemorySource(memoryview(data)))
    plain = plain_schema("s", table.schema)
    return list(light_batches("s", table, plain, bytes_max, kept=kept))


def rows_in_memory(data: bytes, bytes_max: int = 30_000) -> pa.Table:
    """The same rows as pyarrow alone reads them."""
    table = open_table("s", MemorySource(memoryview(data)))
    plain = plain_schema("s", table.schema)
    return pa.Table.from_batches(plain_batches("s", table, plain, bytes_max), plain)


def made_whole(rows: LightRows, plain: Any) -> pa.RecordBatch:
    if not rows.leaves:
        return rows.light
    values = [
        (leaf, memoryview(b"".join(found.slices(slice(None)))))  # type: ignore[arg-type]
        for leaf, found in zip(rows.leaves, rows.values, strict=True)
    ]
    return whole_batch(rows.light, values, plain)


def shard_of(directory: Path, table: pa.Table, **options: Any) -> bytes:
    write_plain(directory / "s.parquet", table, **options)
    return (directory / "s.parquet").read_bytes()


@pytest.mark.parametrize("version", PAGES)
def test_values_in_place_are_those_that_pyarrow_reads(tmp_path: Path, version: str) -> None:
    data = shard_of(tmp_path, long_table(90, seed=1), data_page_version=version)
    found = light_rows(data)
    plain = plain_schema("s", rows_in_memory(data).schema)
    assert {leaf.column for rows in found for leaf in rows.leaves} == {1, 2, 4}
    assert all(values.in_shard for rows in found for values in rows.values)
    whole = pa.Table.from_batches([made_whole(rows, plain) for rows in found], plain)
    assert whole.equals(rows_in_memory(data))
    for rows in found:
        assert rows.row_bytes().tolist() == row_bytes(made_whole(rows, plain)).tolist()


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("snappy", {}),
        ("zstd", {"data_page_version": "2.0"}),
        ("snappy", {"data_page_version": "2.0", "use_dictionary": True}),
        ("zstd", {"use_dictionary": True, "dictionary_pagesize_limit": 5000}),
    ],
)
def test_values_in_inflated_pages_are_those_that_pyarrow_reads(
    tmp_path: Path, codec: str, options: dict[str, Any]
) -> None:
    table = long_table(90, seed=1)
    data = shard_of(tmp_path, table, compression=codec, **options)
    for bytes_max in (3_000, 30_000, 1 << 30):
        found = light_rows(data, bytes_max)
        plain = plain_schema("s", table.schema)
        assert {leaf.column for rows in found for leaf in rows.leaves} == {1, 2, 4}
        assert not any(values.in_shard for rows in found for values in rows.values)
        whole = [made_whole(rows, plain) for rows in found]
        assert pa.Table.from_batches(whole, plain).equals(rows_in_memory(data))
    alone = light_rows(shard_of(tmp_path, table.select(["raw"]), compression=codec, **options))
    plain = plain_schema("s", table.select(["raw"]).schema)
    whole = [made_whole(rows, plain) for rows in alone]
    assert pa.Table.from_batches(whole, plain)["raw"].to_pylist() == table["raw"].to_pylist()


def test_pages_that_are_not_regular_behind_others_that_are_are_left_to_pyarrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = shard_of(tmp_path, long_table(90, seed=1), compression="snappy", row_group_size=90)
    wanted, taken = rows_in_memory(data), []
    take = LongColumn.take

    def fails_at_last(column: LongColumn, count: int) -> Any:
        taken.append(count)
        if len(taken) > 7:
            raise IrregularPageError("torn")
        return take(column, count)

    monkeypatch.setattr(LongColumn, "take", fails_at_last)
    found = light_rows(data)
    assert len(taken) == 8
    assert [bool(rows.leaves) for rows in found[:2]] == [True, True]
    assert not found[-1].leaves
    made = [made_whole(rows, wanted.schema) for rows in found]
    assert pa.Table.from_batches(made, wanted.schema).equals(wanted)


def test_a_dictionary_of_more_words_than_rows_is_left_to_pyarrow() -> None:
    """The place of a word takes 64 bytes, and an empty word 4."""
    words = [random.Random(1).randbytes(200_000), *(b"%d" % number for number in range(50_000))]
    column = pa.DictionaryArray.from_arrays(np.zeros(90, np.int32), words)
    file = io.BytesIO()
    options: Any = {"dictionary_pagesize_limit": 8 << 20, "store_schema": False}
    pq.write_table(pa.table({"a": column}), file, compression="zstd", **options)
    data = file.getvalue()
    tracemalloc.start()
    try:
        light = light_rows(data, 64 << 20)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert [made_whole(rows, plain_schema("s", pa.schema({"a": pa.binary()}))) for rows in light]


def test_what_is_encoded_or_looked_into_is_read_by_pyarrow(tmp_path: Path) -> None:
    table = long_table(40, seed=2)
    for options in (
        {"compression": "gzip"},
        {"use_dictionary": ["raw", "text", "image.bytes"]},
        {"column_encoding": {"raw": "DELTA_LENGTH_BYTE_ARRAY"}},
    ):
        wanted = {"row_group_size": 17, "compression": "none", "use_dictionary": False}
        pq.write_table(table, tmp_path / "s.parquet", **(wanted | options))
        data = (tmp_path / "s.parquet").read_bytes()
        assert 4 not in {leaf.column for rows in light_rows(data) for leaf in rows.leaves}
    data = shard_of(tmp_path, table)
    kept = light_rows(data, kept=("raw", "image"))
    assert {leaf.column for rows in kept for leaf in rows.leaves} == {2}


def test_a_shard_of_nothing_but_long_values_is_read(tmp_path: Path) -> None:
    table = long_table(40, seed=3).select(["raw"])
    data = shard_of(tmp_path, table)
    found = light_rows(data)
    whole = [made_whole(rows, plain_schema("s", table.schema)) for rows in found]
    assert pa.Table.from_batches(whole)["raw"].to_pylist() == table["raw"].to_pylist()


@pytest.mark.parametrize(("by_place", "codec"), [(True, "none"), (False, "none"), (False, "zstd")])
def test_blocks_hold_values_or_their_places(tmp_path: Path, *, by_place: bool, codec: str) -> None:
    table = long_table(40, seed=4)
    data = shard_of(tmp_path, table, compression=codec)
    rows = light_rows(data, 1 << 30)
    plain = plain_schema("s", table.schema)

    partition = (np.arange(40) % 3).astype(np.int32)
    blocks = list(deal_out(rows, partition, plain, by_place=by_place))
    assert sum(block.size_bytes for block in blocks) < len(data) / 4 or not by_place
    stored = [memoryview(b"".join(block.pieces)) for block in blocks]
    group = RowGroup(plain)
    group.add(RowBlocks(stored, plain, lambda _: memoryview(data)), np.arange(40))
    order = np.argsort(partition, kind="stable")
    wanted = rows_in_memory(data).take(pa.array(order))
    assert pa.Table.from_batches([group.taken().light]).to_pylist() == wanted.to_pylist()
    if by_place:
        with raises(ValueError):
            RowBlocks(stored, plain, lambda _: memoryview(data)[: len(data) // 2])


@pytest.mark.parametrize("options", [{}, {"compression": "snappy", "use_dictionary": True}])
def test_flipped_bytes_give_what_pyarrow_reads_or_a_clear_error(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    data = shard_of(tmp_path, long_table(20, seed=5).select(["id", "image"]), **options)
    rng = random.Random(5)
    pages = [at for at in range(len(data) - 4) if data[at : at + 1] == b"\x15"]
    for number in range(MUTATIONS):
        torn = bytearray(data)
        at = rng.choice(pages) + rng.randrange(12) if number % 2 else rng.randrange(len(torn))
        torn[min(at, len(torn) - 1)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        wanted = None
        with contextlib.suppress(CorruptShardError):
            wanted = rows_in_memory(bytes(torn))
        try:
            found = light_rows(bytes(torn))
        except CorruptShardError:
            continue
        if wanted is not None:
            made = [made_whole(rows, wanted.schema) for rows in found]
            assert pa.Table.from_batches(made, wanted.schema).equals(wanted)


def test_headers_and_footers_are_written_as_they_were_read(tmp_path: Path) -> None:
    data = shard_of(tmp_path, long_table(40, seed=6), write_page_index=True)
    footer_bytes = int.from_bytes(data[-8:-4], "little")
    footer = memoryview(data)[-8 - footer_bytes : -8]
    fields, end = thrift.read_struct(footer, 0)
    assert end == footer_bytes
    assert thrift.written(fields) == bytes(footer)


def test_thrift_that_is_cut_off_or_nested_without_end_is_refused(tmp_path: Path) -> None:
    data = shard_of(tmp_path, long_table(20, seed=7))
    footer = data[-8 - int.from_bytes(data[-8:-4], "little") : -8]
    for length in range(0, len(footer), 13):
        with pytest.raises(ValueError, match="Thrift"):
            thrift.read_struct(memoryview(footer[:length]), 0)
    for hostile in (b"\x1c" * 5000, b"\x19\xfc\xff\xff\xff\xff\x0f", b"\x19" * 5000, b"\x1e"):
        with pytest.raises(ValueError, match="Thrift"):
            thrift.read_struct(memoryview(hostile), 0)


def test_the_leaves_of_a_schema_are_texts_and_binaries_of_structs_too(tmp_path: Path) -> None:
    plain = plain_schema("s", long_table(1, seed=1).schema)
    assert [(leaf.column, leaf.child) for leaf in leaves_of(plain)] == [
        (0, -1),
        (1, 0),
        (1, 1),
        (2, -1),
        (4, -1),
    ]
