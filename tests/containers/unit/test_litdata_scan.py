"""LitData chunks are read by their table; what does not agree with itself, or with its index, is
refused."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from dsort.containers.litdata import LITDATA, LitData, leaf_names
from dsort.errors import ConversionError, CorruptShardError
from tests.support.internals import MemberTable
from tests.support.litdata_reader import CONFIG, litdata_chunk
from tests.support.scanning import in_windows

ITEMS = [(bytes([n]) * 90 * n, n) for n in range(6)]
CHUNK = litdata_chunk(ITEMS)
SCHEMA = LITDATA.schemas.in_file(json.dumps({"config": CONFIG}).encode())
LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
KNOWN = LITDATA.with_schema(SCHEMA)


def scanned_in_windows(data: bytes, window_bytes: int) -> MemberTable:
    return in_windows(KNOWN, "chunk-0-0.bin", data, window_bytes)


@pytest.mark.parametrize("window_bytes", [1, 9, 100, 10_000])
def test_every_window_finds_the_same_items(window_bytes: int) -> None:
    table = scanned_in_windows(CHUNK, window_bytes)
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
            scanned_in_windows(CHUNK[:end], 10_000)


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
    with pytest.raises(ValueError, match=words):
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
    with pytest.raises(ConversionError, match="0 bytes: no int has"):
        bare_of(KNOWN.with_schema(short))


def test_chunks_are_not_converted_without_their_index() -> None:
    with pytest.raises(ConversionError, match=r"without their index\.json"):
        bare_of(LITDATA)
