"""Jobs from and to TFRecord: frames are moved as they are, records of a tar become Examples and
come back byte for byte. What is written is read by the ``tfrecord`` package and by protobuf."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tfrecord.reader import tfrecord_iterator

from dsort import api
from dsort.errors import ConversionError, StrayMemberError
from dsort.options import RunOptions
from tests.support.datasets import Member, Shard, files_of, read_shard, write_shards
from tests.support.engine import run_local, spec_of
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
    with pytest.raises(ConversionError, match="record s-0-000000000 is no tf"):
        run_local(tmp_path, spec_of(**TFRECORDS, output_extension=".tar"))


def test_links_are_refused(tmp_path: Path) -> None:
    link = Member("1.png", kind="symlink", target="0.png")
    write_shards(tmp_path / "in", {"a-0.tar": Shard((link,))})
    with pytest.raises(StrayMemberError, match="a job that converts shards cannot keep"):
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
