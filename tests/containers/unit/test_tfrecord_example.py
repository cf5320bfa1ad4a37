"""Examples are read as protobuf reads them, and nothing in a record is passed over; fields of any
container become members only within the memory that their bytes allow."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tfrecord import example_pb2
from tfrecord.writer import TFRecordWriter

from dsort.containers.base import Container, ContainerOptions
from dsort.containers.litdata import leaf_names
from dsort.containers.mds import MDS
from dsort.containers.objects.container import CBOR, MSGPACK
from dsort.containers.tar.container import TAR
from dsort.containers.tfrecord import example
from dsort.containers.tfrecord.container import TFRECORD
from dsort.containers.tfrecord.example import ExampleBytes, Feature, NoExampleError
from dsort.errors import ConversionError
from tests.support.datasets import Member, Shard
from tests.support.internals import MemberTable, UInt32s, bare_table, form_records
from tests.support.mds_writer import mds_shard
from tests.support.refusals import raises
from tests.support.tfrecords import Features, example_bytes, frame

FLOATS = st.floats(width=32, allow_nan=False)
VALUES = st.one_of(
    st.tuples(st.just("byte"), st.lists(st.binary(max_size=5000), max_size=3)),
    st.tuples(st.just("int"), st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=4)),
    st.tuples(st.just("float"), st.lists(FLOATS, max_size=4)),
)
EXAMPLES = st.dictionaries(st.text(max_size=8), VALUES, max_size=5)
KINDS = {"byte": "bytes", "int": "int64", "float": "float"}


def walked(record: bytes, before: int = 0) -> dict[str, tuple[str, list[Any]]]:
    data = bytes(before) + record
    examples = ExampleBytes(lambda at, size: data[at : at + size])
    return {
        feature.name.decode(): (feature.kind, _values(data, feature))
        for feature in examples.features(before, len(record))
    }


def _values(data: bytes, feature: Feature) -> list[Any]:
    if feature.ranges:
        return [data[start : start + size] for start, size in feature.ranges]
    return feature.numbers


@settings(max_examples=30, deadline=None)
@given(EXAMPLES, st.sampled_from([0, 7, 5000]))
def test_all_values_of_an_example_are_found(features: Features, before: int) -> None:
    found = walked(example_bytes(features), before)
    assert found == {name: (KINDS[kind], values) for name, (kind, values) in features.items()}


def test_numbers_need_not_be_packed() -> None:
    int64s = b"\x1a\x04\x08\x07\x08\x01"  # two values, each a field of its own
    floats = b"\x12\x05\x0d\x00\x00\xc0\x3f"
    record = b"".join(
        b"\n" + bytes([len(entry)]) + entry
        for entry in (b"\n\x01a\x12\x06" + int64s, b"\n\x01b\x12\x07" + floats)
    )
    record = b"\n" + bytes([len(record)]) + record
    assert walked(record) == {"a": ("int64", [7, 1]), "b": ("float", [1.5])}
    assert list(example_pb2.Example.FromString(record).features.feature["a"].int64_list.value) == [
        7,
        1,
    ]


def test_a_sequence_example_is_distinguished_from_an_example() -> None:
    record = TFRecordWriter.serialize_tf_sequence_example({"a": (1, "int")}, {"b": ([1], "int")})
    with pytest.raises(NoExampleError, match="SequenceExample"):
        walked(record)


@pytest.mark.parametrize(
    "values", [("byte", [b""] * 101), ("int", [1] * 101), ("float", [0] * 101)]
)
def test_a_hostile_count_of_values_is_refused_before_they_are_made(
    values: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example, "VALUES_MAX", 100)
    with raises(NoExampleError, "100"):
        walked(example_bytes({"a": values}))


def bare_of(record: bytes, key_field: str = "__key__") -> dict[bytes, bytes]:
    data = frame(record)
    container = TFRECORD.with_options(ContainerOptions(key_field=key_field))

    def read(at: int, size: int) -> bytes:
        return data[at : at + size]

    table: MemberTable = container.bare(container.scan("s", data), read)
    found = {}
    for row, name in enumerate(table.names.tolist()):
        start, size = int(table.range_start[row]), int(table.range_length[row])
        found[name] = table.literals.get(row, b"") + (data[start : start + size] if size else b"")
        assert len(found[name]) == int(table.payload_bytes[row])
    return found


def test_features_become_members() -> None:
    record = example_bytes(
        {
            "__key__": ("byte", b"dir/k"),
            "image/encoded": ("byte", b"pixels"),
            "cls": ("int", -3),
            "score": ("float", 0.1),
            "boxes": ("float", [0.5, 2.0]),
            "names": ("byte", [b"x", b"yz"]),
            "none": ("int", []),
            "": ("byte", b"stray"),
        }
    )
    assert bare_of(record) == {
        b"dir/k.image.encoded": b"pixels",
        b"dir/k.cls": b"-3",
        b"dir/k.score": b"0.1",
        b"dir/k.boxes.json": b"[0.5, 2.0]",
        b"dir/k.names.0": b"x",
        b"dir/k.names.1": b"yz",
        b"dir/k.none.json": b"[]",
        b"dir/k": b"stray",
    }


def test_lists_of_numbers_are_json_that_reads_as_the_same_numbers() -> None:
    numbers = [1.0, 0.1, 3e38, 1e-45, -0.0]
    record = example_bytes({"__key__": ("byte", b"k"), "x": ("float", numbers)})
    read = json.loads(bare_of(record)[b"k.x.json"])
    again = example_bytes({"__key__": ("byte", b"k"), "x": ("float", read)})
    assert again == record


@pytest.mark.parametrize(
    ("record", "named"),
    [
        (b"", "record s-000000000"),
        (example_bytes({"__key__": ("byte", b"k"), "a/b": ("int", 1), "a.b": ("int", 2)}), "k.a.b"),
        (example_bytes({"__key__": ("byte", b"k"), "a\0": ("int", 1)}), "k.a"),
        (b"\x12\x00", "SequenceExample"),
        (b"text that is no protocol buffer", "tf.train.Example"),
    ],
    ids=["empty", "two", "NUL", "sequence", "text"],  # bytes of a map are in any order
)
def test_what_can_be_no_record_with_members_is_refused_by_name(record: bytes, named: str) -> None:
    key_field = "__key__" if b"__key__" in record else ""
    with raises(ConversionError, named):
        bare_of(record, key_field)


@pytest.mark.parametrize("name", ["1.__key__", "1.\udcff", "1."])
def test_a_member_whose_name_can_be_no_feature_is_refused(name: str) -> None:
    members = bare_table(TAR.scan("a.tar", Shard((Member(name, b"x"),)).data))
    with raises(ConversionError, "record 1", "member 1"):
        TFRECORD.packed(members, form_records(members, "keep"), NoPayloads())


class NoPayloads:
    """Payloads that no test may ask for."""

    are_sealed_later, shard_bytes = False, 0

    def pieces(self, row: int) -> Iterator[bytes]:
        raise AssertionError(row)

    def each(self, rows: object) -> Iterator[Iterator[bytes]]:
        raise AssertionError(rows)

    def checksums(self, rows: object, update: object, begun: object) -> UInt32s:
        raise AssertionError(rows)


@pytest.mark.parametrize(
    "features",
    [
        {"a": ("byte", [b""] * 101)},
        {f"{number}": ("int", 1) for number in range(51)},  # a list in each
    ],
    ids=["values", "features"],
)
def test_a_hostile_count_of_parts_is_refused_before_they_are_members(
    features: Features, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example, "PARTS_MAX", 100)
    with raises(NoExampleError, "100 features"):
        walked(example_bytes(features))


OPTIONS = ContainerOptions(key_field="")
KEY = b"k" * 4000
FIELDS = 8000


def _example() -> bytes:
    values = [b""] * FIELDS
    return frame(example_bytes({"__key__": ("byte", KEY), "a": ("byte", values)}))


def _msgpack() -> bytes:
    fields = b"".join(b"\xa4%04d\x01" % number for number in range(FIELDS))
    return b"\xde%b\xa7__key__\xda\x0f\xa0%b%b" % ((FIELDS + 1).to_bytes(2, "big"), KEY, fields)


def _cbor() -> bytes:
    fields = b"".join(b"\x64%04d\x01" % number for number in range(FIELDS))
    return b"\xb9%b\x67__key__\x79\x0f\xa0%b%b" % ((FIELDS + 1).to_bytes(2, "big"), KEY, fields)


def _sample() -> bytes:
    names = {f"{number:04}": "uint8" for number in range(2500)}
    row = {"__key__": "k" * 50_000, **dict.fromkeys(names, 1)}
    return mds_shard({"__key__": "str", **names}, [row])


@pytest.mark.parametrize(
    ("container", "made"),
    [(TFRECORD, _example), (MSGPACK, _msgpack), (CBOR, _cbor), (MDS, _sample)],
    ids=["tfrecord", "msgpack", "cbor", "mds"],
)
def test_a_long_key_is_not_repeated_in_the_names_of_thousands_of_members(
    container: Container, made: Callable[[], bytes]
) -> None:
    data = made()
    reading = container.with_options(OPTIONS)
    members = reading.scan("s", data)
    with raises(ConversionError, "record kkk"):
        reading.bare(members, lambda at, size: data[at : at + size])


@pytest.mark.parametrize("leaves", [4000, 4001])
def test_a_long_key_of_an_index_is_not_repeated_in_the_names_of_leaves(leaves: int) -> None:
    leaf = {"type": None, "context": None, "children_spec": []}
    inner = {"type": "builtins.list", "context": None, "children_spec": [leaf] * leaves}
    context = json.dumps(["k" * 100_000])
    tree = {"type": "builtins.dict", "context": context, "children_spec": [inner]}
    found = leaf_names(json.dumps((1, tree)), 4000)
    assert found == [str(number) for number in range(4000)]
