"""Rows of tables as records: read in order or in any order, they are what the scan of all of them
finds."""

from __future__ import annotations

import datetime
import io
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dsort
from dsort.containers.columnar.cells import cells_of_shard
from dsort.containers.columnar.container import PARQUET
from dsort.containers.inspect import summarise
from dsort.errors import InputError
from dsort.shard_contents import inspect_object, open_contents
from dsort.storage.directory.bucket import LocalBucket
from tests.support.internals import NoSuchRecordError, adjacent_records
from tests.support.refusals import raises

COUNT = 1000


def table(*, keyed: bool) -> pa.Table:
    rng = random.Random(5)
    numbers = range(COUNT)
    columns: dict[str, pa.Array] = {
        "number": pa.array(numbers),
        "text": pa.array([f"line {n}" if n % 3 else None for n in numbers]),
        "class": pa.array([f"c{n % 7}" for n in numbers]).dictionary_encode(),
        "picture": pa.array(
            [{"bytes": rng.randbytes(n % 50), "path": None} if n % 5 else None for n in numbers]
        ),
        "items": pa.array([[n] * (n % 4) for n in numbers]),
        "at": pa.array([datetime.datetime(2024, 1, 1, 0, n % 60) for n in numbers]),
        "share": pa.array([n / 7 for n in numbers]),
        "none": pa.nulls(COUNT),
    }
    if keyed:
        columns["__key__"] = pa.array([f"dir/k{n // 2}" for n in numbers])
    return pa.table(columns)


def parquet(made: pa.Table) -> bytes:
    file = io.BytesIO()
    pq.write_table(made, file, row_group_size=130, compression="zstd")
    return file.getvalue()


def arrow(made: pa.Table) -> bytes:
    file = io.BytesIO()
    with pa.ipc.new_file(file, made.schema) as writer:
        writer.write_table(made, 90)
    return file.getvalue()


def stream(made: pa.Table) -> bytes:
    file = io.BytesIO()
    with pa.ipc.new_stream(file, made.schema) as writer:
        writer.write_table(made, 90)
    return file.getvalue()


@pytest.fixture(params=[(parquet, False), (parquet, True), (arrow, True), (stream, False)])
def shard(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """One that is not held in memory: it is longer than the buffer of ``dsort.open``."""
    written: Callable[[pa.Table], bytes]
    written, keyed = request.param
    rng = random.Random(1)
    pad = pa.array([rng.randbytes(1500) for _ in range(COUNT)])
    made = table(keyed=keyed).append_column("pad", pad)
    path = tmp_path / "s.parquet"
    path.write_bytes(written(made))
    return path


Records = list[tuple[str, dict[str, bytes]]]


def scanned(path: Path) -> Records:
    members = cells_of_shard(path.name, memoryview(path.read_bytes()), "")
    found, records = [], adjacent_records(members)
    for number, key_bytes in enumerate(records.key_bytes.tolist()):
        rows = records.rows[records.offsets[number] : records.offsets[number + 1]].tolist()
        key = members.names[rows[0]][:key_bytes].decode()
        found.append((key, {members.names[row].decode(): members.literals[row] for row in rows}))
    return found


def test_rows_in_any_order_are_those_that_a_scan_finds(shard: Path) -> None:
    wanted = scanned(shard)
    with dsort.open(shard) as opened:
        assert len(opened) == COUNT
        assert opened.keys == [key for key, _ in wanted]
        order = [*range(40), *random.Random(3).sample(range(COUNT), 60), *range(COUNT - 300, COUNT)]
        for number in order:
            record = opened[number]
            assert (record.key, record.members) == wanted[number]
            assert record.sizes == {name: len(each) for name, each in wanted[number][1].items()}
            assert record["number"] == str(number).encode()
            assert record.read("pad", 3, 5) == record["pad"][3:8]
        key = wanted[700][0]
        first = [each for each, _ in wanted].index(key)
        assert (opened[key].index, opened.numbers_of(key)[0]) == (first, first)
        assert key in opened
        assert "nowhere" not in opened
        with raises(NoSuchRecordError, key + "0000"):
            opened[key + "0000"]


def test_rows_in_order_are_those_that_a_scan_finds(shard: Path) -> None:
    found = [(record.key, record.members) for record in dsort.read_shards(shard)]
    assert found == scanned(shard)


def test_cells_are_found_by_their_names(shard: Path) -> None:
    wanted = scanned(shard)
    with open_contents(LocalBucket(shard.parent), shard.name) as contents:
        names = [name for _, members in wanted for name in members]
        assert [name for name, _ in contents.files()] == names
        key, members = wanted[501]
        first = next(number for number, (each, _) in enumerate(wanted) if each == key)
        part = contents.named(f"{key}.number")
        assert b"".join(contents.payloads(part)) == str(first).encode()
        assert part.others == sum(each == key for each, _ in wanted) - 1
        assert b"".join(contents.payloads(contents.numbered(501))) == b"".join(members.values())
        assert b"".join(contents.payloads(contents.named(key))) == b"".join(
            wanted[first][1].values()
        )
        for nothing in (f"{key}.none", f"{key}.nothing", "nothing", f"s-{'9' * 5000}"):
            with raises(InputError, nothing[:60]):
                contents.named(nothing)


def test_rows_of_nulls_alone_are_empty_members(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    path.write_bytes(parquet(pa.table({"__key__": ["a", "b"], "x": [None, 1]})))
    with dsort.open(path) as opened:
        assert [each.members for each in opened] == [{"a": b""}, {"b.x": b"1"}]
    with open_contents(LocalBucket(tmp_path), path.name) as contents:
        assert [*contents.files()] == [("a", 0), ("b.x", 1)]
        assert contents.named("a").rows == (0,)


def test_a_table_is_summarised_as_a_scan_of_it_would_be(shard: Path) -> None:
    members = cells_of_shard(shard.name, memoryview(shard.read_bytes()), "")
    wanted = summarise(shard.name, PARQUET, shard.stat().st_size, members, {})
    found = inspect_object(LocalBucket(shard.parent), shard.name)
    assert found.records == wanted.records
    assert found.records[7:9] == wanted.records[7:9]
    assert found.to_dict(with_records=False) == wanted.to_dict(with_records=False)
    assert found.record_bytes == wanted.record_bytes


def test_unsafe_and_dotted_keys_of_tables_are_summarised_as_others(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    keys = ["/etc/x", "a.b", "a.b", "../up", "plain", "nothing"]
    values = [1, -20, True, 4, 5, None]
    path.write_bytes(parquet(pa.table({"__key__": keys, "x": pa.array(values, pa.float64())})))
    found = inspect_object(LocalBucket(tmp_path), path.name)
    members = cells_of_shard(path.name, memoryview(path.read_bytes()), "")
    wanted = summarise(path.name, PARQUET, path.stat().st_size, members, {})
    assert found.to_dict() == wanted.to_dict()
    assert {each.kind for each in found.oddities} >= {"unsafe_names"}
