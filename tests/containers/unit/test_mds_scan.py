"""MDS shards and LitData chunks are read by their tables; what does not agree with itself, or with
its index, is refused."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest

from dsort.containers.base import ContainerOptions, Scan
from dsort.containers.litdata import LITDATA, LitData, leaf_names
from dsort.containers.mds import MDS, Columns
from dsort.errors import ContentKeyError, ConversionError, CorruptShardError
from tests.support.internals import BytesColumn, MemberTable
from tests.support.litdata_reader import CONFIG, litdata_chunk
from tests.support.mds_by_the_text import samples_of_shard
from tests.support.mds_writer import mds_shard
from tests.support.refusals import raises
from tests.support.scanning import in_windows

COLUMNS = {"a": "str", "image": "bytes", "n": "int", "z": "uint8"}
SAMPLES: list[dict[str, Any]] = [
    {"a": f"key {n}", "image": bytes(37 * n), "n": n - 2, "z": n} for n in range(7)
]
SHARD = mds_shard(COLUMNS, SAMPLES)


def scanned_in_windows(data: bytes, window_bytes: int, key_field: str = "") -> MemberTable:
    container = MDS.with_options(ContainerOptions(key_field=key_field))
    return in_windows(container, "s.mds", data, window_bytes)


@pytest.mark.parametrize("window_bytes", [1, 9, 100, 10_000])
@pytest.mark.parametrize(
    ("key_field", "first"), [("", b"s-000000000"), ("a", b"key 0"), ("n", b"-2")]
)
def test_every_window_finds_the_same_samples(
    window_bytes: int, key_field: str, first: bytes
) -> None:
    table = scanned_in_windows(SHARD, window_bytes, key_field)
    assert len(table) == 7
    assert table.names[0] == first + b".mds"
    assert int(table.range_start[0] + table.range_length.sum()) == len(SHARD)
    assert json.loads(table.own.schema)["column_names"] == ["a", "image", "n", "z"]


def test_a_shard_without_samples_keeps_its_columns() -> None:
    table = MDS.scan("s.mds", mds_shard(COLUMNS, []))
    assert (len(table), Columns.of_schema(table.own.schema).names) == (0, ("a", "image", "n", "z"))


def test_a_shard_cut_short_is_refused_wherever_it_ends() -> None:
    for end in range(len(SHARD)):
        with pytest.raises(CorruptShardError):
            scanned_in_windows(SHARD[:end], 10_000)


def test_no_damage_to_the_table_and_the_columns_leads_to_other_samples() -> None:
    draw = random.Random(5)
    whole = MDS.scan("s", SHARD)
    head = int(whole.range_start[0])
    refused = 0
    for _ in range(600):
        data = bytearray(SHARD)
        data[draw.randrange(head)] ^= 1 << draw.randrange(8)
        try:
            table = MDS.scan("s", bytes(data))
        except CorruptShardError:
            refused += 1
        else:  # another name, encoding or setting: the ranges are the same
            assert (table.range_start == whole.range_start).all()
    assert refused > 200


def test_a_damaged_size_in_a_sample_is_found_in_its_sample() -> None:
    for start in MDS.scan("s", SHARD).range_start.tolist():
        data = bytearray(SHARD)
        data[start + 4] ^= 1
        with raises(CorruptShardError, shard="s", offset=start):
            MDS.scan("s", bytes(data))


def hostile(config: object, samples: int = 0, table: list[int] | None = None) -> bytes:
    data = config if isinstance(config, bytes) else json.dumps(config).encode()
    first = 4 + 4 * (samples + 1) + len(data)
    offsets = table or [first] * (samples + 1)
    return struct.pack(f"<I{len(offsets)}I", samples, *offsets) + data


GOOD = {
    "format": "mds",
    "version": 2,
    "column_names": ["a"],
    "column_encodings": ["str"],
    "column_sizes": [None],
}


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        (b"", 0),
        (struct.pack("<I", 0xFFFFFFFF) + bytes(100), 0),
        (hostile(b"not json"), 8),
        (hostile(b"[" * 100_000), 8),
        (hostile([]), 8),
        (hostile(GOOD | {"version": 1}), 8),
        (hostile(GOOD | {"format": "csv"}), 8),
        (hostile(GOOD | {"column_names": "a"}), 8),
        (hostile(GOOD | {"column_names": ["a"] * 5000}), 8),
        (hostile(GOOD | {"column_names": ["a", "b"]}), 8),
        (hostile(GOOD | {"column_sizes": [True]}), 8),
        (hostile(GOOD | {"column_sizes": [-1]}), 8),
        (hostile(GOOD | {"column_encodings": ["int"], "column_sizes": [4]}), 8),
        (
            hostile(GOOD | {"column_names": [], "column_encodings": [], "column_sizes": []}, 1),
            12,
        ),
        (hostile(GOOD, 1), 119),
        (hostile(b" " * ((1 << 20) + 1)), 4),
        (hostile(GOOD, 0, [3]), 4),
        (hostile(GOOD, 1, [50, 40]), 8),
    ],
)
def test_hostile_heads_are_refused(data: bytes, offset: int) -> None:
    with raises(CorruptShardError, shard="s", offset=offset):
        MDS.scan("s", data)


def test_a_shard_longer_than_its_offsets_can_say_is_refused_unread() -> None:
    with raises(CorruptShardError, "4 GiB", shard="s", offset=0):
        Scan(MDS.scanner("s", 1 << 32))


@pytest.mark.parametrize("column", ["b", "f"])
def test_a_column_that_is_no_key_is_refused(column: str) -> None:
    data = mds_shard({"a": "str", "f": "float64"}, [{"a": "x", "f": 1.5}])
    with raises(ContentKeyError, f"column {column}"):
        scanned_in_windows(data, 100, column)


def test_an_empty_key_is_refused_by_its_sample() -> None:
    data = mds_shard({"a": "str"}, [{"a": "x"}, {"a": ""}])
    with raises(ContentKeyError, "sample 1", "shard s.mds"):
        scanned_in_windows(data, 100, "a")


def test_a_head_is_as_long_as_planned_and_readers_find_the_samples_behind_it() -> None:
    table = MDS.scan("s", SHARD)
    container = MDS.with_schema(table.own.schema)
    order = [4, 0, 6]
    samples = [
        SHARD[start : start + size]
        for start, size in zip(
            table.range_start[order].tolist(), table.range_length[order].tolist(), strict=True
        )
    ]
    head = container.head.of(np.array(list(map(len, samples)), np.int64))
    assert len(head) == container.head.size_bytes(3)
    _, found = samples_of_shard(head + b"".join(samples))
    assert found == [SAMPLES[row] for row in order]


def test_columns_become_members() -> None:
    columns = {"__key__": "str", "a/b": "bytes", "cls": "int", "f": "float32", "j": "json"}
    data = mds_shard(
        columns, [{"__key__": "k", "a/b": b"x", "cls": -5, "f": 0.1, "j": [1]}, ]
    )  # fmt: skip
    container = MDS.with_options(ContainerOptions(key_field="__key__"))
    table = container.bare(container.scan("s", data), lambda at, size: data[at : at + size])
    found = {}
    for row, name in enumerate(table.names.tolist()):
        start, size = int(table.range_start[row]), int(table.range_length[row])
        found[name] = table.literals.get(row, data[start : start + size])
    assert found == {b"k.a.b": b"x", b"k.cls": b"-5", b"k.f": b"0.1", b"k.j": b"[1]"}
    assert table.own.schema == ""


def test_a_column_without_a_name_is_a_member_and_no_key() -> None:
    data = mds_shard({"": "str", "b": "bytes"}, [{"": "value", "b": b"x"}])
    table = MDS.bare(MDS.scan("s", data), lambda at, size: data[at : at + size])
    assert table.names.tolist() == [b"s-000000000", b"s-000000000.b"]


def test_no_sample_gets_another_name() -> None:
    with raises(ConversionError, "b.mds"):
        MDS.renamed(BytesColumn.of([b""]), BytesColumn.of([b"b.mds"]))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"a": "str"}, "has no column n"),
        ({"a": "str", "n": "int", "o": "int"}, "has a column o"),
        ({"a": "bytes", "n": "int"}, "has column a as bytes, not str"),
    ],
)
def test_two_schemas_differ_in_words(other: dict[str, str], words: str) -> None:
    schema = MDS.scan("s", mds_shard({"a": "str", "n": "int"}, [])).own.schema
    assert MDS.schemas.difference(schema, MDS.scan("s", mds_shard(other, [])).own.schema) == words


ITEMS = [(bytes([n]) * 90 * n, n) for n in range(6)]
CHUNK = litdata_chunk(ITEMS)
SCHEMA = LITDATA.schemas.in_file(json.dumps({"config": CONFIG}).encode())
LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
KNOWN = LITDATA.with_schema(SCHEMA)


def chunk_in_windows(data: bytes, window_bytes: int) -> MemberTable:
    return in_windows(KNOWN, "chunk-0-0.bin", data, window_bytes)


@pytest.mark.parametrize("window_bytes", [1, 9, 100, 10_000])
def test_every_window_finds_the_same_items(window_bytes: int) -> None:
    table = chunk_in_windows(CHUNK, window_bytes)
    assert len(table) == 6
    assert int(table.range_start[0] + table.range_length.sum()) == len(CHUNK)
    assert table.own.schema == SCHEMA
    assert table.names[5] == b"chunk-0-0-000000005.bin"


def test_a_chunk_without_items_is_whole() -> None:
    assert len(KNOWN.scan("c.bin", litdata_chunk([]))) == 0


def test_a_chunk_can_be_read_without_its_index() -> None:
    table = LITDATA.scan("c.bin", CHUNK)
    assert (len(table), table.own.schema) == (6, "")


def test_a_chunk_cut_short_is_refused_wherever_it_ends() -> None:
    for end in range(len(CHUNK)):
        with pytest.raises(CorruptShardError):
            chunk_in_windows(CHUNK[:end], 10_000)


def test_each_flipped_bit_of_the_table_and_of_the_sizes_is_found() -> None:
    starts = KNOWN.scan("c", CHUNK).range_start.tolist()
    places = [*range(starts[0]), *(start + at for start in starts for at in range(8))]
    for at in places:
        for bit in (0, 6):
            data = bytearray(CHUNK)
            data[at] ^= 1 << bit
            with pytest.raises(CorruptShardError):
                KNOWN.scan("c", bytes(data))


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (b"", "no index"),
        (b"[" * 100_000, "no index"),
        (b"[]", "no index"),
        (b"{}", "no index"),
        (b'{"config": []}', "no index"),
        (json.dumps({"config": CONFIG | {"compression": "zstd"}}).encode(), "compression"),
        (json.dumps({"config": CONFIG | {"encryption": {"a": 1}}}).encode(), "encryption"),
        (json.dumps({"config": CONFIG | {"data_format": "bytes"}}).encode(), "data_format"),
        (json.dumps({"config": CONFIG | {"data_format": []}}).encode(), "data_format"),
        (json.dumps({"config": CONFIG | {"data_format": ["a"] * 5000}}).encode(), "data_format"),
    ],
)
def test_an_index_that_does_not_say_what_items_are_is_refused(index: bytes, words: str) -> None:
    with raises(ValueError):
        LITDATA.schemas.in_file(index)


@pytest.mark.parametrize("chunks", [b"[],", b'{"a":1},', b'"aaaa",'])
def test_what_an_index_lists_of_its_chunks_takes_no_memory(chunks: bytes) -> None:
    config = json.dumps(CONFIG).encode()
    index = b'{"chunks": [' + chunks * 400_000 + b'0], "config": ' + config + b"}"
    tracemalloc.start()
    try:
        assert LITDATA.schemas.in_file(index) == SCHEMA
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_config_is_as_long_as_its_leaves_can_need() -> None:
    most = json.dumps(
        [1, {"type": "builtins.list", "context": None, "children_spec": [LEAF] * 4096}]
    )
    whole = {"config": CONFIG | {"data_format": ["bytes"] * 4096, "data_spec": most}}
    assert LITDATA.schemas.in_file(json.dumps(whole).encode())
    whole["config"]["data_spec"] += " " * (1 << 20)
    with pytest.raises(ValueError, match="config"):
        LITDATA.schemas.in_file(json.dumps(whole).encode())


def bare_of(container: LitData, chunk: bytes = CHUNK) -> MemberTable:
    return container.bare(container.scan("c", chunk), lambda at, size: chunk[at : at + size])


def test_leaves_become_members_that_are_called_as_the_index_calls_them() -> None:
    table = bare_of(KNOWN)
    assert table.names.tolist()[-2:] == [b"c-000000005.0", b"c-000000005.1"]
    tree = {
        "type": "builtins.dict",
        "context": '["image", "label"]',
        "children_spec": [{"type": None, "context": None, "children_spec": []}] * 2,
    }
    spec = {**CONFIG, "data_spec": json.dumps([1, tree])}
    named = KNOWN.with_schema(KNOWN.schemas.in_file(json.dumps({"config": spec}).encode()))
    table = bare_of(named)
    assert table.names.tolist()[-2:] == [b"c-000000005.image", b"c-000000005.label"]
    assert table.literals[11] == b"5"
    start, size = int(table.payload_start[10]), int(table.payload_bytes[10])
    assert CHUNK[start : start + size] == ITEMS[5][0]


def test_nested_leaves_have_the_names_of_all_that_they_are_in() -> None:
    leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
    pair = {"type": "builtins.tuple", "context": "null", "children_spec": [leaf, leaf]}
    tree = {"type": "builtins.dict", "context": '["a", "b"]', "children_spec": [leaf, pair]}
    assert leaf_names(json.dumps([1, tree]), 3) == ["a", "b.0", "b.1"]


@pytest.mark.parametrize(
    "spec",
    [None, 5, "", "[1]", "[1, 5]", "[1, {}]", '[1, {"type": "builtins.dict"}]', "[" * 100_000],
)
def test_leaves_that_a_spec_does_not_name_are_numbered(spec: object) -> None:
    assert leaf_names(spec, 2) == ["0", "1"]


def test_a_number_of_another_size_is_refused() -> None:
    short = KNOWN.schemas.in_file(
        json.dumps({"config": CONFIG | {"data_format": ["int"] * 2}}).encode()
    )
    with raises(ConversionError, "0 bytes", "int"):
        bare_of(KNOWN.with_schema(short))


def test_chunks_are_not_converted_without_their_index() -> None:
    with raises(ConversionError, "index.json"):
        bare_of(LITDATA)
