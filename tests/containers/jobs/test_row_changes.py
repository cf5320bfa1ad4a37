"""Columns of rows: steps that change them or their keys, inputs of several writers and what is one
type among them, and what is counted of tables that are left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

import dsort
from dsort import api
from dsort.errors import ConversionError, InputError, SpecError
from dsort.options import RunOptions
from dsort.spec.load import parse_spec
from tests.support.datasets import Member, Shard, write_shards
from tests.support.engine import shard_of, spec_of, verify_local
from tests.support.inline_runtime import Moved, run_inline
from tests.support.internals import manifest_name
from tests.support.refusals import raises
from tests.support.tables import MEDIA, many_types, read_table, write_table

FEATURES: dict[str, Any] = {
    "id": {"dtype": "string", "_type": "Value"},
    "jpg": {"_type": "Image"},
    "label": {"names": ["cat", "dog"], "_type": "ClassLabel"},
    "note": {"dtype": "string", "_type": "Value"},
}
WAYS = [
    Moved("spill", workers=2, partitions=3, buffer_bytes=1 << 20),
    Moved("spill", partitions=1, buffer_bytes=1 << 20, values_stay=False),
]


def rows() -> list[dict[str, Any]]:
    return [
        {
            "id": f"r{n:02d}",
            "jpg": None if n % 5 == 0 else {"bytes": bytes([n]) * 2000, "path": f"{n}.jpg"},
            "label": n % 2,
            "note": None if n % 3 else f"note {n}" * 40,
        }
        for n in range(40)
    ]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    kinds = {"id": pa.string(), "jpg": MEDIA, "label": pa.int64(), "note": pa.string()}
    described = {
        "huggingface": json.dumps({"info": {"features": FEATURES}}),
        "pandas": "{}",
        "mine": "stays",
    }
    schema = pa.schema(list(kinds.items()), described)
    (tmp_path / "in").mkdir()
    for part in range(2):
        table = pa.Table.from_pylist(rows()[part * 20 : part * 20 + 20], schema)
        options: dict[str, Any] = {"compression": "none", "use_dictionary": False}
        pq.write_table(table, tmp_path / "in" / f"in-{part}.parquet", row_group_size=9, **options)
    return tmp_path


def done(root: Path, moved: Moved, *steps: dict[str, Any], **fields: Any) -> pa.Table:
    spec = spec_of(
        input_extension=".parquet", transform={"steps": [*steps]}, overwrite=True, **fields
    )
    report = run_inline(spec, root, moved)
    verified = verify_local(root, report)
    assert (verified.problems, verified.warnings) == ((), ())
    return pa.concat_tables([pq.read_table(path) for path in listed(root / "out", report.job_id)])


def listed(bucket: Path, job_id: str) -> list[Path]:
    manifest = json.loads((bucket / manifest_name(job_id)).read_bytes())
    return [bucket / shard["name"] for shard in manifest["outputs"]]


def features_of(table: pa.Table) -> dict[str, Any]:
    return json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]


@pytest.mark.parametrize("moved", WAYS, ids=["in place", "spilled"])
def test_columns_are_kept_dropped_and_renamed_with_their_features(root: Path, moved: Moved) -> None:
    step = {"fields": {"keep": ["id", "image:jpg", "label"]}}
    table = done(root, moved, step, {"filter": 'has("image")'}, {"fields": {"drop": ["label"]}})
    assert table.column_names == ["id", "image"]
    assert features_of(table) == {"id": FEATURES["id"], "image": FEATURES["jpg"]}
    assert list(features_of(table)) == ["id", "image"]
    assert table.schema.metadata[b"mine"] == b"stays"
    assert b"pandas" not in table.schema.metadata
    wanted = [{"id": row["id"], "image": row["jpg"]} for row in rows() if row["jpg"]]
    assert table.to_pylist() == wanted


@pytest.mark.parametrize("moved", WAYS, ids=["in place", "spilled"])
def test_new_keys_come_to_the_column_of_keys(root: Path, moved: Moved) -> None:
    rekey = {"rekey": "{input}{key}/{n:03d}".replace("{input}", "")}
    table = done(root, moved, rekey, key_field="id", verify="content")
    assert table["id"].to_pylist() == [f"r{n:02d}/{n:03d}" for n in range(40)]
    assert table["note"].to_pylist() == [row["note"] for row in rows()]
    table = done(root, moved, {"slice": "::2"}, {"rekey": "k{n}"}, output_format="new-%d")
    assert table.column_names == ["id", "jpg", "label", "note", "__key__"]
    assert table["__key__"].to_pylist() == [f"k{n}" for n in range(20)]
    assert features_of(table)["__key__"] == {"dtype": "string", "_type": "Value"}
    report = run_inline(
        spec_of(
            input_extension=".parquet",
            output_extension=".arrow",
            output_bck="sorted",
            transform={"steps": [{"fields": {"keep": ["x:label"]}}, {"rekey": "{xxh3}-{n}"}]},
            algorithm={"kind": "content", "extension": ".x", "content_key_type": "int"},
        ),
        root,
        moved,
    )
    paths = listed(root / "sorted", report.job_id)
    tables = [pa.ipc.open_file(path).read_all() for path in paths]
    assert [n for table in tables for n in table["x"].to_pylist()] == [0] * 20 + [1] * 20


def test_rows_of_which_nothing_is_left_go_and_those_with_a_key_stay(root: Path) -> None:
    step = {"fields": {"keep": ["note"]}}
    table = done(root, WAYS[0], step)
    assert table.to_pylist() == [{"note": row["note"]} for row in rows() if row["note"]]
    table = done(root, WAYS[0], step, key_field="id", output_format="id-%d")
    assert table.to_pylist() == [{"id": row["id"], "note": row["note"]} for row in rows()]


def test_columns_that_cannot_be_are_refused(root: Path) -> None:
    with raises(InputError, "columns label"):
        done(root, WAYS[0], {"fields": {"rename": {"note": "label"}}})
    with raises(InputError):
        done(root, WAYS[0], {"fields": {"keep": ["nothing"]}})
    with raises(ConversionError, "k0.label", "int64"):
        done(root, WAYS[0], {"rekey": "k{n}"}, key_field="label", duplicate_keys="ignore")
    spec = {"steps": [{"fields": {"rename": {"id": "name"}}}]}
    with raises(SpecError, "id", paths=["transform.steps[0].fields"]):
        parse_spec(spec_of(input_extension=".parquet", key_field="id", transform=spec))


def test_a_result_with_another_key_is_found_out(root: Path) -> None:
    done(root, WAYS[1], {"rekey": "k{n:02d}"}, output_shard_records=40)
    path = root / "out" / "out-0.parquet"
    table = pq.read_table(path)
    keys = table["__key__"].to_pylist()
    at = table.column_names.index("__key__")
    wrong = table.set_column(at, "__key__", pa.array([keys[1], keys[0], *keys[2:]]))
    (manifest,) = (root / "out" / ".dsort").glob("*/manifest.json")
    pq.write_table(wrong.replace_schema_metadata(table.schema.metadata), path)
    verified = api.verify(manifest.read_bytes(), options=RunOptions(root=root))
    kinds = {problem.kind for problem in verified.problems}
    assert "changed_bytes" in kinds


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
    ("column", "kind", "named"),
    [
        (2, pa.large_string(), ""),
        (2, pa.string_view(), ""),
        (2, pa.dictionary(pa.int8(), pa.large_string()), ""),
        (2, pa.null(), ""),
        (1, pa.int64(), "shard in-1.parquet"),
        (1, pa.uint32(), "shard in-1.parquet"),
        (2, pa.binary(), "shard in-1.parquet"),
    ],
)
def test_texts_of_several_writers_are_one_type_and_numbers_of_other_widths_are_not(
    tmp_path: Path, column: int, kind: pa.DataType, named: str
) -> None:
    first = turned(1, pa.int32())
    write_table(tmp_path / "in" / "in-0.parquet", first)
    other = turned(column, kind)
    write_table(tmp_path / "in" / "in-1.parquet", other)
    spec = table_spec(duplicate_keys="ignore")
    if named:
        with raises(InputError, named):
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
    with raises(InputError, "shard in-2.parquet"):
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


HALVES = [{"name": "train", "fraction": 0.5}, {"name": "val", "fraction": 0.5}]


@pytest.mark.parametrize(
    "fields",
    [
        {"outputs": HALVES, "exact": True, "output_format": "{split}-%d"},
        {"outputs": HALVES, "stratify": "label", "output_format": "{split}-%d"},
        {"algorithm": {"kind": "shuffle", "seed": 1, "interleave": {"by": "label"}}},
    ],
    ids=["exact", "stratify", "interleave"],
)
def test_a_table_that_is_damaged_at_its_end_is_left_out_where_records_are_counted_first(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    for shard in range(2):
        rows = range(4000)
        table = pa.table(
            {"id": [f"{shard}-{n}" for n in rows], "label": [f"{n:0200d}" for n in rows]}
        )
        path = tmp_path / "in" / f"in-{shard}.parquet"
        options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
        pq.write_table(table, path, row_group_size=1000, **options)
    damaged = bytearray(path.read_bytes())
    damaged[damaged.rindex(b"%0200d" % 3500)] ^= 1
    path.write_bytes(damaged)
    spec = spec_of(input_extension=".parquet", key_field="id", output_shard_records=900)
    moved = Moved("spill", partitions=2)
    report = run_inline({**spec, "corrupt_shards": "skip", **fields}, tmp_path, moved)
    assert report.records == 4000
    assert verify_local(tmp_path, report).problems == ()


def test_shards_that_have_no_records_left_are_divided_exactly_into_tables(tmp_path: Path) -> None:
    shards = {f"in-{at}.tar": shard_of(*(f"{at}{key}" for key in "abcde")) for at in range(3)}
    write_shards(tmp_path / "in", {**shards, "in-3.tar": Shard(())})
    steps = {"steps": [{"filter": '!key.startsWith("1")'}]}
    fields = {"outputs": HALVES, "exact": True, "output_format": "{split}-%d", "transform": steps}
    spec = spec_of(**fields, output_extension=".parquet")
    report = run_inline(spec, tmp_path, Moved("spill"))
    assert report.records == 10
    assert verify_local(tmp_path, report).problems == ()


@pytest.mark.parametrize("suffix", [".tar", ".parquet", ".arrow"])
def test_records_that_become_rows_are_ordered_by_their_own_size(
    suffix: str, tmp_path: Path
) -> None:
    sizes = {"a" * 30: 3, "b": 5, "c" * 20: 1, "dd": 4}
    members = [Member(f"{key}.txt", b"x" * size) for key, size in sizes.items()]
    write_shards(tmp_path / "in", {"in-0.tar": Shard(tuple(members))})
    spec = spec_of(algorithm={"kind": "value", "value": "size()"}, output_extension=suffix)
    report = run_inline(spec, tmp_path, Moved("spill"))
    records = dsort.read_shards(report, options=RunOptions(root=tmp_path))
    assert [each.key for each in records] == sorted(sizes, key=lambda key: sizes[key])
    assert verify_local(tmp_path, report).problems == ()
