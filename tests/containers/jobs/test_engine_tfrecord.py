"""Jobs from and to TFRecord, MessagePack and CBOR: records of a tar become Examples or objects and
come back byte for byte. What is written is read by the libraries of the formats."""

from __future__ import annotations

import io
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import cbor2
import msgpack
import pytest
from tfrecord.reader import tfrecord_iterator

import dsort
from dsort import api
from dsort.containers.objects.container import CBOR, MSGPACK, Objects
from dsort.containers.objects.headers import Kind
from dsort.containers.objects.walk import Field
from dsort.errors import ConversionError, StrayMemberError
from dsort.options import RunOptions
from tests.support.datasets import Member, Shard, files_of, read_shard, write_shards
from tests.support.engine import run_local, spec_of
from tests.support.inline_runtime import Moved, run_inline
from tests.support.refusals import raises
from tests.support.tfrecords import example_bytes, examples_in, frame, frames_in

pytestmark = pytest.mark.usefixtures("workers_here")


TFRECORDS: dict[str, Any] = {
    "input_format": {"template": "s-{0..2}"},
    "input_extension": ".tfrecord",
    "output_format": "out-%05d",
    "algorithm": {"kind": "shuffle", "seed": 7},
}
SOME_MEMBERS = [
    Member("000.jpg", b"\xff\xd8" + bytes(900)),
    Member("000.cls", b"12"),
    Member("001.jpg", b""),
    Member("001.cls", b"-0"),  # not as Python writes it: it stays bytes
    Member("002.cls", b"007"),
    Member("002.json", b'{"a": 1}'),
    Member("dir/003.seg.png", bytes(5000)),
    Member("dir/003.cls", b"-9223372036854775808"),
    Member("004.cls", b"9223372036854775808"),  # does not fit in 64 bits
    Member("005.cls", b"0\n"),
    Member("README", b"no extension"),
]


def some_tfrecords(directory: Path, count: int = 20) -> list[bytes]:
    directory.mkdir()
    everything: list[bytes] = []
    for shard in range(3):
        records = [
            example_bytes({"id": ("int", 100 * shard + n), "x": ("byte", bytes([n]) * 50 * n)})
            for n in range(count + shard)
        ]
        (directory / f"s-{shard}.tfrecord").write_bytes(b"".join(map(frame, records)))
        everything += records
    return everything


def frames_out(root: Path) -> list[bytes]:
    return [r for path in sorted((root / "out").glob("*.tfrecord")) for r in frames_in(path)]


def test_compressed_shards_are_read_by_others(tmp_path: Path) -> None:
    everything = some_tfrecords(tmp_path / "in", 5)
    run_local(tmp_path, spec_of(**TFRECORDS, output_extension=".tfrecord.gz"))
    found = [
        bytes(record)
        for path in sorted((tmp_path / "out").glob("*.tfrecord.gz"))
        for record in tfrecord_iterator(str(path), compression_type="gzip")
    ]
    assert Counter(found) == Counter(everything)


