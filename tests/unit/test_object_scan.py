"""Objects of MessagePack and CBOR: where they end, found from header to header."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import cbor2
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsort.containers.base import Container, ContainerOptions
from dsort.containers.objects.container import CBOR, MSGPACK
from dsort.errors import ContentKeyError, CorruptShardError
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
        with pytest.raises(ContentKeyError, match=r"object 1 of shard a\.x, at byte 5,"):
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
    ("container", "data", "words"),
    [
        (MSGPACK, b"\xc1", "0xc1 begins no MessagePack item"),
        (MSGPACK, b"\xdd\xff\xff\xff\xff" + bytes(9), "an object is cut off"),
        (MSGPACK, b"\xdf\xff\xff\xff\xff" + bytes(9), "an object is cut off"),
        (MSGPACK, b"\xc6\xff\xff\xff\xff" + bytes(9), "an object is cut off"),
        (MSGPACK, b"\x91" * 100_000 + b"\0", "nested more than 512 deep"),
        (CBOR, b"\x1c", "0x1c begins no CBOR item"),
        (CBOR, b"\x9b" + b"\xff" * 8 + bytes(9), "an object is cut off"),
        (CBOR, b"\xbb" + b"\xff" * 8 + bytes(9), "an object is cut off"),
        (CBOR, b"\x5b" + b"\xff" * 8 + bytes(9), "an object is cut off"),
        (CBOR, b"\x9f" * 100_000, "nested more than 512 deep"),
        (CBOR, b"\xff", "a break stands where nothing can end"),
        (CBOR, b"\x82\xff\x01", "a break stands where nothing can end"),
        (CBOR, b"\xbf\x01\xff", "a map ends between a name and its value"),
        (CBOR, b"\x5f\x61a\xff", "a string in pieces has a piece of another kind"),
        (CBOR, b"\xf8\x10", "a simple value below 32"),
        (CBOR, b"\xc1", "an object is cut off"),
        (CBOR, b"\xc1" * 100_000, "an object is cut off"),
    ],
)
def test_what_is_no_object_is_refused(container: Container, data: bytes, words: str) -> None:
    for window_bytes in (1, 1 << 20):
        with pytest.raises(CorruptShardError, match=words):
            in_windows(container, "a.x", data, window_bytes)


@pytest.mark.parametrize("name", FORMATS)
@given(st.binary(max_size=64))
def test_bytes_of_any_kind_are_objects_or_refused(name: str, data: bytes) -> None:
    container, _ = FORMATS[name]
    try:
        found = int(container.scan("a.x", data).range_length.sum())
    except CorruptShardError as error:
        found = len(data) if 0 <= error.offset <= len(data) else -1
    assert found == len(data)


def test_a_long_payload_is_passed_over() -> None:
    size_bytes = 3_000_000
    data = b"\x82\xa7__key__\xa1k\xa3jpg\xc6" + struct.pack(">I", size_bytes) + bytes(size_bytes)
    members = in_windows(MSGPACK, "a.x", data + b"\xc0", 1000)
    assert members.range_length.tolist() == [len(data), 1]
