"""Types of Parquet that Arrow does not have come out as they went in, or are refused by column.
DuckDB and pyarrow are the judges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dsort import api
from dsort.containers.columnar.plain_chunks import footer_of
from dsort.containers.columnar.thrift import BINARY, I32, STRUCT, ThriftStruct, written
from dsort.errors import InputError
from dsort.options import RunOptions
from tests.support.engine import spec_of
from tests.support.inline_runtime import Moved, run_inline
from tests.support.refusals import raises

SPILLED = Moved("spill", workers=2, partitions=3)
ROWS = 24
BY_DUCKDB = {
    "interval": "INTERVAL '1' MONTH + INTERVAL (i) DAY",
    "variant": "{'a': i, 'b': 'x'}::VARIANT",
    "timetz": "TIMETZ '12:34:56+02'",
    "in_list": "[INTERVAL '1' DAY]",
    "in_struct": "{'i': INTERVAL (i) HOUR, 'n': i::INTEGER}",
    "in_map": "MAP{'k': [{'x': i, 't': TIMETZ '12:34:56+02'}]}",
    "time": "TIME '12:34:56'",
    "time_ns": "TIME_NS '12:34:56.123456789'",
    "small_decimal": "(i + 0.5)::DECIMAL(9, 2)",
    "decimal": "(i + 0.5)::DECIMAL(18, 2)",
    "large_decimal": "(i + 0.5)::DECIMAL(38, 2)",
    "uuid": "uuid()",
    "json": "('{\"a\":' || i || '}')::JSON",
    "enum": "(CASE WHEN i % 2 = 0 THEN 'a' ELSE 'b' END)::ENUM('a', 'b')",
    "timestamp": "TIMESTAMP '2020-01-01' + INTERVAL (i) SECOND",
    "timestamp_ms": "TIMESTAMP_MS '2020-01-01'",
    "timestamp_ns": "TIMESTAMP_NS '2020-01-01'",
    "timestamptz": "TIMESTAMPTZ '2020-01-01 00:00:00+00'",
    "date": "DATE '2020-01-01' + i::INTEGER",
    "small": "i::TINYINT",
    "unsigned": "i::UBIGINT",
    "lists": "[[i], [i + 1], NULL]",
    "map": "MAP{'k': i}",
    "geometry": "('POINT(1 ' || i || ')')::GEOMETRY",
}


def duckdb_file(path: Path, columns: dict[str, str], *, options: str = "") -> None:
    import duckdb  # takes a while to load

    path.parent.mkdir(exist_ok=True)
    listed = "".join(f", IF(i = 7, NULL, {value}) {name}" for name, value in columns.items())
    with duckdb.connect() as database:
        rows = f"SELECT 'r' || i id{listed} FROM range({ROWS}) t(i)"
        database.sql(f"COPY ({rows}) TO '{path}' (FORMAT parquet{options})")


def described(path: Path) -> tuple[list[Any], list[Any]]:
    """What DuckDB says of the columns of a file, and its rows by their ids, as text."""
    import duckdb  # takes a while to load

    with duckdb.connect() as database:
        types = database.sql(f"DESCRIBE FROM '{path}'").fetchall()
        names = ", ".join(f"{row[0]}::VARCHAR" for row in types)
        return types, database.sql(f"SELECT {names} FROM '{path}' ORDER BY id").fetchall()


def shuffled(root: Path, **fields: Any) -> Path:
    """The one output of a shuffle."""
    shuffle = {"kind": "shuffle", "seed": "7"}
    spec = spec_of(
        input_extension=".parquet",
        key_field="id",
        algorithm=shuffle,
        **{"output_shard_records": 1000, "row_group_rows": 10, **fields},
    )
    report, bucket = run_inline(spec, root, SPILLED), root / str(spec["output_bck"])
    manifest = (bucket / str(report.manifest_name)).read_bytes()
    assert api.verify(manifest, options=RunOptions(root=root)).problems == ()
    (found,) = [path for path in bucket.iterdir() if path.is_file()]
    return found


def leaves(path: Path) -> list[tuple[str, str]]:
    """What pyarrow says of the columns of a file."""
    schema = pq.ParquetFile(path).schema
    columns = [schema.column(at) for at in range(len(schema))]
    return [(column.path, str(column.logical_type)) for column in columns]


def elements(path: Path) -> list[ThriftStruct]:
    found: list[ThriftStruct] = footer_of(memoryview(path.read_bytes()))[2][1][1]
    return found


def test_types_of_duckdb_come_out_as_they_went_in(tmp_path: Path) -> None:
    source = tmp_path / "in" / "in-0.parquet"
    duckdb_file(source, BY_DUCKDB)
    out = shuffled(tmp_path)
    assert described(out) == described(source)
    assert pq.read_schema(out).equals(pq.read_schema(source), check_metadata=True)
    types = {row[0]: row[1] for row in described(out)[0]}
    assert (types["interval"], types["timetz"], types["variant"]) == (
        "INTERVAL",
        "TIME WITH TIME ZONE",
        "VARIANT",
    )
    shown = [str(kind).replace("None", "") for _, kind in leaves(source)]
    same = {"Int(bitWidth=32, isSigned=true)": "", "Int(bitWidth=64, isSigned=true)": ""}
    assert [same.get(kind, kind) for kind in shown] == [
        same.get(kind, kind.replace("None", "")) for _, kind in leaves(out)
    ]


def annotated(path: Path, column: Any, element: ThriftStruct, **options: Any) -> None:
    """A file of pyarrow's with the columns ``id`` and ``v``, whose element says what it says in
    ``element``."""
    path.parent.mkdir(exist_ok=True)
    table = pa.table({"id": [f"{path.stem}-{at}" for at in range(len(column))], "v": column})
    pq.write_table(table, path, store_schema=False, write_statistics=False, **options)
    data = path.read_bytes()
    footer = footer_of(memoryview(data))
    found = next(each for each in footer[2][1][1] if each[4][1] == b"v")
    kept = {key: value for key, value in found.items() if key not in (6, 7, 8, 10)}
    found.clear()
    found.update(sorted((kept | element).items()))
    end = written(footer)
    size_bytes = int.from_bytes(data[-8:-4], "little")
    path.write_bytes(data[: -8 - size_bytes] + end + len(end).to_bytes(4, "little") + b"PAR1")


POINT = b"\x01\x01\0\0\0" + bytes(16)
NOTHING: ThriftStruct = {}
ZONED: ThriftStruct = {7: (STRUCT, {1: (1, True), 2: (STRUCT, {2: (STRUCT, NOTHING)})})}
ANNOTATED: dict[str, tuple[Any, ThriftStruct]] = {
    "ENUM": (pa.array([b"a", b"b"] * 9), {6: (I32, 4), 10: (STRUCT, {4: (STRUCT, NOTHING)})}),
    "ENUM, converted": (pa.array([b"a", b"b"] * 9), {6: (I32, 4)}),
    "BSON": (pa.array([b"\5\0\0\0\0"] * 9), {6: (I32, 20), 10: (STRUCT, {13: (STRUCT, NOTHING)})}),
    "INTERVAL": (pa.array([bytes(12)] * 9, pa.binary(12)), {6: (I32, 21)}),
    "TIME": (pa.array(range(9)), {6: (I32, 8), 10: (STRUCT, ZONED)}),
    "GEOMETRY": (
        pa.array([POINT] * 9),
        {10: (STRUCT, {17: (STRUCT, {1: (BINARY, b"EPSG:4326")})})},
    ),
    "GEOGRAPHY": (pa.array([POINT] * 9), {10: (STRUCT, {18: (STRUCT, NOTHING)})}),
    "GEOMETRY, long": (
        pa.array([POINT * 100] * 9),
        {10: (STRUCT, {17: (STRUCT, {1: (BINARY, b"EPSG:4326")})})},
    ),
    "logical type 25": (pa.array([b"abc"] * 9), {10: (STRUCT, {25: (STRUCT, NOTHING)})}),
}


@pytest.mark.parametrize("kind", ANNOTATED)
def test_the_elements_of_the_inputs_schema_are_those_of_the_output(
    tmp_path: Path, kind: str
) -> None:
    source = tmp_path / "in" / "in-0.parquet"
    values, element = ANNOTATED[kind]
    annotated(source, values, element)
    annotated(tmp_path / "in" / "in-1.parquet", values, element, compression="zstd")
    out = shuffled(tmp_path)
    assert leaves(out) == leaves(source)
    assert elements(out)[1:] == elements(source)[1:]
    rows = pq.read_table(out).sort_by("id")["v"]
    assert rows.to_pylist() == pq.read_table(source)["v"].to_pylist() * 2
    found = pq.ParquetFile(out).metadata.row_group(0).column(1)
    assert found.is_stats_set == (kind == "TIME")


@pytest.mark.parametrize("kind", [kind for kind in ANNOTATED if ", " not in kind])
def test_a_type_that_arrow_does_not_have_is_refused_by_column(tmp_path: Path, kind: str) -> None:
    annotated(tmp_path / "in" / "in-0.parquet", *ANNOTATED[kind])
    for suffix in (".arrow", ".arrows"):
        with raises(InputError, "column v", kind, suffix, hint=".parquet"):
            shuffled(tmp_path, output_extension=suffix)
    left = shuffled(
        tmp_path, output_extension=".arrow", transform={"steps": [{"fields": {"drop": ["v"]}}]}
    )
    assert pa.ipc.open_file(left).schema.names == ["id"]


def test_shards_whose_columns_are_other_types_in_parquet_are_distinguished(tmp_path: Path) -> None:
    zoned, plain = (tmp_path / "in" / f"in-{at}.parquet" for at in range(2))
    duckdb_file(zoned, {"t": BY_DUCKDB["timetz"]})
    duckdb_file(plain, {"t": BY_DUCKDB["time"]})
    with raises(InputError, "column t of shard in-1.parquet", "TIME WITH TIME ZONE"):
        shuffled(tmp_path)
    first = zoned.read_bytes()
    zoned.write_bytes(plain.read_bytes())
    plain.write_bytes(first)
    with raises(InputError, "column t", "shard in-1.parquet", "TIME WITH TIME ZONE"):
        shuffled(tmp_path)


def test_a_time_of_an_old_writer_keeps_its_way_of_saying_so_and_goes_to_arrow(
    tmp_path: Path,
) -> None:
    """Without a logical type a timestamp is in UTC to Parquet, and without a zone to DuckDB."""
    source = tmp_path / "in" / "in-0.parquet"
    annotated(source, pa.array(range(9)), {6: (I32, 10)})
    pq.write_table(
        pa.table({"id": ["n"], "v": pa.array([9], pa.timestamp("us", "UTC"))}),
        tmp_path / "in" / "in-1.parquet",
    )
    out = shuffled(tmp_path)
    assert described(out)[0] == described(source)[0]
    assert elements(out)[1:] == elements(source)[1:]
    found = pa.ipc.open_file(shuffled(tmp_path, output_bck="o2", output_extension=".arrow"))
    assert found.schema.field("v").type == pa.timestamp("us", "UTC")


def test_a_renamed_column_keeps_its_type(tmp_path: Path) -> None:
    source = tmp_path / "in" / "in-0.parquet"
    duckdb_file(source, {"t": BY_DUCKDB["timetz"], "i": BY_DUCKDB["interval"]})
    out = shuffled(
        tmp_path, transform={"steps": [{"fields": {"rename": {"t": "u"}, "drop": ["i"]}}]}
    )
    assert [row[:2] for row in described(out)[0]] == [
        ("id", "VARCHAR"),
        ("u", "TIME WITH TIME ZONE"),
    ]


def test_field_ids_and_what_may_be_null_stay_as_they_are(tmp_path: Path) -> None:
    def numbered(name: str, kind: pa.DataType, number: int, *, nullable: bool = True) -> pa.Field:
        return pa.field(name, kind, nullable, {"PARQUET:field_id": str(number)})

    media = pa.struct(
        [numbered("bytes", pa.binary(), 11, nullable=False), numbered("path", pa.string(), 12)]
    )
    items = pa.list_(numbered("element", pa.int32(), 21, nullable=False))
    schema = pa.schema(
        [
            numbered("id", pa.string(), 1, nullable=False),
            numbered("image", media, 10),
            numbered("items", items, 20, nullable=False),
            numbered("text", pa.string(), 30, nullable=False),
        ]
    )
    rows = [
        {
            "id": f"r{at}",
            "image": {"bytes": bytes(900), "path": None},
            "items": [at],
            "text": "x" * 900,
        }
        for at in range(ROWS)
    ]
    source = tmp_path / "in" / "in-0.parquet"
    source.parent.mkdir()
    pq.write_table(pa.Table.from_pylist(rows, schema), source)
    assert elements(shuffled(tmp_path)) == elements(source)


def test_places_of_other_coordinates_are_distinguished(tmp_path: Path) -> None:
    values, element = ANNOTATED["GEOMETRY"]
    annotated(tmp_path / "in" / "in-0.parquet", values, element)
    annotated(tmp_path / "in" / "in-1.parquet", values, {10: (STRUCT, {17: (STRUCT, NOTHING)})})
    with raises(InputError, "column v", "shard in-1.parquet"):
        shuffled(tmp_path)
