"""Jobs from and to sequences of MessagePack and CBOR objects, read by the libraries of both."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import cbor2
import msgpack
import pytest

import dsort
from dsort.containers.objects.container import CBOR, MSGPACK, Objects
from dsort.containers.objects.headers import Kind
from dsort.containers.objects.walk import Field
from dsort.errors import ConversionError
from tests.support.datasets import Member, Shard, files_of, read_shard, write_shards
from tests.support.engine import spec_of
from tests.support.inline_runtime import Moved, run_inline

SUFFIXES = [".msgpack", ".cbor"]
TWICE = "a map that has a name twice"


def encode(suffix: str, value: object) -> bytes:
    data: bytes = msgpack.packb(value) if suffix == ".msgpack" else cbor2.dumps(value)
    return data


def decode_all(suffix: str, data: bytes) -> list[Any]:
    if suffix == ".msgpack":
        return list(msgpack.Unpacker(io.BytesIO(data), strict_map_key=False))
    stream, found = io.BytesIO(data), []
    while stream.tell() < len(data):
        found.append(cbor2.load(stream))
    return found


def objects_in(directory: Path, suffix: str) -> list[Any]:
    files = files_of(directory, f"*{suffix}")
    return [each for name in sorted(files) for each in decode_all(suffix, files[name])]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_tar_becomes_objects_and_comes_back_byte_for_byte(tmp_path: Path, suffix: str) -> None:
    members = [
        Member("000.jpg", b"\xff\xd8" + bytes(300)),
        Member("000.cls", b"12"),
        Member("d/001.seg.png", bytes(70_000)),
        Member("d/001.txt", b""),
        Member("\udcff.txt", b"a name that is no UTF-8"),
        Member("README", b"no extension"),
    ]
    write_shards(tmp_path / "in", {"a-0.tar": Shard(tuple(members))})
    to_objects = spec_of(input_format={"template": "a-{0..0}"}, output_extension=suffix)
    run_inline(to_objects | {"output_bck": "objects"}, tmp_path, Moved())
    found = objects_in(tmp_path / "objects", suffix)
    assert found[0] == {"__key__": "000", "jpg": b"\xff\xd8" + bytes(300), "cls": b"12"}
    assert found[1] == {"__key__": "d/001", "seg.png": bytes(70_000), "txt": b""}
    assert found[2] == {"__key__": b"\xff", "txt": b"a name that is no UTF-8"}
    back = spec_of(
        input_bck="objects",
        input_format={"template": "out-{0..0}"},
        input_extension=suffix,
        output_extension=".tar",
    )
    run_inline(back, tmp_path, Moved("spill"))
    again = read_shard(files_of(tmp_path / "out")["out-0.tar"])
    assert [(each.name, each.payload) for each in again] == [
        (each.name, each.payload) for each in members
    ]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_texts_and_integers_become_payloads_and_nothing_else_does(
    tmp_path: Path, suffix: str
) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / f"s-0{suffix}"
    spec = spec_of(
        input_format={"template": "s-{0..0}"}, input_extension=suffix, output_extension=".tar"
    )
    path.write_bytes(encode(suffix, {"__key__": "a", "txt": "é", "cls": -70000}))
    run_inline(spec, tmp_path, Moved())
    found = read_shard(files_of(tmp_path / "out")["out-0.tar"])
    assert [(each.name, each.payload) for each in found] == [
        ("a.txt", "é".encode()),
        ("a.cls", b"-70000"),
    ]
    for value, words in (
        ([1], "record s-0-000000000 is no map"),
        ({1: b""}, "record s-0-000000000 is no map"),
        ({"__key__": "a"}, "record a has no field but its key"),
        ({"__key__": "a", "x": 1.5}, "record a has a field x that is neither"),
        ({"__key__": "a", "x": [1]}, "record a has a field x that is neither"),
        ({"__key__": "a", "x\0y": b""}, "record a has a field x"),
        ({"__key__": "a\0b", "x": b""}, "the name has a NUL in it"),
        ({"__key__": "a/", "": b""}, "the name has a slash at its end"),
        ({f"{number:x}": 1 for number in range((1 << 16) + 1)}, "more than 65,536 fields"),
        (TWICE, "has two fields x"),
    ):
        once = encode(suffix, {"x": b"1"})
        twice = bytes([once[0] + 1]) + 2 * once[1:]
        path.write_bytes(twice if value is TWICE else encode(suffix, value))
        with pytest.raises(ConversionError, match=words):
            run_inline(spec | {"overwrite": True}, tmp_path, Moved())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_field_called_key_is_kept_where_another_is_the_key(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "in").mkdir()
    document = encode(suffix, {"__key__": "k", "id": "a"})
    (tmp_path / "in" / f"s-0{suffix}").write_bytes(document)
    spec = spec_of(
        input_format={"template": "s-{0..0}"},
        input_extension=suffix,
        output_extension=".tar",
        key_field="id",
    )
    run_inline(spec, tmp_path, Moved())
    found = read_shard(files_of(tmp_path / "out")["out-0.tar"])
    assert [(each.name, each.payload) for each in found] == [("a.__key__", b"k"), ("a.id", b"a")]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_very_many_tiny_objects_are_moved_but_become_no_members(
    tmp_path: Path, suffix: str
) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / f"s-0{suffix}"
    path.write_bytes(encode(suffix, {"c": 1}) * 100_001)
    with dsort.open(path) as shard, pytest.raises(ConversionError, match="100,000 objects behind"):
        len(shard)
    spec = spec_of(
        input_format={"template": "s-{0..0}"},
        input_extension=suffix,
        output_extension=suffix,
        output_shard_records=1_000_000,
    )
    run_inline(spec, tmp_path, Moved())
    assert (tmp_path / "out" / f"out-0{suffix}").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("container", [MSGPACK, CBOR], ids=SUFFIXES)
def test_fields_are_the_same_however_they_are_found(container: Objects) -> None:
    rng = random.Random(24)
    values = [0, 7, -3, 70_000, -70_000, b"", b"x" * 300, "", "é" * 40, b"y" * 70_000]
    for _ in range(500):
        count = rng.randrange(1, 20)
        names = rng.sample(["jpg", "cls", "", "a.b", "n" * 40, "é", *map(str, range(20))], count)
        document = {name: rng.choice(values) for name in names}
        data = memoryview(encode(container.suffixes[0], document))
        plain, walked = container._plain_fields(data), container._walked_fields(b"a", data)
        assert plain is not None, f"seed 24: {document}"
        assert [*map(_payload, plain)] == [*map(_payload, walked)], f"seed 24: {document}"


def _payload(field: Field) -> tuple[object, ...]:
    if field.kind == Kind.INTEGER:
        return field.name, field.kind, field.number
    return field.name, field.kind, field.start, field.size_bytes
