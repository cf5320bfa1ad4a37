"""``dsort cat``: the bytes of shards, records and members, whole, by name, and by ranges."""

from __future__ import annotations

import gzip
import io
import os
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from dsort.shard_contents import BUFFER_BYTES, open_contents
from tests.support.commands import CommandLine
from tests.support.datasets import Member, Shard, write_shards
from tests.support.memory_bucket import MemoryBucket, MemoryReadObject

SHARD = Shard(
    (
        Member("a.txt", b"text of a\n"),
        Member("a.bin", b"\0\1\2"),
        Member("b.json", b"{}"),
        Member("README", b"read me\n"),
    )
)


@pytest.fixture
def cat(cli: CommandLine, tmp_path: Path) -> CommandLine:
    write_shards(tmp_path / "in", {"s.tar": SHARD})
    return lambda *args: cli("cat", "in/s.tar", *args)


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        (("a.txt",), "text of a\n"),
        (("a",), "text of a\n\0\1\2"),
        (("README",), "read me\n"),
        (("--index", 1), "{}"),
        (("--index", 2), "read me\n"),
    ],
)
def test_a_record_is_its_payloads_and_a_member_is_its_own(
    asked: tuple[str | int, ...], wanted: str, cat: CommandLine
) -> None:
    ended = cat(*asked)
    assert (ended.code, ended.out, ended.err) == (0, wanted, "")


def test_a_shard_is_all_of_its_bytes(cat: CommandLine, tmp_path: Path) -> None:
    assert cat("-o", "copy").code == 0
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "in" / "s.tar").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "in"]


def test_a_record_may_come_as_a_tar(cat: CommandLine, tmp_path: Path) -> None:
    assert cat("a", "--as", "tar", "-o", "one.tar").code == 0
    with tarfile.open(tmp_path / "one.tar") as archive:
        found = {info.name: archive.extractfile(info) for info in archive}
        assert {name: file and file.read() for name, file in found.items()} == {
            "a.txt": b"text of a\n",
            "a.bin": b"\0\1\2",
        }
    assert (tmp_path / "one.tar").stat().st_size % 512 == 0


def test_a_file_that_is_no_regular_file_is_written_and_not_replaced(
    cat: CommandLine, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert cat("a.txt", "-o", "pipe").code == 0
        assert os.read(reader, 100) == b"text of a\n"
    finally:
        os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "link").symlink_to("target")
    assert cat("a.txt", "-o", "link").code == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"text of a\n"


@pytest.mark.parametrize(
    ("asked", "code", "named"),
    [
        (("a.tx",), 3, ("a.txt",)),
        (("zzzzz",), 3, ("`dsort inspect", "3 records")),
        (("--index", 3), 3, ("3 records", "number 3")),
        (("a", "--index", 0), 2, ("--index",)),
        (("--as", "tar"), 2, ("--as tar",)),
        (("a", "-o", "no/where"), 4, ("no/where",)),
    ],
)
def test_what_cannot_be_found_is_reported(
    asked: tuple[str | int, ...], code: int, named: tuple[str, ...], cat: CommandLine
) -> None:
    ended = cat(*asked)
    assert (ended.code, ended.out) == (code, "")
    assert [name for name in named if name not in " ".join(ended.err.split())] == []


def test_a_key_that_comes_again_is_reported(cli: CommandLine, tmp_path: Path) -> None:
    again = Shard((Member("a.txt", b"1"), Member("b.txt", b"2"), Member("a.txt", b"3")))
    write_shards(tmp_path / "in", {"s.tar": again})
    ended = cli("cat", "in/s.tar", "a")
    assert ended.out == "1"
    assert "--index" in ended.err


def test_binary_is_not_written_to_a_terminal(
    cat: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    refused = cat("a.bin")
    assert refused.code != 0
    assert "-o FILE" in refused.err
    assert cat("a.txt").out == "text of a\n"


def test_a_terminal_gets_a_line_feed_behind_text_without_one_and_a_pipe_does_not(
    cat: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cat("b.json").out == "{}"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cat("b.json").out == "{}\n"


@pytest.mark.parametrize("command", ["cat", "inspect"])
def test_of_a_shard_that_is_mistyped_the_nearest_is_named(
    command: str, cat: CommandLine, cli: CommandLine
) -> None:
    refused = cli(command, "in/s.tarr")
    assert refused.code == 4
    assert "in/s.tar?" in refused.err


@pytest.mark.parametrize("command", ["cat", "inspect"])
def test_of_a_bucket_in_place_of_a_shard_the_command_that_lists_it_is_named(
    command: str, cat: CommandLine, cli: CommandLine
) -> None:
    refused = cli(command, "in")
    assert refused.code == 4
    assert "`dsort ls in`" in refused.err


def test_of_a_large_shard_only_headers_and_what_is_asked_for_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    payload = bytes(8 * BUFFER_BYTES)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, size in (("a.bin", len(payload)), ("b.txt", 5), ("c.bin", len(payload))):
            info = tarfile.TarInfo(name)
            info.size = size
            archive.addfile(info, io.BytesIO(b"hello" if size == 5 else payload))
    bucket = MemoryBucket()
    bucket.write("s.tar", stream.getvalue())
    read = []

    def counted(self: MemoryReadObject, buffer: memoryview, offset: int) -> None:
        read.append(len(buffer))
        original(self, buffer, offset)

    original = MemoryReadObject.read_into
    monkeypatch.setattr(MemoryReadObject, "read_into", counted)
    with open_contents(bucket, "s.tar") as contents:
        assert b"".join(contents.payloads(contents.named("b"))) == b"hello"
    assert sum(read) < 4 * BUFFER_BYTES


def test_what_is_compressed_comes_as_it_is(cli: CommandLine, tmp_path: Path) -> None:
    data = SHARD.data
    (tmp_path / "s.tar.gz").write_bytes(gzip.compress(data))
    with zipfile.ZipFile(tmp_path / "s.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", "text " * 1000)
    assert cli("cat", "s.tar.gz", "-o", "whole.tar").code == 0
    assert (tmp_path / "whole.tar").read_bytes() == data
    assert cli("cat", "s.tar.gz", "a.txt").out == "text of a\n"
    assert cli("cat", "s.zip", "a").out == "text " * 1000
