"""Inputs of several writers: what is one type among them, what types come through, and what is
counted of tables that are left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dsort.errors import InputError
from tests.support.engine import spec_of
from tests.support.inline_runtime import Moved, run_inline
from tests.support.tables import many_types, read_table, write_table

SPILLED = Moved("spill", workers=2, partitions=5)


def outputs(root: Path) -> list[Path]:
    return sorted(path for path in (root / "out").iterdir() if path.is_file())


def rows_of(table: pa.Table) -> list[str]:
    return sorted(repr(row) for row in table.to_pylist())


def table_spec(**fields: Any) -> dict[str, Any]:
    return spec_of(input_extension=".parquet", key_field="id", **fields)


def turned(column: int, kind: pa.DataType) -> pa.Table:
    """A small table with one column of another type."""
    table = pa.table({"id": ["c", "d"], "n": pa.array([3, 4], pa.int32()), "t": ["x", None]})
    name, values = table.column_names[column], table.column(column).to_pylist()
    values = [None, None] if pa.types.is_null(kind) else values
    return table.set_column(column, name, pa.array(values, kind))


@pytest.mark.parametrize(
    ("column", "kind", "words"),
    [
        (2, pa.large_string(), ""),
        (2, pa.string_view(), ""),
        (2, pa.dictionary(pa.int8(), pa.large_string()), ""),
        (2, pa.null(), ""),
        (1, pa.int64(), "column n of shard in-1.parquet is int64, but in the first input it is i"),
        (1, pa.uint32(), "column n of shard in-1.parquet is uint32"),
        (2, pa.binary(), "column t of shard in-1.parquet is binary"),
    ],
)
def test_texts_of_several_writers_are_one_type_and_numbers_of_other_widths_are_not(
    tmp_path: Path, column: int, kind: pa.DataType, words: str
) -> None:
    first = turned(1, pa.int32())
    write_table(tmp_path / "in" / "in-0.parquet", first)
    other = turned(column, kind)
    write_table(tmp_path / "in" / "in-1.parquet", other)
    spec = table_spec(duplicate_keys="ignore")
    if words:
        with pytest.raises(InputError, match=words):
            run_inline(spec, tmp_path, SPILLED)
        return
    run_inline(spec, tmp_path, SPILLED)
    found = pa.concat_tables(map(read_table, outputs(tmp_path)))
    assert found.schema.equals(first.schema)
    wanted = other["t"].to_pylist() + first["t"].to_pylist()
    assert sorted(map(repr, found["t"].to_pylist())) == sorted(map(repr, wanted))


def test_a_column_without_nulls_may_stand_where_nulls_may_but_not_the_other_way_round(
    tmp_path: Path,
) -> None:
    loose = turned(1, pa.int32())
    strict = loose.cast(loose.schema.set(0, pa.field("id", pa.string(), nullable=False)))
    spec = table_spec()
    write_table(tmp_path / "in" / "in-0.parquet", loose)
    write_table(tmp_path / "in" / "in-1.parquet", strict)
    assert run_inline(spec, tmp_path, SPILLED).records == 4
    (tmp_path / "in" / "in-0.parquet").rename(tmp_path / "in" / "in-2.parquet")
    with pytest.raises(InputError, match=r"in-2.parquet is string, but .* is string not null"):
        run_inline(spec, tmp_path, SPILLED, overwrite=True)


def test_types_of_all_kinds_come_out_with_the_values_that_went_in(tmp_path: Path) -> None:
    written, path = many_types(), tmp_path / "in" / "in-0.parquet"
    write_table(path, written)
    run_inline(table_spec(verify="content"), tmp_path, SPILLED)
    wanted, found = read_table(path), read_table(outputs(tmp_path)[0])
    assert found.schema.equals(wanted.schema)
    assert rows_of(found) == rows_of(wanted)


def test_rows_of_a_shard_that_is_left_out_are_not_dropped_as_well(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for shard in range(2):
        keys = [f"{shard}-{row}" for row in range(40)]
        table = pa.table({"__key__": keys, "txt": [key * 20 for key in keys]})
        path = tmp_path / "in" / f"in-{shard}.parquet"
        pq.write_table(table, path, row_group_size=10, compression="zstd", use_dictionary=False)
    last = pq.ParquetFile(path).metadata.row_group(3).column(0)
    end, data = last.data_page_offset + last.total_compressed_size, bytearray(path.read_bytes())
    data[end - 12 : end - 2] = b"\xff" * 10
    path.write_bytes(data)
    spec = spec_of(
        input_extension=".parquet",
        output_extension=".parquet",
        corrupt_shards="skip",
        ekm={"low-%d": ["0-0", "0-1", "0-2"]},
        ekm_missing_key="ignore",
    )
    del spec["output_format"]
    report = run_inline(spec, tmp_path, Moved("spill", buffer_bytes=8192))
    assert report.order.flow.read == {"": 40}
    assert report.order.flow.out == report.records
