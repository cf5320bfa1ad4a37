"""Shuffling tables: every row comes out once, in the same bytes whatever moved it, with its schema;
and readers that are none of ours read the result."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dsort import api
from dsort.containers.columnar.blocks import RowGroup
from dsort.errors import (
    ConversionError,
    CorruptShardError,
    DuplicateError,
    InputError,
    SpecError,
    StorageError,
)
from dsort.options import RunOptions
from tests.support.engine import count_of, spec_of
from tests.support.inline_runtime import Moved, run_inline
from tests.support.internals import JobReport
from tests.support.refusals import raises
from tests.support.tables import (
    MEDIA,
    SUFFIXES,
    long_table,
    mixed_table,
    read_table,
    some_tables,
    write_plain,
    write_table,
)
from tests.support.tars import tar_of

SHUFFLE = {"kind": "shuffle", "seed": "7"}
WAYS = (
    Moved("spill", workers=1, partitions=1),
    Moved("spill", workers=2, partitions=5),
    Moved("spill", workers=1, partitions=3, buffer_bytes=12_000),
    Moved("spill", workers=3, partitions=4, nodes=3, losses=2, order_seed=5),
)
"""The third has buffers that hold no partition: rows are read in several turns."""


def tables_spec(suffix: str, **fields: Any) -> dict[str, Any]:
    """A shuffle of tables with a key column."""
    return spec_of(
        input_extension=suffix,
        algorithm=SHUFFLE,
        key_field="id",
        output_shard_records=40,
        **{"row_group_rows": 9, **fields},
    )


def outputs(root: Path) -> list[Path]:
    return sorted(path for path in (root / "out").iterdir() if path.is_file())


def rows_of(table: pa.Table, by: str = "id") -> list[str]:
    return sorted(repr(row) for row in table.to_pylist())


@pytest.mark.exhaustive
def test_long_values_are_the_same_bytes_whether_they_stay_or_are_spilled(tmp_path: Path) -> None:
    import duckdb  # these take a while to load
    import polars

    tables = [long_table(30 + 20 * shard, seed=shard) for shard in range(3)]
    for shard, table in enumerate(tables):
        options = {} if shard else {"compression": "snappy"}  # that one has to be decoded
        write_plain(tmp_path / "in" / f"in-{shard}.parquet", table, **options)
    seen, stays = set(), (True, False)
    moves = [(dataclasses.replace(each, values_stay=stay), "") for each in WAYS for stay in stays]
    for at, (moved, verify) in enumerate([*moves, (WAYS[1], "content")]):
        spec = tables_spec(".parquet", output_bck=f"out{at}", row_group_bytes=20_000)
        run_inline(spec | ({"verify": verify} if verify else {}), tmp_path, moved)
        shards = sorted((tmp_path / f"out{at}").glob("*.parquet"))
        made = pa.concat_tables(map(read_table, shards))
        assert rows_of(made) == rows_of(pa.concat_tables(tables))
        seen.add(tuple(hashlib.sha256(shard.read_bytes()).hexdigest() for shard in shards))
    assert len(seen) == 1
    columns = ["id", "text", "score", "raw"]
    for shard in shards:
        rows = pq.read_table(shard).select(columns).to_pylist()
        assert polars.read_parquet(shard).select(columns).to_dicts() == rows
        found = duckdb.sql(f"SELECT {', '.join(columns)} FROM '{shard}'").fetchall()
        assert found == [tuple(row.values()) for row in rows]


def test_row_groups_close_by_rows_and_by_bytes_and_media_are_stored_as_they_are(
    tmp_path: Path,
) -> None:
    some_tables(tmp_path / "in", ".parquet")
    run_inline(tables_spec(".parquet", row_group_rows=None), tmp_path, WAYS[1])
    metadata = pq.ParquetFile(outputs(tmp_path)[0]).metadata
    assert metadata.num_row_groups == 1  # there are media: 100 rows
    columns = {}
    for at in range(metadata.num_columns):
        column = metadata.row_group(0).column(at)
        columns[column.path_in_schema] = column
    assert columns["image.bytes"].compression == columns["image.path"].compression == "UNCOMPRESSED"
    assert not columns["image.bytes"].has_dictionary_page
    assert columns["score"].compression == "SNAPPY"
    assert columns["score"].has_offset_index
    small = tables_spec(".parquet", output_bck="small", row_group_bytes=300)
    run_inline(small | {"row_group_rows": None, "output_compression": "zstd"}, tmp_path, WAYS[1])
    for path in (tmp_path / "small").glob("*.parquet"):
        file = pq.ParquetFile(path)
        assert file.metadata.num_row_groups > 3
        assert file.metadata.row_group(0).column(0).compression == "ZSTD"


@pytest.mark.parametrize("decreasing", [False, True])
def test_rows_are_sorted_by_any_column(tmp_path: Path, *, decreasing: bool) -> None:
    everything = some_tables(tmp_path / "in", ".parquet")
    algorithm = {
        "kind": "content",
        "extension": ".score",
        "content_key_type": "float",
        "content_key_missing": "last",
        "decreasing": decreasing,
    }
    spec = tables_spec(".parquet") | {"algorithm": algorithm}
    run_inline(spec, tmp_path, WAYS[1])
    found = pa.concat_tables(map(read_table, outputs(tmp_path)))["score"].to_pylist()
    numbers = sorted(filter(None, everything["score"].to_pylist()), reverse=decreasing)
    rest = [None] * (len(found) - len(numbers))
    assert found == numbers + rest


def test_rows_without_keys_are_numbered_and_repeated_keys_are_dropped(tmp_path: Path) -> None:
    table = mixed_table(20, seed=1)
    for name in ("in-0.parquet", "in-1.parquet"):
        write_table(tmp_path / "in" / name, table)
    numbered = tables_spec(".parquet", duplicate_keys="abort", output_bck="numbered")
    assert run_inline(numbered | {"key_field": ""}, tmp_path, WAYS[1]).records == 40
    with pytest.raises(DuplicateError):
        run_inline(tables_spec(".parquet", duplicate_keys="abort"), tmp_path, WAYS[1])
    report = run_inline(tables_spec(".parquet", duplicate_keys="drop"), tmp_path, WAYS[1])
    assert (report.records, count_of(report, "duplicate_keys_dropped")[0]) == (20, 20)


def test_inputs_that_disagree_are_distinguished_by_column_and_types(tmp_path: Path) -> None:
    table = mixed_table(10, seed=1)
    write_table(tmp_path / "in" / "in-0.parquet", table)
    other = table.set_column(2, "score", table["score"].cast(pa.float32()))
    write_table(tmp_path / "in" / "in-1.parquet", other)
    with raises(InputError, "column score", "shard in-1.parquet", "float"):
        run_inline(tables_spec(".parquet"), tmp_path)
    write_table(tmp_path / "in" / "in-1.parquet", table.drop_columns(["tags"]))
    with raises(InputError, "in-1.parquet", "column tags"):
        run_inline(tables_spec(".parquet"), tmp_path)


def test_columns_in_another_order_and_other_metadata_are_no_disagreement(tmp_path: Path) -> None:
    table = mixed_table(10, seed=1)
    write_table(tmp_path / "in" / "in-0.parquet", table)
    turned = mixed_table(10, seed=2).select(table.column_names[::-1])
    write_table(tmp_path / "in" / "in-1.parquet", turned.replace_schema_metadata({"a": "b"}))
    report = run_inline(tables_spec(".parquet"), tmp_path, WAYS[1])
    assert (report.records, count_of(report, "other_metadata")[0]) == (20, 1)
    found = read_table(outputs(tmp_path)[0])
    assert found.column_names == table.column_names
    assert b"huggingface" in (found.schema.metadata or {})


def test_empty_shards_and_shards_without_rows_for_them(tmp_path: Path) -> None:
    table = mixed_table(3, seed=1)
    write_table(tmp_path / "in" / "in-0.parquet", table.slice(0, 0))
    write_table(tmp_path / "in" / "in-1.parquet", table)
    spec = tables_spec(".parquet", output_shard_count=5) | {"output_shard_records": None}
    assert run_inline(spec, tmp_path, WAYS[1]).records == 3
    found = list(map(read_table, outputs(tmp_path)))
    assert [len(each) for each in found] == [1, 1, 1, 0, 0]
    assert {each.schema for each in found} == {found[0].schema}


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("index", "wids", "index"),
        ("output_shard_size_counts", "file", "output_shard_size_counts"),
        ("duplicate_keys", "rename", "duplicate_keys"),
        ("output_compression", "lz4", "output_compression"),
        ("row_group_bytes", "2GB", "row_group_bytes"),
    ],
)
def test_what_tables_cannot_have_is_refused_at_once(
    tmp_path: Path, field: str, value: str, word: str
) -> None:
    suffix = ".tar" if field == "output_compression" else ".parquet"
    spec = spec_of(input_extension=suffix, output_shard_records=None, output_shard_size="1MB")
    with pytest.raises(SpecError) as caught:
        run_inline(spec | {field: value}, tmp_path)
    assert [problem.path for problem in caught.value.problems] == [word]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rows_are_checked_by_their_values_when_they_are_read_back(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    some_tables(tmp_path / "in", suffix)
    spec = tables_spec(suffix, verify="content")
    for moved in WAYS[1:3]:
        run_inline(spec, tmp_path, moved, overwrite=True)
    really = RowGroup.taken

    def changed(group: RowGroup) -> Any:
        rows = really(group)
        at = rows.light.schema.get_field_index("good")
        turned = pa.array([not value for value in rows.light.column(at).to_pylist()])
        light = rows.light.set_column(at, rows.light.schema.field(at), turned)
        return msgspec.structs.replace(rows, light=light)

    monkeypatch.setattr(RowGroup, "taken", changed)
    with raises(StorageError, "output shard number 0"):
        run_inline(spec, tmp_path, WAYS[1], overwrite=True)


def test_long_values_in_some_shards_only_are_gathered_with_short_ones(tmp_path: Path) -> None:
    everything = []
    for shard, size in enumerate((3, 2000, 0, 700)):
        files = [None if at % 5 == 2 else bytes([at]) * (size + at) for at in range(12)]
        media = [None if at % 7 == 3 else {"bytes": f, "path": "x"} for at, f in enumerate(files)]
        columns = {"id": [f"{shard}-{at}" for at in range(12)], "raw": files}
        table = pa.table({**columns, "image": pa.array(media, MEDIA)})
        write_table(tmp_path / "in" / f"in-{shard}.parquet", table)
        everything.append(table)
    made = set()
    for moved in WAYS:
        run_inline(tables_spec(".parquet", verify="content"), tmp_path, moved, overwrite=True)
        made.add(tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in outputs(tmp_path)))
    found = pa.concat_tables(map(read_table, outputs(tmp_path)))
    assert rows_of(found) == rows_of(pa.concat_tables(everything))
    assert len(made) == 1


# -- as members -----------------------------------------------------------------------------------

CELLS = pa.table(
    {
        "__key__": ["a", "b", "c"],
        "jpg": pa.array([{"bytes": b"J", "path": "a.jpg"}, {"bytes": b"", "path": None}, None]),
        "cls": [1, 2, None],
        "meta.json": [{"x": 1}, None, None],
    }
)


def test_rows_become_records_of_a_tar(tmp_path: Path) -> None:
    write_table(tmp_path / "in" / "in-0.parquet", CELLS)
    spec = spec_of(input_extension=".parquet", output_extension=".tar", verify="content")
    for moved in WAYS[:2]:
        run_inline(spec | {"overwrite": True}, tmp_path, moved)
        with tarfile.open(tmp_path / "out" / "out-0.tar") as tar:
            found = [(each.name, tar.extractfile(each).read()) for each in tar]  # type: ignore[union-attr]
        assert found == [
            ("a.jpg", b"J"),
            ("a.cls", b"1"),
            ("a.meta.json", b'{"x": 1}'),
            ("b.jpg", b""),
            ("b.cls", b"2"),
            ("c", b""),
        ]


@pytest.mark.parametrize(
    ("name", "values", "named"),
    [
        ("a", pa.array([2**30], pa.date32()), "column a"),
        ("a", pa.array([1], pa.duration("ns")), "duration[ns]"),
        ("a", pa.array([[1]], pa.list_(pa.time64("ns"))), "time64[ns]"),
        ("a", pa.StructArray.from_arrays([[1], [2]], names=["u", "u"]), "column a"),
        ("a", pa.array([{"bytes": None, "path": "x.jpg"}], MEDIA), "x.jpg"),
        ("a\0b", pa.array(["x"]), "in-0-000000000.a"),
        ("", pa.array(["x"]), "shard in-0.parquet"),
    ],
)
def test_a_cell_that_no_member_can_be_is_named(
    tmp_path: Path, name: str, values: pa.Array, named: str
) -> None:
    write_table(tmp_path / "in" / "in-0.parquet", pa.table({name: values}))
    spec = spec_of(input_extension=".parquet", output_extension=".tar")
    with raises(ConversionError, named):
        run_inline(spec, tmp_path, WAYS[0])


def test_two_parquet_files_one_behind_the_other_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "in" / "in-0.parquet"
    write_table(path, mixed_table(20, seed=1))
    path.write_bytes(2 * path.read_bytes())
    with raises(CorruptShardError, shard="in-0.parquet", offset=0):
        run_inline(spec_of(input_extension=".parquet"), tmp_path, WAYS[0])


def test_times_keep_their_nanoseconds(tmp_path: Path) -> None:
    times = {"t": pa.array([1], pa.time64("ns")), "at": pa.array([1], pa.timestamp("ns"))}
    write_table(tmp_path / "in" / "in-0.parquet", pa.table(times))
    run_inline(spec_of(input_extension=".parquet", output_extension=".tar"), tmp_path, WAYS[0])
    with tarfile.open(tmp_path / "out" / "out-0.tar") as tar:
        found = [tar.extractfile(each).read() for each in tar]  # type: ignore[union-attr]
    assert found == [b"00:00:00.000000001", b"1970-01-01 00:00:00.000000001"]


def test_a_result_of_tables_is_verified_by_its_rows(tmp_path: Path) -> None:
    some_tables(tmp_path / "in", ".parquet")
    report = run_inline(tables_spec(".parquet"), tmp_path, WAYS[1])
    manifest = (tmp_path / "out" / str(report.manifest_name)).read_bytes()
    options = RunOptions(root=tmp_path)
    assert api.verify(manifest, options=options).problems == ()
    torn = outputs(tmp_path)[0]
    table = read_table(torn)
    others = pa.array([None] * len(table), pa.bool_())
    for changed, kind in (
        (table.take([1, 0, *range(2, len(table))]), "order"),
        (table.set_column(5, "good", others), "changed_bytes"),
        (table.slice(1), "missing_record"),
    ):
        write_table(torn, changed)
        report_of = api.verify(manifest, options=options)
        assert kind in {problem.kind for problem in report_of.problems}


def write_tar(path: Path, members: list[tuple[str, bytes]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(tar_of(members))


def members_in(directory: Path) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for path in sorted(directory.glob("*.tar")):
        with tarfile.open(path) as tar:
            found += [(each.name, tar.extractfile(each).read()) for each in tar]  # type: ignore[union-attr]
    return found


def some_tars(directory: Path, odd: dict[str, bytes]) -> list[tuple[str, bytes]]:
    """Two tars of records with media, numbers, texts and others; ``odd``: contents of record 0."""
    everything = []
    for shard in range(2):
        members = []
        for at in range(12):
            key = f"d/{shard}-{at:02d}"
            contents = {"jpg": bytes([at]) * at, "cls": str(at - 3).encode(), "bin": b"\xff\0"}
            contents |= {"json": b'{"a":  1}', "txt": f"t\u00e9 {at}".encode()}
            contents |= {name: value for name, value in odd.items() if at == 0}
            kept = [name for name in contents if (at + len(name)) % 5 or at == 0]
            members += [(f"{key}.{name}", contents[name]) for name in kept]
        write_tar(directory / f"in-{shard}.tar", members)
        everything += members
    return everything


@pytest.mark.parametrize("odd", [{}, {"cls": b"3\n"}, {"cls": b"03", "txt": b"\xff"}])
def test_a_tar_becomes_a_table_and_the_same_members_again(
    tmp_path: Path, odd: dict[str, bytes]
) -> None:
    everything = some_tars(tmp_path / "in", odd)
    spec = spec_of(output_extension=".parquet", algorithm=SHUFFLE, output_bck="tables")
    made = set()
    for moved in (*WAYS[:2], dataclasses.replace(WAYS[2], buffer_bytes=2000)):
        run_inline(spec, tmp_path, moved, overwrite=True)
        shards = sorted((tmp_path / "tables").glob("*.parquet"))
        made.add(tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in shards))
    assert len(made) == 1
    first = pq.ParquetFile(tmp_path / "tables" / "out-0.parquet").schema_arrow
    kinds = {field.name: str(field.type) for field in first}
    assert kinds == {
        "__key__": "string",
        "jpg": "struct<bytes: binary, path: string>",
        "cls": "string" if odd else "int64",
        "bin": "binary",
        "json": "string",
        "txt": "binary" if "txt" in odd else "string",
    }
    back = spec_of(input_bck="tables", input_extension=".parquet", output_extension=".tar")
    run_inline(back, tmp_path, WAYS[1])
    assert sorted(members_in(tmp_path / "out")) == sorted(everything)


def test_a_key_map_says_which_table_the_members_of_a_tar_go_to(tmp_path: Path) -> None:
    some_tars(tmp_path / "in", {})
    reactions = {"ekm_missing_key": "warn"}
    spec = spec_of(output_extension=".parquet", Config=reactions)
    spec |= {"ekm": {"one-%d": ["^d/1-0"], "rest-%d": ["^d/0"]}}
    del spec["output_format"]
    report = run_inline(spec, tmp_path, WAYS[1])
    keys: dict[str, list[str]] = {}
    for path in outputs(tmp_path):
        found = read_table(path)["__key__"].to_pylist()
        keys.setdefault(path.name.partition("-")[0], []).extend(found)
    assert sorted(keys.pop("one")) == [f"d/1-{at:02d}" for at in range(10)]
    assert sorted(keys.pop("rest")) == [f"d/0-{at:02d}" for at in range(12)]
    assert keys == {}
    assert (report.records, count_of(report, "ekm_missing_key")[0]) == (22, 2)


def test_a_key_map_says_which_table_a_row_goes_to_by_its_key_column(tmp_path: Path) -> None:
    everything = some_tables(tmp_path / "in", ".parquet")
    spec = tables_spec(".parquet", verify="content", Config={"ekm_missing_key": "ignore"})
    spec |= {"ekm": {"one-%d": ["^1/"], "two-%d": ["^2/"]}, "ekm_default": "rest-%d"}
    del spec["output_format"]
    run_inline(spec, tmp_path, WAYS[1])
    for name, first in (("one", "1"), ("two", "2"), ("rest", "0")):
        shards = sorted((tmp_path / "out").glob(f"{name}-*.parquet"))
        found = pa.concat_tables(map(read_table, shards))["id"].to_pylist()
        assert sorted(found) == [key for key in everything["id"].to_pylist() if key[0] == first]


def test_members_that_the_first_input_has_no_column_for_are_named(tmp_path: Path) -> None:
    some_tars(tmp_path / "in", {})
    spec = spec_of(output_extension=".parquet")
    for name, content in (("x.cls", b"cat"), ("x.txt", b"\xff"), ("x.new", b""), ("x", b"")):
        write_tar(tmp_path / "in" / "in-2.tar", [(name, content)])
        with raises(ConversionError, f"{name} of shard in-2.tar"):
            run_inline(spec, tmp_path, WAYS[1])


# -- readers of others ----------------------------------------------------------------------------


@pytest.fixture
def datasets(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Hugging Face's library, which takes a second to load, without the network."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    return datasets


def shuffled_images(datasets: Any, root: Path) -> tuple[JobReport, list[tuple[str, bytes]]]:
    """A data set of images as Hugging Face writes it, shuffled; what was in it."""
    rows = []
    for number in range(12):
        file = io.BytesIO()
        Image.new("RGB", (4, 4), (number, 0, 0)).save(file, "PNG")
        rows.append((f"{number:03d}", file.getvalue()))
    features = datasets.Features({"id": datasets.Value("string"), "image": datasets.Image()})
    for shard in range(2):
        part = rows[shard * 6 : shard * 6 + 6]
        made = datasets.Dataset.from_dict(
            {
                "id": [key for key, _ in part],
                "image": [{"bytes": b, "path": None} for _, b in part],
            },
            features=features,
        )
        (root / "in").mkdir(exist_ok=True)
        made.to_parquet(root / "in" / f"in-{shard}.parquet")
    report = run_inline(tables_spec(".parquet"), root, WAYS[1])
    return report, rows


def test_hugging_face_loads_the_directory_and_decodes_its_images(
    datasets: Any, tmp_path: Path
) -> None:
    _, rows = shuffled_images(datasets, tmp_path)
    loaded = datasets.load_dataset(
        str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert isinstance(loaded.features["image"], datasets.Image)
    found = {row["id"]: row["image"].getpixel((0, 0)) for row in loaded}
    assert found == {key: (number, 0, 0) for number, (key, _) in enumerate(rows)}


def test_hugging_face_sees_images_and_classes_in_what_was_a_tar(
    datasets: Any, tmp_path: Path
) -> None:
    members = []
    for number in range(6):
        file = io.BytesIO()
        Image.new("RGB", (4, 4), (number, 0, 0)).save(file, "PNG")
        members += [(f"{number}.png", file.getvalue()), (f"{number}.cls", str(number).encode())]
    write_tar(tmp_path / "in" / "in-0.tar", members)
    run_inline(spec_of(output_extension=".parquet", algorithm=SHUFFLE), tmp_path, WAYS[1])
    loaded = datasets.load_dataset(
        str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache")
    )
    found = {row["cls"]: row["png"].getpixel((0, 0))[0] for row in loaded}
    assert found == {number: number for number in range(6)}
    assert sorted(loaded["__key__"]) == [str(number) for number in range(6)]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_duckdb_and_polars_read_the_rows_in_our_order(tmp_path: Path, suffix: str) -> None:
    import duckdb  # these take a while to load
    import polars

    everything = some_tables(tmp_path / "in", suffix)
    for path in [*(tmp_path / "in").iterdir()] if suffix == ".arrow" else ():
        table = read_table(path).drop_columns(["kind"])  # Polars reads no growing dictionaries
        path.unlink()  # it is mapped
        write_table(path, table)
    run_inline(tables_spec(suffix), tmp_path, WAYS[1])
    columns = ["id", "image", "score", "tags", "good"]
    rows = pa.concat_tables(map(read_table, outputs(tmp_path))).select(columns).to_pylist()
    assert sorted(row["id"] for row in rows) == sorted(everything["id"].to_pylist())
    read = {".parquet": polars.read_parquet, ".arrow": polars.read_ipc}
    if suffix in read:
        frames = [read[suffix](path).select(columns) for path in outputs(tmp_path)]
    else:
        frames = [polars.read_ipc_stream(path).select(columns) for path in outputs(tmp_path)]
    found = [row for frame in frames for row in frame.to_dicts()]
    # To polars a struct of nulls is a null, and the other way round.
    nothing = {"bytes": None, "path": None}
    assert [row | {"image": row["image"] or nothing} for row in found] == [
        row | {"image": row["image"] or nothing} for row in rows
    ]
    for path in outputs(tmp_path) if suffix == ".parquet" else ():
        table = duckdb.sql(f"SELECT {', '.join(columns)} FROM '{path}'").fetchall()
        assert [dict(zip(columns, row, strict=True)) for row in table] == rows[: len(table)]
        del rows[: len(table)]
