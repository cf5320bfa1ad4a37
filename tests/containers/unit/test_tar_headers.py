"""Headers of tars: hard links become files of their own, prefixes that only some readers read are
reported, sizes of many gigabytes are read from base-256 and pax records."""

from __future__ import annotations

import io
import mmap
import os
import tarfile
from pathlib import Path

import pytest

from dsort.containers.base import drive
from dsort.containers.tar.container import TAR
from dsort.containers.tar.header import other_name, renamed
from dsort.errors import CorruptShardError
from tests.support.internals import MemberKind, MemberTable
from tests.support.refusals import raises
from tests.support.tar_builder import END, checksum, gnu_long, header, member, pax
from tests.support.tar_reading import as_plain, listed, scan, scan_by_the_book, scan_in_windows
from tests.support.tar_torture import LONG, rewritten


def members_after(data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(rewritten(data, scan("s.tar", data)))) as archive:
        return [(info, archive.extractfile(info).read()) for info in archive]  # type: ignore[union-attr]


def test_it_keeps_its_own_metadata() -> None:
    data = (
        member(b"a.jpg", b"payload" * 99, mode=0o600, mtime=5)
        + header(b"l.jpg", 0, b"1", link=b"a.jpg", mode=0o755, mtime=77)
        + END
    )
    (_, _), (link, payload) = members_after(data)
    assert (link.name, link.mode, link.mtime, link.type) == ("l.jpg", 0o755, 77, tarfile.REGTYPE)
    assert (link.size, link.linkname, link.uname) == (693, "", "user")
    assert payload == b"payload" * 99


def test_it_keeps_its_own_pax_records() -> None:
    records = {b"mtime": b"7.5", b"linkpath": b"a.jpg", b"path": LONG, b"SCHILY.xattr.user.a": b"b"}
    data = member(b"a.jpg", b"x") + pax(records) + header(b"short", 0, b"1", link=b"no") + END
    (_, _), (link, payload) = members_after(data)
    assert link.name == LONG.decode()
    assert link.pax_headers == {
        "mtime": "7.5",
        "path": LONG.decode(),
        "SCHILY.xattr.user.a": "b",
    }
    assert (link.mtime, payload) == (7.5, b"x")


def test_its_row_points_at_its_targets_payload() -> None:
    data = member(b"a.jpg", b"x" * 700) + header(b"l.jpg", 0, b"1", link=b"a.jpg") + END
    table = scan("s.tar", data)
    assert table.kind.tolist() == [MemberKind.FILE] * 2
    assert table.payload_start.tolist() == [512, 512]
    assert table.range_start.tolist() == [0, 512]
    assert table.payload_bytes.tolist() == [700, 700]
    assert table.range_length.tolist() == [1536, 1024]
    assert list(table.literals) == [1]
    assert len(table.literals[1]) == 512


def test_long_chains_of_links_cost_no_more_than_their_number() -> None:
    count = 5_000  # pairwise this would be 10**7 steps
    forward = b"".join(
        header(b"%d" % i, 0, b"1", link=b"%d" % (i + 1)) for i in range(count)
    ) + member(b"%d" % count, b"the end")
    same = member(b"same", b"again") + header(b"same", 0, b"1", link=b"same") * count
    for data in (forward, same):
        table = scan("s.tar", data + END)
        assert table.notes.hardlinks_resolved == count
        assert len(set(table.payload_start.tolist())) == 1


def test_copies_for_links_are_bounded() -> None:
    links = [header(b"%d.jpg" % i, 0, b"1", link=b"a.jpg") for i in range(9)]
    data = member(b"a.jpg", b"x" * 1000) + b"".join(links) + END
    assert TAR.within(10_000).scan("s.tar", data).payload_bytes.tolist() == [1000] * 10
    with raises(
        CorruptShardError, hint="max_expansion", shard="s.tar", offset=512 + 1024 + 8 * 512
    ):
        TAR.within(9_999).scan("s.tar", data)


def test_payload_without_links_is_not_bounded_by_what_links_may_copy() -> None:
    data = member(b"a.jpg", b"x" * 1000) + member(b"b.jpg", b"x" * 1000) + END
    assert len(TAR.within(1_999).scan("s.tar", data)) == 2


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
    with raises(CorruptShardError, f"{SIZE}", shard="s.tar", offset=0):
        scan_holes(tmp_path / "s.tar", [(0, BASE_256)], 9 * GIB)
