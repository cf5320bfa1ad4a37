"""A prefix in a header that is not of the POSIX kind: GNU tar and dsort do not read it, tarfile and
libarchive put it before the name. One that leads out is reported, and taken out of a renamed
member."""

from __future__ import annotations

import io
import tarfile

import pytest

from dsort.containers.tar.header import other_name, renamed
from tests.support.tar_builder import END, checksum, gnu_long, header, member, pax
from tests.support.tar_reading import as_plain, listed, scan, scan_by_the_book, scan_in_windows

MAGICS = {"gnu": b"ustar  \0", "v7": bytes(8), "neither": b"ustar 00", "none": b"whatever"}
UNSAFE = [b"../..", b"/etc", b"a/..", b"..", b"0/../..", b"14712345670/../x", b"p" * 152 + b"/.."]
TIMES = b"14712345670\0" * 2
SAFE = [b"", b"dir", TIMES, b"\x80" + bytes(10) + b"\7", b"a..b", b"\0/.."]


def with_prefix(blocks: bytes, magic: str, prefix: bytes) -> bytes:
    """``blocks`` with ``prefix`` and the magic called ``magic`` in the first header."""
    block = blocks[:257] + MAGICS[magic] + blocks[265:345] + prefix.ljust(155, b"\0") + bytes(12)
    return checksum(block) + blocks[512:]


def rows_reported(data: bytes) -> tuple[int, ...]:
    table = scan("s.tar", data)
    assert as_plain(table) == as_plain(scan_by_the_book(data))
    assert as_plain(table) == as_plain(scan_in_windows(data, [1024]))
    return table.notes.unsafe_prefixes


def by_tarfile(data: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as archive:
        return archive.getnames()


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("prefix", UNSAFE)
@pytest.mark.parametrize("typeflag", [b"0", b"\0", b"2", b"5", b"D"])
@pytest.mark.sample(keep=20)
def test_one_that_leads_out_is_reported(magic: str, prefix: bytes, typeflag: bytes) -> None:
    odd = with_prefix(header(b"m.jpg", 0, typeflag, link=b"t"), magic, prefix)
    data = member(b"a.jpg", b"a") * 40 + odd + member(b"z.jpg", b"z") * 40 + END
    assert rows_reported(data) == (40,)
    assert scan("s.tar", data).names[40] == b"m.jpg"
    other = prefix + b"/m.jpg"
    assert by_tarfile(data)[40] == other_name(odd).decode() == other.decode()
    safe = renamed(odd, b"m.jpg")
    assert by_tarfile(safe + END) == ["m.jpg"]
    assert listed(safe + END).rstrip(b"/\n") == b"m.jpg"
    assert (rows_reported(safe + END), other_name(safe)) == ((), b"")


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("prefix", SAFE)
def test_others_are_copied_raw(magic: str, prefix: bytes) -> None:
    odd = with_prefix(member(b"m.jpg", b"m"), magic, prefix)
    assert rows_reported(odd * 40 + END) == ()
    assert renamed(odd[:512], b"m.jpg") == odd[:512]


def test_nor_is_one_that_no_reader_heeds() -> None:
    odd = with_prefix(member(b"m.jpg", b"m"), "gnu", b"../..")
    long = b"long/" * 30 + b"m.jpg"
    for named in (gnu_long(long) + odd, pax({b"path": long}) + odd):
        assert rows_reported(named * 40 + END) == ()
        assert by_tarfile(named + END) == [long.decode()]
        assert other_name(named[: len(named) - 512]) == b""
    assert rows_reported(member(b"m.jpg", b"m", prefix=b"../..") + END) == ()  # its name says so


def test_it_is_reported_behind_other_headers() -> None:
    odd = with_prefix(member(b"m.jpg", b"m"), "v7", b"../..")
    first = member(b"a.jpg", b"a")
    for before in (pax({b"mtime": b"1.5"}), pax({b"comment": b"c"}, b"g"), gnu_long(b"t", b"K")):
        assert rows_reported(first + before + odd + END) == (1,)
    link = with_prefix(header(b"l.jpg", 0, b"1", link=b"a.jpg"), "gnu", b"/tmp")
    assert rows_reported(first + link + END) == (1,)
