"""Members and shards of many gigabytes: sizes in base-256 and in pax records, offsets beyond 32
bits. The files are holes, so that nothing large is ever written."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from dsort.containers.base import drive
from dsort.containers.tar.container import TAR
from dsort.errors import CorruptShardError
from tests.support.internals import MemberTable
from tests.support.tar_builder import END, header, member, pax
from tests.support.tar_reading import scan

GIB = 1 << 30
SIZE = 9 * GIB + 1
PADDED = 9 * GIB + 512

BASE_256 = header(b"huge.bin", b"\x80" + SIZE.to_bytes(11, "big"), style="gnu")
PAX = pax({b"size": b"%d" % SIZE}) + header(b"huge.bin", 0)
OCTAL_MAX = header(b"huge.bin", b"77777777777\0")


def scan_holes(path: Path, parts: list[tuple[int, bytes]], size_bytes: int) -> MemberTable:
    """Scan a file of ``size_bytes`` with ``parts`` (offset, bytes) in it and holes between."""
    with path.open("wb") as file:
        os.truncate(file.fileno(), size_bytes)
        for offset, data in parts:
            file.seek(offset)
            file.write(data)
    assert path.stat().st_blocks * 512 < 4 << 20, "the file is no hole"
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        with memoryview(mapped) as view:
            whole = scan(path.name, view)
            scanner = TAR.scanner(path.name, len(view))
            table = drive(scanner, len(view), lambda at, n: view[at : at + n], window_bytes=4096)
        assert table.range_start.tolist() == whole.range_start.tolist()
    return whole


@pytest.mark.parametrize("first", [BASE_256, PAX], ids=["base-256", "pax"])
def test_a_member_of_more_than_8_gib(tmp_path: Path, first: bytes) -> None:
    after = member(b"after.jpg", b"payload")
    at = len(first) + PADDED
    table = scan_holes(
        tmp_path / "s.tar", [(0, first), (at, after + END)], at + len(after) + len(END)
    )
    assert table.names.tolist() == [b"huge.bin", b"after.jpg"]
    assert table.payload_bytes.tolist() == [SIZE, 7]
    assert table.payload_start.tolist() == [len(first), at + 512]
    assert table.range_start.tolist() == [0, at]
    assert table.range_length.tolist() == [at, 1024]


def test_the_largest_octal_size_among_small_members(tmp_path: Path) -> None:
    before = b"".join(member(b"%04d.jpg" % i, b"x" * 700) for i in range(400))
    at = len(before) + 512 + 8 * GIB
    after = b"".join(member(b"%04d.png" % i, b"y" * 700) for i in range(400))
    table = scan_holes(
        tmp_path / "s.tar",
        [(0, before + OCTAL_MAX), (at, after + END)],
        at + len(after) + len(END),
    )
    assert len(table) == 801
    assert table.payload_bytes[400] == 8 * GIB - 1
    assert table.names[401] == b"0000.png"
    assert table.range_start[401] == at


@pytest.mark.parametrize(
    ("link", "magic"),
    [
        (header(b"link.bin", 0, b"1", link=b"huge.bin", style="gnu"), b"ustar "),
        (header(b"link.bin", 0, b"1", link=b"huge.bin"), b"ustar\0"),
    ],
    ids=["GNU", "POSIX"],
)
def test_a_hard_link_to_a_member_of_more_than_8_gib(
    tmp_path: Path, link: bytes, magic: bytes
) -> None:
    at = len(BASE_256) + PADDED
    table = scan_holes(tmp_path / "s.tar", [(0, BASE_256), (at, link + END)], at + 512 + len(END))
    assert table.payload_bytes.tolist() == [SIZE, SIZE]
    assert table.range_start.tolist() == [0, 512]
    assert table.range_length.tolist() == [512 + PADDED, PADDED]
    headers = table.literals[1]
    copy = scan_holes(
        tmp_path / "copy.tar",
        [(0, headers), (len(headers) + PADDED, END)],
        len(headers) + PADDED + len(END),
    )
    assert (copy.names.tolist(), copy.payload_bytes.tolist()) == ([b"link.bin"], [SIZE])
    assert headers[-512:][257:263] == magic


def test_a_huge_member_that_is_cut_off(tmp_path: Path) -> None:
    with pytest.raises(CorruptShardError, match=f"{SIZE} payload bytes, of which the shard holds"):
        scan_holes(tmp_path / "s.tar", [(0, BASE_256)], 9 * GIB)
