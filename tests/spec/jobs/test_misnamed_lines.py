"""Lines that look like compressed files, and compressed files that are called lines."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import tarfile
import zipfile
from itertools import count
from pathlib import Path

import lz4.frame
import pytest
import zstandard

import dsort
from dsort.errors import CorruptShardError
from dsort.options import RunOptions
from dsort.shard_contents import inspect_object
from dsort.storage.directory.bucket import LocalBucket
from tests.support.engine import refused, spec_of, verify_local
from tests.support.inline_runtime import Moved, run_inline
from tests.support.refusals import raises


def frame(*, last: bytes = b"", without: bytes = b"\n") -> bytes:
    """A whole lz4 frame; ``last``: its last byte, ``without``: what is not in it."""
    made = (lz4.frame.compress(b"text %d" % n, content_checksum=True) for n in count())
    return next(each for each in made if each.endswith(last) and without not in each[:-1])


def zipped() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("a.txt", b"text")
    return made.getvalue()


def stored(root: Path, name: str, data: bytes) -> None:
    (root / "in").mkdir(exist_ok=True)
    (root / "in" / name).write_bytes(data)


@pytest.mark.parametrize("lines", [[frame()], [frame(), b"text"]], ids=["alone", "first"])
def test_a_line_that_is_a_compressed_file_is_a_line(tmp_path: Path, lines: list[bytes]) -> None:
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for number, line in enumerate(lines):
            info = tarfile.TarInfo(f"{number}.txt")
            info.size = len(line)
            archive.addfile(info, io.BytesIO(line))
    stored(tmp_path, "a.tar", tar.getvalue())
    report = run_inline(spec_of(output_extension=".txt"), tmp_path)
    out = tmp_path / "out" / "out-0.txt"
    assert out.read_bytes() == b"\n".join([*lines, b""])
    assert verify_local(tmp_path, report).problems == ()
    assert len(inspect_object(LocalBucket(tmp_path / "out"), "out-0.txt").records) == len(lines)
    read = dsort.read_shards(out, options=RunOptions(root=tmp_path))
    assert [content for each in read for content in each.members.values()] == lines


@pytest.mark.parametrize("data", [frame(), frame(last=b"\n"), 9 * frame(last=b"\n")])
def test_a_compressed_file_that_is_called_lines_is_refused(tmp_path: Path, data: bytes) -> None:
    stored(tmp_path, "a.jsonl", data)
    with refused(tmp_path, CorruptShardError, "a.jsonl", "is lz4", ".lz4"):
        run_inline(spec_of(input_format={"objnames": ["a.jsonl"]}), tmp_path)
    with raises(CorruptShardError, "lz4", shard="a.jsonl", offset=0):
        inspect_object(LocalBucket(tmp_path / "in"), "a.jsonl")


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (gzip.compress(b"text", mtime=0), "gzip"),
        (
            gzip.compress(random.Random(3).randbytes(9000), mtime=0)[:6000] + b"\n",
            "gzip",
        ),  # cut off
        (zstandard.compress(b"text"), "zstd"),
        (lzma.compress(b"text"), "xz"),
        (bz2.compress(b"text"), "bzip2"),
        (zipped(), "zip"),
    ],
)
def test_each_kind_of_compressed_file_is_called_what_it_is(
    tmp_path: Path, data: bytes, what: str
) -> None:
    stored(tmp_path, "a.txt", data)
    with raises(CorruptShardError, what, shard="a.txt", offset=0):
        inspect_object(LocalBucket(tmp_path / "in"), "a.txt")


def test_shards_whose_numbered_records_are_called_alike_are_reported(tmp_path: Path) -> None:
    stored(tmp_path, "a.txt", b"one\ntwo\n")
    stored(tmp_path, "a.txt.zst", zstandard.compress(b"three\n"))
    stored(tmp_path, "b.txt", b"four\n")
    names = ["a.txt", "a.txt.zst", "b.txt"]
    spec = spec_of(input_format={"objnames": names}, output_extension=".tar")
    report = run_inline({**spec, "duplicate_keys": "rename"}, tmp_path, Moved("spill"))
    (warning,) = report.warnings[:1]
    assert "records of a.txt and a.txt.zst get the same keys" in warning
    with tarfile.open(tmp_path / "out" / "out-0.tar") as archive:
        assert len({each.name for each in archive}) == 4


def test_what_may_be_a_bomb_is_read_if_asked_for(tmp_path: Path) -> None:
    line = b"x" * (40 << 20) + b"\n"
    stored(tmp_path, "a.txt.zst", zstandard.compress(line))
    bucket = LocalBucket(tmp_path / "in")
    options = RunOptions(root=tmp_path)
    place = str(tmp_path / "in" / "a.txt.zst")
    with raises(CorruptShardError, shard="a.txt.zst"):
        inspect_object(bucket, "a.txt.zst")
    with raises(CorruptShardError, shard="a.txt.zst"):
        next(dsort.read_shards(place, options=options))
    summary = inspect_object(bucket, "a.txt.zst", max_expansion=1e6)
    assert summary.payload_bytes == len(line) - 1
    (record,) = dsort.read_shards(place, options=options, max_expansion=1e6)
    assert [*record.members.values()] == [line[:-1]]
