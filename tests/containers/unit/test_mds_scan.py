"""MDS shards are read by their table and columns; what does not agree with itself is refused."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import numpy as np
import pytest

from dsort.containers.base import ContainerOptions, Scan
from dsort.containers.mds import MDS, Columns
from dsort.errors import ContentKeyError, ConversionError, CorruptShardError
from tests.support.internals import BytesColumn, MemberTable
from tests.support.mds_by_the_text import samples_of_shard
from tests.support.mds_writer import mds_shard
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
    for row, start in enumerate(MDS.scan("s", SHARD).range_start.tolist()):
        data = bytearray(SHARD)
        data[start + 4] ^= 1
        with pytest.raises(CorruptShardError, match="do not add up") as caught:
            MDS.scan("s", bytes(data))
        assert caught.value.offset == start, row


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
    ("data", "words"),
    [
        (b"", "ends here"),
        (struct.pack("<I", 0xFFFFFFFF) + bytes(100), "longer than the shard"),
        (hostile(b"not json"), "no JSON"),
        (hostile(b"[" * 100_000), "no JSON"),
        (hostile([]), "no object"),
        (hostile(GOOD | {"version": 1}), "version 2"),
        (hostile(GOOD | {"format": "csv"}), "version 2"),
        (hostile(GOOD | {"column_names": "a"}), "no columns"),
        (hostile(GOOD | {"column_names": ["a"] * 5000}), "too many"),
        (hostile(GOOD | {"column_names": ["a", "b"]}), "columns that are none"),
        (hostile(GOOD | {"column_sizes": [True]}), "columns that are none"),
        (hostile(GOOD | {"column_sizes": [-1]}), "columns that are none"),
        (hostile(GOOD | {"column_encodings": ["int"], "column_sizes": [4]}), "another size"),
        (
            hostile(GOOD | {"column_names": [], "column_encodings": [], "column_sizes": []}, 1),
            "but no columns",
        ),
        (hostile(GOOD, 1), "shorter than its columns"),
        (hostile(b" " * ((1 << 20) + 1)), "more than 1,048,576"),
        (hostile(GOOD, 0, [3]), "begins in its head"),
        (hostile(GOOD, 1, [50, 40]), "ends before it begins"),
    ],
)
def test_hostile_heads_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(CorruptShardError, match=words):
        MDS.scan("s", data)


def test_a_shard_longer_than_its_offsets_can_say_is_refused_unread() -> None:
    with pytest.raises(CorruptShardError, match="4 GiB"):
        Scan(MDS.scanner("s", 1 << 32))


@pytest.mark.parametrize(
    ("column", "words"), [("b", "has no column b"), ("f", "is float64, which is no key")]
)
def test_a_column_that_is_no_key_is_refused(column: str, words: str) -> None:
    data = mds_shard({"a": "str", "f": "float64"}, [{"a": "x", "f": 1.5}])
    with pytest.raises(ContentKeyError, match=words):
        scanned_in_windows(data, 100, column)


def test_an_empty_key_is_refused_by_its_sample() -> None:
    data = mds_shard({"a": "str"}, [{"a": "x"}, {"a": ""}])
    with pytest.raises(ContentKeyError, match=r"sample 1 of shard s\.mds has no key in a"):
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
    with pytest.raises(ConversionError, match="its key is in it"):
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