def test_a_tar_becomes_examples_and_comes_back_byte_for_byte(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"a-0.tar": Shard(tuple(SOME_MEMBERS))})
    to_examples = spec_of(
        input_format={"template": "a-{0..0}"},
        output_bck="examples",
        output_format="e-%d",
        output_extension=".tfrecord",
        output_shard_records=3,
    )
    run_local(tmp_path, to_examples, workers=2)
    (manifest,) = (tmp_path / "examples" / ".dsort").glob("*/manifest.json")
    assert not api.verify(manifest.read_bytes(), options=RunOptions(root=tmp_path)).problems
    examples = examples_in(sorted((tmp_path / "examples").glob("*.tfrecord")))
    assert [example["__key__"][1] for example in examples] == [
        [b"000"], [b"001"], [b"002"], [b"dir/003"], [b"004"], [b"005"], [b"README"],
    ]  # fmt: skip
    assert examples[0] == {
        "__key__": ("bytes_list", [b"000"]),
        "jpg": ("bytes_list", [b"\xff\xd8" + bytes(900)]),
        "cls": ("int64_list", [12]),
    }
    assert [example.get("cls") for example in examples[1:6]] == [
        ("bytes_list", [b"-0"]),
        ("bytes_list", [b"007"]),
        ("int64_list", [-(1 << 63)]),
        ("bytes_list", [b"9223372036854775808"]),
        ("bytes_list", [b"0\n"]),
    ]
    back = spec_of(
        input_bck="examples",
        input_format={"template": "e-{0..2}"},
        input_extension=".tfrecord",
        output_extension=".tar",
        output_shard_records=100,
    )
    run_local(tmp_path, back)
    found = read_shard(files_of(tmp_path / "out")["out-0.tar"])
    assert [(member.name, member.payload) for member in found] == [
        (member.name, member.payload) for member in SOME_MEMBERS
    ]


def test_a_record_that_is_no_example_is_moved_but_not_converted(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for shard in range(3):
        (tmp_path / "in" / f"s-{shard}.tfrecord").write_bytes(frame(b"no example"))
    run_local(tmp_path, spec_of(**TFRECORDS))
    assert frames_out(tmp_path) == [b"no example"] * 3
    with raises(ConversionError, "record s-0-000000000"):
        run_local(tmp_path, spec_of(**TFRECORDS, output_extension=".tar"))


def test_links_are_refused(tmp_path: Path) -> None:
    link = Member("1.png", kind="symlink", target="0.png")
    write_shards(tmp_path / "in", {"a-0.tar": Shard((link,))})
    with raises(StrayMemberError, "shard a-0.tar", "1.png", hint="stray_members: drop"):
        run_local(
            tmp_path,
            spec_of(input_format={"template": "a-{0..0}"}, output_extension=".tfrecord"),
        )


def test_shards_that_are_called_as_tensorflow_calls_them_are_read_and_written(
    tmp_path: Path,
) -> None:
    (tmp_path / "in").mkdir()
    records = [b"%d" % number * number for number in range(12)]
    for shard in range(3):
        path = tmp_path / "in" / f"x.tfrecord-{shard:05d}-of-00003"
        path.write_bytes(b"".join(map(frame, records[shard::3])))
    spec = spec_of(
        input_format={"template": "x.tfrecord-{00000..00002}-of-00003"},
        output_format="y.tfrecord-{n:05d}-of-{total:05d}",
        output_shard_records=6,
    )
    for fields in (spec, spec | {"input_format": {"prefix": "x"}, "input_extension": ".tfrecord"}):
        run_local(tmp_path, fields)
        paths = [tmp_path / "out" / f"y.tfrecord-{number:05d}-of-00002" for number in range(2)]
        assert sorted(record for path in paths for record in frames_in(path)) == sorted(records)
        shutil.rmtree(tmp_path / "out")


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
    for value, named in (
        ([1], "record s-0-000000000"),
        ({1: b""}, "record s-0-000000000"),
        ({"__key__": "a"}, "record a"),
        ({"__key__": "a", "x": 1.5}, "field x"),
        ({"__key__": "a", "x": [1]}, "field x"),
        ({"__key__": "a", "x\0y": b""}, "field x"),
        ({"__key__": "a\0b", "x": b""}, ".tar"),
        ({"__key__": "a/", "": b""}, ".tar"),
        ({f"{number:x}": 1 for number in range((1 << 16) + 1)}, "65,536 fields"),
        (TWICE, "fields x"),
    ):
        once = encode(suffix, {"x": b"1"})
        twice = bytes([once[0] + 1]) + 2 * once[1:]
        path.write_bytes(twice if value is TWICE else encode(suffix, value))
        with raises(ConversionError, named):
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
    with dsort.open(path) as shard, raises(ConversionError, "100,000 objects"):
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
