"""Objects of MessagePack and CBOR: where they end, found from header to header."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import cbor2
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsort.containers.base import Container, ContainerOptions, Scan
from dsort.containers.objects.container import CBOR, MSGPACK, Objects, ObjectScan
from dsort.containers.objects.headers import Header
from dsort.containers.objects.walk import ObjectWalk
from dsort.errors import ContentKeyError, CorruptShardError
from tests.support.refusals import raises
from tests.support.sampling import examples
from tests.support.scanning import columns_of, in_windows

FORMATS: dict[str, tuple[Container, Callable[[Any], bytes]]] = {
    "msgpack": (MSGPACK, msgpack.packb),
    "cbor": (CBOR, cbor2.dumps),
}
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=40)
    | st.binary(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=20)
        | st.dictionaries(st.text(max_size=4) | st.integers(0, 300), inner, max_size=20)
    ),
    max_leaves=30,
)


def names_of(container: Container, data: bytes) -> list[bytes]:
    return container.scan("a.x", data).names.tolist()


@pytest.mark.parametrize("name", FORMATS)
@given(st.lists(VALUES, max_size=8), st.sampled_from([1, 3, 1 << 20]))
def test_objects_end_where_their_library_says(
    name: str, values: list[Any], window_bytes: int
) -> None:
    container, encode = FORMATS[name]
    parts = [encode(value) for value in values]
    members = in_windows(container, "a.x", b"".join(parts), window_bytes)
    assert members.range_length.tolist() == [len(part) for part in parts]


@pytest.mark.parametrize("name", FORMATS)
def test_headers_of_every_width_are_read(name: str) -> None:
    container, encode = FORMATS[name]
    lengths = [0, 1, 15, 16, 23, 24, 31, 32, 255, 256, 65535, 65536]
    values: list[Any] = []
    for length in lengths:
        values += [b"x" * length, "x" * length, [0] * length, dict.fromkeys(range(length), 0)]
    values += [n * sign for n in (0, 1, 2**7, 2**15, 2**31, 2**63 - 1) for sign in (1, -1)]
    parts = [encode(value) for value in values]
    assert container.scan("a.x", b"".join(parts)).range_length.tolist() == list(map(len, parts))


def test_extensions_of_messagepack_and_tags_of_cbor_are_passed_over() -> None:
    parts = [msgpack.packb(msgpack.ExtType(5, bytes(n))) for n in (1, 2, 3, 4, 8, 16, 300, 70000)]
    assert MSGPACK.scan("a.x", b"".join(parts)).range_length.tolist() == list(map(len, parts))
    tagged = [cbor2.dumps(cbor2.CBORTag(99, cbor2.CBORTag(70000, [1, {"a": b"x"}])))] * 2
    assert CBOR.scan("a.x", b"".join(tagged)).range_length.tolist() == list(map(len, tagged))


def test_cbor_without_lengths_ends_at_its_breaks() -> None:
    parts = [b"\x9f\x01\x9f\xff\xff", b"\xbf\x61a\x5f\x41x\x42yz\xff\xff", b"\x7f\xff", b"\xf7"]
    assert CBOR.scan("a.x", b"".join(parts)).range_length.tolist() == list(map(len, parts))


@pytest.mark.parametrize("name", FORMATS)
def test_keys_are_those_that_the_objects_hold(name: str) -> None:
    container, encode = FORMATS[name]
    objects = [
        {"__key__": "a/b.c", "x": {"__key__": "inner"}},
        {"x": [{"__key__": 1}], "__key__": b"\xff"},
        {"__key__": -70000},
        {"no": "key"},
        ["__key__", "x"],
    ]
    extension = container.member_extension  # type: ignore[attr-defined]
    found = names_of(container, b"".join(map(encode, objects)))
    expected = [b"a/b.c", b"\xff", b"-70000", b"a__x-000000003", b"a__x-000000004"]
    assert found == [key + extension for key in expected]
    by_id = container.with_options(ContainerOptions(key_field="/id"))
    assert names_of(by_id, encode({"__key__": "a", "id": 7})) == [b"7" + extension]
    for wrong in ({"x": 1}, {"id": None}, {"id": ""}, {"id": [1]}, {"id": "x" * 5000}, 5):
        with raises(ContentKeyError, "object 1", "shard a.x", "byte 5"):
            by_id.scan("a.x", encode({"id": 1}) + encode(wrong))


@pytest.mark.parametrize("name", FORMATS)
def test_every_cut_of_an_object_is_noticed(name: str) -> None:
    container, encode = FORMATS[name]
    first = encode({"__key__": "a"})
    data = first + encode({"__key__": "b", "x": [1, "two", {"three": bytes(300)}], "y": 2**40})
    for end in range(len(first) + 1, len(data)):
        for window_bytes in (1, 1 << 20):
            with pytest.raises(CorruptShardError) as error:
                in_windows(container, "a.x", data[:end], window_bytes)
            assert error.value.offset >= len(first)
    whole = container.scan("a.x", data)
    assert columns_of(whole) == columns_of(in_windows(container, "a.x", data, 1))


@pytest.mark.parametrize(
    ("container", "data", "offset"),
    [
        (MSGPACK, b"\xc1", 0),
        (MSGPACK, b"\xdd\xff\xff\xff\xff" + bytes(9), 0),
        (MSGPACK, b"\xdf\xff\xff\xff\xff" + bytes(9), 0),
        (MSGPACK, b"\xc6\xff\xff\xff\xff" + bytes(9), 0),
        (MSGPACK, b"\x91" * 100_000 + b"\0", 512),
        (CBOR, b"\x1c", 0),
        (CBOR, b"\x9b" + b"\xff" * 8 + bytes(9), 0),
        (CBOR, b"\xbb" + b"\xff" * 8 + bytes(9), 0),
        (CBOR, b"\x5b" + b"\xff" * 8 + bytes(9), 0),
        (CBOR, b"\x9f" * 100_000, 512),
        (CBOR, b"\xff", 0),
        (CBOR, b"\x82\xff\x01", 1),
        (CBOR, b"\xbf\x01\xff", 2),
        (CBOR, b"\x5f\x61a\xff", 1),
        (CBOR, b"\xf8\x10", 0),
        (CBOR, b"\xc1", 0),
        (CBOR, b"\xc1" * 100_000, 0),
    ],
)
def test_what_is_no_object_is_refused(container: Container, data: bytes, offset: int) -> None:
    for window_bytes in (1, 1 << 20):
        with raises(CorruptShardError, shard="a.x", offset=offset):
            in_windows(container, "a.x", data, window_bytes)


@pytest.mark.parametrize("window_bytes", [1, 1 << 20])
@pytest.mark.parametrize(
    ("container", "begin", "end"),
    [
        (MSGPACK, b"\x91", b""),
        (MSGPACK, b"\x81\xa0", b""),
        (CBOR, b"\x81", b""),
        (CBOR, b"\x9f", b"\xff"),
        (CBOR, b"\xbf\x60", b"\xff"),
    ],
)
def test_lists_and_maps_nest_512_deep(
    container: Container, begin: bytes, end: bytes, window_bytes: int
) -> None:
    data = begin * 512 + b"\0" + end * 512
    assert (
        in_windows(container, "a.x", data * 3, window_bytes).range_length.tolist()
        == [len(data)] * 3
    )
    with raises(CorruptShardError, "512", shard="a.x", offset=len(data) + len(begin) * 512):
        in_windows(container, "a.x", data + begin + data + end, window_bytes)


@pytest.mark.parametrize("more_bytes", [0, 6000, 40_000])  # near the end, headers are read singly
@pytest.mark.parametrize("inner", ["", "90", "80"])
@pytest.mark.parametrize("begin", ["91", "81a0", "93c001", "82a00160"])
@pytest.mark.sample(keep=8)
def test_the_limit_of_depth_is_the_same_wherever_an_object_is(
    begin: str, inner: str, more_bytes: int
) -> None:
    """Of MessagePack. An empty list is one more level."""
    item = bytes.fromhex(begin)
    for depth in (510, 511, 512, 513):
        data = item * depth + (bytes.fromhex(inner) or b"\0")
        for before in (0, 1):  # it is an object, or in a list
            whole = b"\x91" * before + data + bytes(more_bytes)
            if depth + before + bool(inner) <= 512:
                found = in_windows(MSGPACK, "a.x", whole, 1 << 20).range_length.tolist()
                assert found == [before + len(data)] + [1] * more_bytes, (depth, before)
            else:
                with raises(CorruptShardError, "512", shard="a.x"):
                    in_windows(MSGPACK, "a.x", whole, 1 << 20)


def test_a_long_payload_is_passed_over() -> None:
    size_bytes = 3_000_000
    data = b"\x82\xa7__key__\xa1k\xa3jpg\xc6" + struct.pack(">I", size_bytes) + bytes(size_bytes)
    members = in_windows(MSGPACK, "a.x", data + b"\xc0", 1000)
    assert members.range_length.tolist() == [len(data), 1]


@pytest.mark.parametrize(
    ("container", "data"),
    [
        (MSGPACK, b"\xdd\0\0\xff\xff" + b"\1" * 0xFFFF),
        (MSGPACK, b"\xdd\0\0\xff\xff" + b"\x91\x81\xa0\1" * 0xFFFF),
        (MSGPACK, b"\xdf\0\0\xff\xff" + b"\xa0\x91\1" * 0xFFFF),
        (MSGPACK, b"\x81\xa0\x91\1" * 0xFFFF),
        (CBOR, b"\x9f" + b"\x18\xff" * 0xFFFF + b"\xff"),
        (CBOR, b"\xbf" + b"\x60\x81\1" * 0xFFFF + b"\xff"),
        (CBOR, b"\x5f" + b"\x40" * 0xFFFF + b"\xff"),
    ],
)
def test_plain_items_take_no_look_at_each_header(container: Objects, data: bytes) -> None:
    looks = 0

    def read_header(view: memoryview, at: int) -> Header:
        nonlocal looks
        looks += 1
        return container.form.read_header(view, at)

    sizes, extension = container.form.item_sizes, container.member_extension
    begun = Scan(ObjectScan("a.x", len(data), read_header, sizes, extension, b"").scanner())
    begun.feed(data, 0)
    found = begun.table
    assert found.range_length.sum() == len(data)
    assert looks < 10_000 + len(found)  # the last 4 KiB are read one by one


_ITEMS = {
    "msgpack": (
        "01 ff c0 90 80 91 92 81 82 a0 a161 a16b d90161 c40161 cd0102 dc0001 de0001 de0000 d40102 "
        "ca31323334 c7010261 a75f5f6b65795f5f c4075f5f6b65795f5f 93 c1"
    ),
    "cbor": (
        "01 20 f6 80 a0 81 82 a1 a2 60 6161 616b 416b 780161 190102 9801 b801 9f bf ff ff 5f 7f c1 "
        "d820 675f5f6b65795f5f 475f5f6b65795f5f f8ff f801 fb3132333435363738 5f4161ff 9fff bfff 1c"
    ),
}


def _nested(rng: random.Random, depth: int) -> Any:
    count = rng.randrange(4)
    if not depth or not count:
        return rng.choice((None, 1, -70_000, 1.5, "text", "t" * 300, b"bytes", 2**40))
    inner = [_nested(rng, depth - 1) for _ in range(count)]
    return inner if rng.random() < 0.5 else {str(at): each for at, each in enumerate(inner)}


@pytest.mark.parametrize("key_field", ["", "k"])
@pytest.mark.parametrize("name", FORMATS)
def test_items_that_are_passed_over_together_are_as_if_read_one_by_one(
    name: str, key_field: str, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    container, encode = FORMATS[name]
    container = container.with_options(ContainerOptions(key_field=key_field))
    items = [bytes.fromhex(item) for item in _ITEMS[name].split()]
    cases = []
    for _ in range(examples(150)):
        weights = [rng.random() ** 3 for _ in items]
        data = b"".join(rng.choices(items, weights, k=rng.choice((3, 10, 40, 400))))
        # What is open is closed, and enough follows that headers are not near the end.
        cases.append(data + rng.choice((b"", b"\xff" * 5)) + bytes(rng.choice((0, 20, 6000))))
        key = key_field or "__key__"
        objects = [{key: n, "x": _nested(rng, 4), "y": bytes(n)} for n in range(30)]
        whole = bytearray(b"".join(map(encode, [*objects, {key: "z", "y": bytes(6000)}])))
        cases.append(bytes(whole))
        whole[rng.randrange(len(whole) - 6000)] = rng.randrange(256)
        cases.append(bytes(whole))

    def outcomes() -> list[object]:
        found: list[object] = []
        for data in cases:
            try:
                members = in_windows(container, "a.x", data, 5000)
                found.append((members.names.tolist(), members.range_length.tolist()))
            except ContentKeyError as refusal:
                found.append(str(refusal))  # which object it is
            except CorruptShardError as refusal:
                found.append(type(refusal))
        return found

    together = outcomes()
    monkeypatch.setattr(ObjectWalk, "_pass", lambda walk, view, index: 0)
    monkeypatch.setattr(ObjectWalk, "_pass_object", lambda walk, view, index: False)
    assert together == outcomes()
    assert sum(isinstance(each, tuple) for each in together) > examples(150)


def test_objects_without_keys_take_a_few_bytes_of_memory_each() -> None:
    count = 300_000
    tracemalloc.start()
    try:
        members = MSGPACK.scan("a.x", b"\1" * count)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert members.names[count - 1] == b"a__x-000299999.msgpack"
    assert peak_bytes < 60 * count
