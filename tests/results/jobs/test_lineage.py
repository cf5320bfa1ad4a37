"""The lineage: which bytes of which input a record was, and which bytes of the result it is. DuckDB
reads it."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from dsort.errors import InputError, StorageError
from tests.support.commands import CommandLine
from tests.support.container_kinds import kind_named, some_records
from tests.support.datasets import Member, Shard, write_shards
from tests.support.engine import record, run_local, shard_of, spec_of
from tests.support.internals import find_in_lineage, parse_manifest
from tests.support.memory_bucket import MemoryBucket
from tests.support.refusals import raises

pytestmark = pytest.mark.usefixtures("workers_here")

Row = dict[str, Any]


def lineage_in(bucket: Path) -> tuple[str, Path]:
    """(its name, where it is)."""
    (path,) = bucket.glob(".dsort/*/manifest.json")
    listed = parse_manifest(path.read_bytes()).lineage
    assert listed is not None
    return listed.name, bucket / listed.name


def rows_of(path: Path) -> list[Row]:
    import duckdb  # takes a while to load

    found = duckdb.sql(f"SELECT * FROM '{path}'")
    return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


def bytes_at(path: Path, start: int, size_bytes: int) -> bytes:
    data = path.read_bytes()
    data = gzip.decompress(data) if path.name.endswith(".gz") else data
    assert start + size_bytes <= len(data)
    return data[start : start + size_bytes]


def given(root: Path, suffix: str) -> int:
    """Two shards of a kind; how many records they have."""
    kind = kind_named(suffix)
    (root / "in").mkdir()
    for number in range(2):
        (root / "in" / f"s-{number}{suffix}").write_bytes(kind.write(some_records(number, 9)))
    return 18


def shuffled(suffix: str, **fields: Any) -> Row:
    return spec_of(
        input_extension=suffix,
        output_extension=suffix,
        algorithm={"kind": "shuffle", "seed": 1},
        lineage="parquet",
        **fields,
    )


@pytest.mark.sample(keep=6)
@pytest.mark.parametrize("move", ["map", "spill"])
@pytest.mark.parametrize("suffix", [".tar", ".zip", ".jsonl", ".tfrecord", ".mds", ".tar.gz"])
def test_a_record_has_the_bytes_that_its_lineage_says(
    suffix: str, move: str, tmp_path: Path
) -> None:
    if (suffix, move) == (".tar.gz", "map"):
        pytest.skip("what is decoded cannot be mapped")
    count = given(tmp_path, suffix)
    report = run_local(tmp_path, shuffled(suffix), move=move)
    rows = rows_of(lineage_in(tmp_path / "out")[1])
    assert len(rows) == count == report.records
    for row in rows:
        was = bytes_at(
            tmp_path / "in" / row["input_shard"], row["input_offset"], row["input_bytes"]
        )
        stored = bytes_at(
            tmp_path / "out" / row["output_shard"], row["output_offset"], row["output_bytes"]
        )
        assert stored == was
        assert xxhash.xxh3_64_hexdigest(stored) == row["xxh3"]
    places = [(row["output_shard"], row["output_offset"]) for row in rows]
    assert places == sorted(places)


def test_payloads_of_converted_records_are_where_the_lineage_says(tmp_path: Path) -> None:
    payloads = {key: key.encode() * 40 for key in ("a", "b", "c")}
    members = [m for key, data in payloads.items() for m in record(key, "jpg", payload=data)]
    write_shards(tmp_path / "in", {"s.tar": Shard(tuple(members))})
    run_local(tmp_path, {**shuffled(".tar"), "output_extension": ".zip"})
    for row in rows_of(lineage_in(tmp_path / "out")[1]):
        for side in ("input", "output"):
            path = tmp_path / side.removesuffix("put") / row[f"{side}_shard"]
            part = bytes_at(path, row[f"{side}_offset"], row[f"{side}_bytes"])
            assert payloads[row["key"]] in part
    run_local(tmp_path, {**shuffled(".tar"), "output_extension": ".parquet", "output_bck": "rows"})
    rows = rows_of(lineage_in(tmp_path / "rows")[1])
    assert [(r["input_shard"], r["output_offset"]) for r in rows] == [("s.tar", None)] * 3
    assert sorted(r["input_offset"] for r in rows) == [0, 1024, 2048]


def test_rows_of_tables_have_shards_and_no_offsets(tmp_path: Path) -> None:
    count = given(tmp_path, ".parquet")
    run_local(tmp_path, shuffled(".parquet", key_field="id"))
    rows = rows_of(lineage_in(tmp_path / "out")[1])
    assert len(rows) == len({row["key"] for row in rows}) == count
    assert {row["input_shard"] for row in rows} == {"s-0.parquet", "s-1.parquet"}
    assert {(row["input_offset"], row["output_offset"]) for row in rows} == {(None, None)}


def test_names_are_new_and_origins_old_where_steps_change_keys(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"s.tar": shard_of("a", "b", "c")})
    steps = [{"drop_keys": {"keys": ["a"]}}, {"rekey": "new-{key}"}]
    run_local(tmp_path, {**shuffled(".tar"), "transform": {"steps": steps}})
    rows = {row["key"]: row for row in rows_of(lineage_in(tmp_path / "out")[1])}
    assert rows.keys() == {"new-b", "new-c"}
    for key, row in rows.items():
        was = bytes_at(tmp_path / "in" / "s.tar", row["input_offset"], row["input_bytes"])
        assert was.startswith(key.removeprefix("new-").encode())


def test_where_shows_where_records_were_and_are(cli: CommandLine, tmp_path: Path) -> None:
    given(tmp_path, ".tar")
    run_local(tmp_path, shuffled(".tar"))
    rows = rows_of(lineage_in(tmp_path / "out")[1])
    first = rows[0]
    shown = cli("where", "out", first["key"])
    assert shown.code == 0
    assert f"was in  {first['input_shard']}, " in shown.out
    assert f"is in   {first['output_shard']}, " in shown.out
    several = cli("where", "out", first["key"], rows[5]["key"], "absent-key", "--json")
    assert several.code == InputError.exit_code
    said = json.loads(several.out)
    assert (said["records"], said["missing"]) == ([first, rows[5]], ["absent-key"])
    ended = cli("where", "out", "absent-key")
    assert (ended.code, ended.out) == (several.code, "")
    assert "has no record absent-key" in ended.err
    assert "hint: dsort show" in ended.err


def test_keys_that_are_no_text_are_shown_as_messages_show_them(tmp_path: Path) -> None:
    name = b"\xff\xfe.jpg".decode("utf-8", "surrogateescape")
    members = (Member(name, b"1"), Member("ü.jpg", b"2"))
    write_shards(tmp_path / "in", {"s.tar": Shard(members)})
    for kind in ("parquet", "jsonl"):
        run_local(tmp_path, {**shuffled(".tar"), "lineage": kind, "output_bck": kind})
        path = lineage_in(tmp_path / kind)[1]
        keys = {row["key"] for row in rows_of(path)}
        assert keys == {"\\xff\\xfe", "ü"}


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("lineage.parquet", b"PAR1 and nothing behind it"),
        ("lineage.parquet", b""),
        ("lineage.jsonl", b'{"key": "a"}\n'),
        ("lineage.jsonl", b"[1]\n"),
        ("lineage.jsonl", b'{"key": "a", "input_shard": 7}\n'),
        ("lineage.jsonl", b"x" * 100),
    ],
)
def test_a_lineage_that_a_stranger_changed_is_no_traceback(name: str, data: bytes) -> None:
    bucket = MemoryBucket()
    bucket.write(name, data)
    with raises(StorageError, name):
        list(find_in_lineage(bucket, name, ["a"]))


def test_a_lineage_whose_columns_have_no_names_is_no_traceback() -> None:
    bucket, file = MemoryBucket(), io.BytesIO()
    pq.write_table(pa.table({"key": ["a"], "input_shard": ["s"]}), file)
    data = file.getvalue().replace(b"input_shard", b"input_\xa4hard")
    bucket.write("lineage.parquet", data)
    with raises(StorageError, "lineage.parquet"):
        list(find_in_lineage(bucket, "lineage.parquet", ["a"]))


def test_verify_notices_a_lineage_that_was_changed_or_removed(
    cli: CommandLine, tmp_path: Path
) -> None:
    given(tmp_path, ".tar")
    run_local(tmp_path, shuffled(".tar"))
    path = lineage_in(tmp_path / "out")[1]
    assert cli("verify", "out").code == 0
    data = path.read_bytes()
    for other in (data[:-9] + b"x" + data[-8:], data[:-1]):
        path.write_bytes(other)
        ended = cli("verify", "out")
        assert ended.code != 0
        assert "lineage.parquet" in ended.out
    path.unlink()
    ended = cli("verify", "out")
    assert "lineage.parquet" in ended.out + ended.err
    assert "is not there" in ended.out + ended.err


def test_a_job_that_fails_leaves_no_lineage(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"s.tar": shard_of("a", "a")})
    with pytest.raises(InputError):
        run_local(tmp_path, {**shuffled(".tar"), "duplicate_keys": "abort"})
    assert not list(tmp_path.rglob("lineage*"))
