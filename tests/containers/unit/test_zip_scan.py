"""What is read of a zip: its central directory says what is in it, and everything else agrees."""

from __future__ import annotations

import io
import random
import struct
import time
import zipfile
import zlib
from collections.abc import Callable

import pytest

from dsort.containers.zip.container import ZIP
from dsort.containers.zip.layout import ZipNotes
from dsort.errors import CorruptShardError
from tests.support.internals import MemberKind, MemberTable
from tests.support.refusals import raises
from tests.support.scanning import in_windows
from tests.support.zips import Record, zip_of

MEMBERS = [("a.bin", b"x" * 40), ("ü.cls", b"yy"), ("d/b.bin", b""), ("d/c.txt", b"z" * 300)]
WRITERS = [
    {},
    {"streamed": True},
    {"deflated": True},
    {"deflated": True, "streamed": True},
    {"comment": b"PK"},
]
CENTRAL = {"flags": 8, "method": 10, "crc": 16, "stored": 20, "size": 24, "disk": 34, "offset": 42}


def scan(data: bytes) -> MemberTable:
    return ZIP.scan("s.zip", data)


def scan_by_windows(data: bytes, window_bytes: int) -> MemberTable:
    """As a shard is scanned that does not fit in memory; each window is asked for in bounds."""
    return in_windows(ZIP, "s.zip", data, window_bytes)


def content(data: bytes, members: MemberTable, row: int) -> bytes:
    def read(start: int, length: int) -> bytes:
        return data[start : start + length]

    if members.has_compressed and members.compressed_bytes[row] >= 0:
        stored = read(int(members.payload_start[row]), int(members.compressed_bytes[row]))
        pieces = [stored[at : at + 7] for at in range(0, len(stored), 7)]
        return b"".join(ZIP.payloads.decompressed(members, row, pieces))
    return read(int(members.payload_start[row]), int(members.payload_bytes[row]))


def deflated(data: bytes, members: MemberTable) -> memoryview:
    """The stored bytes of the first member."""
    assert members.has_compressed
    start = int(members.payload_start[0])
    return memoryview(data)[start : start + int(members.compressed_bytes[0])]


def contents(data: bytes) -> list[Record]:
    members = scan(data)
    names = [name.decode() for name in members.names.tolist()]
    return [(name, content(data, members, row)) for row, name in enumerate(names)]


def central(data: bytes, row: int = 0) -> int:
    """Where the entry of the ``row``-th member is in the central directory."""
    at = -1
    for _ in range(row + 1):
        at = data.index(b"PK\1\2", at + 1)
    return at


def patched(data: bytes, at: int, value: int, width: int = 2) -> bytes:
    return data[:at] + value.to_bytes(width, "little") + data[at + width :]


def patched_twice(data: bytes, field: str, value: int, width: int = 2) -> bytes:
    """A field of the first member, in its local header and in the central directory."""
    data = patched(data, central(data) + CENTRAL[field], value, width)
    return patched(data, CENTRAL[field] - 2, value, width)


@pytest.mark.parametrize("writer", WRITERS)
def test_members_come_in_the_order_of_the_directory_with_their_payloads(writer: dict) -> None:
    data = zip_of(MEMBERS, **writer)
    assert contents(data) == MEMBERS
    members = scan(data)
    assert members.payload_bytes.tolist() == [len(payload) for _, payload in MEMBERS]
    assert members.notes == ZipNotes(comment_bytes=len(writer.get("comment", b"")))


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("window_bytes", [1, 50, 170, 700])
def test_windows_give_what_the_whole_gives(writer: dict, window_bytes: int) -> None:
    data = zip_of([*MEMBERS, ("long.bin", bytes(2000)), ("z.bin", b"")], **writer)
    whole, parts = scan(data), scan_by_windows(data, window_bytes)
    for column in ("kind", "payload_start", "payload_bytes", "range_start", "range_length"):
        assert getattr(whole, column).tolist() == getattr(parts, column).tolist()
    assert whole.names.tolist() == parts.names.tolist()
    assert whole.entries is not None
    assert parts.entries is not None
    assert whole.entries.tolist() == parts.entries.tolist()
    assert whole.notes == parts.notes


def test_the_order_of_the_directory_counts_wherever_entries_lie() -> None:
    data = zip_of(MEMBERS)
    starts = [central(data, row) for row in range(4)]
    end = data.index(b"PK\5\6")
    entries = [data[a:b] for a, b in zip(starts, [*starts[1:], end], strict=True)]
    turned = data[: starts[0]] + b"".join(reversed(entries)) + data[end:]
    assert contents(turned) == MEMBERS[::-1]


def test_names_that_look_like_entries_of_the_directory_are_names() -> None:
    members = [(f"PK\1\2{number}PK\5\6.bin", b"PK\1\2PK\3\4") for number in range(20)]
    assert contents(zip_of(members)) == members


def test_names_without_a_flag_are_code_page_437_and_stay_as_they_are() -> None:
    data = zip_of([("aXb.bin", b"1"), ("c.bin", b"2")]).replace(b"aXb", b"a\x81b")
    members = scan(data)
    assert members.names.tolist() == ["aüb.bin".encode(), b"c.bin"]
    assert members.notes.cp437_names == (0,)  # type: ignore[attr-defined]
    assert members.entries is not None
    assert b"a\x81b.bin" in members.entries[0]


def test_a_unicode_name_in_an_extra_counts_if_it_was_made_for_this_name() -> None:
    for raw, expected in ((b"a\x81", "ä.bin"), (b"b\x81", "bü.bin")):
        info = zipfile.ZipInfo("aX.bin")
        name = struct.pack("<BI", 1, zlib.crc32(b"a\x81.bin")) + "ä.bin".encode()
        info.extra = struct.pack("<2H", 0x7075, len(name)) + name
        data = zip_of([(info, b"1")]).replace(b"aX", raw)
        assert scan(data).names.tolist() == [expected.encode()]


def test_kinds_are_recognized_by_names_and_by_what_unix_says() -> None:
    def info(name: str, mode: int, system: int = 3) -> zipfile.ZipInfo:
        made = zipfile.ZipInfo(name)
        made.external_attr, made.create_system = mode << 16, system
        return made

    data = zip_of(
        [
            (info("f.bin", 0o100644), b"x"),
            (info("d/", 0o40755), b""),
            (info("l.lnk", 0o120777), b"f.bin"),
            (info("p.fifo", 0o10644), b""),
            (info("dos.bin", 0o120777, system=0), b"no link"),
        ]
    )
    members = scan(data)
    kinds = [MemberKind(kind).name for kind in members.kind.tolist()]
    assert kinds == ["FILE", "DIRECTORY", "SYMLINK", "DEVICE", "FILE"]
    start, end = int(members.range_start[2]), int(members.payload_start[2])
    assert ZIP.names.target_of(data[start:end]) == b"f.bin"


def test_bytes_before_the_first_entry_are_noted_whether_offsets_count_them_or_not() -> None:
    data = b"#!/bin/sh\n" + zip_of(MEMBERS)
    assert contents(data) == MEMBERS
    assert scan(data).notes == ZipNotes(leading_bytes=10)
    file = io.BytesIO(b"#!/bin/sh\n")
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("a.bin", b"x")
    assert scan(file.getvalue()).notes == ZipNotes(leading_bytes=10)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (zip_of([("lost.bin", b"")]) + zip_of(MEMBERS), "begin as another zip does"),
        (zip_of(MEMBERS) + b"rest", "4 bytes behind its end record are no zip"),
    ],
)
def test_a_zip_that_may_have_lost_members_says_so(data: bytes, text: str) -> None:
    assert text in scan(data).notes.shortfall


def test_an_entry_that_the_directory_does_not_list_is_a_shortfall() -> None:
    data = zip_of(MEMBERS)
    first, second, end = central(data, 1), central(data, 2), data.index(b"PK\5\6")
    cut = data[:first] + data[second:end] + data[end:]
    end -= second - first
    cut = patched(patched(cut, end + 8, 3), end + 10, 3)
    cut = patched(cut, end + 12, end - central(data), 4)
    assert [name for name, _ in contents(cut)] == ["a.bin", "d/b.bin", "d/c.txt"]
    assert "in no entry that its central directory lists" in scan(cut).notes.shortfall


def test_a_local_header_without_sizes_is_written_anew() -> None:
    data = zip_of([("a.bin", b"hello")])
    data = data[:14] + bytes(12) + data[26:]
    members = scan(data)
    assert members.notes.mended == (0,)
    start, length = int(members.range_start[0]), int(members.range_length[0])
    stored = members.literals[0] + data[start : start + length]
    assert stored == zip_of([("a.bin", b"hello")])[: len(stored)]


def test_numbers_of_zip64_fields_are_read() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive, archive.open("a.bin", "w", force_zip64=True) as out:
        out.write(b"hello")
    plain = file.getvalue()
    assert contents(plain) == [("a.bin", b"hello")]
    at = central(plain)
    numbers = struct.pack("<2H3QI", 1, 28, 5, 5, 0, 0)
    entry = bytearray(plain[at : plain.index(b"PK\5\6")])
    entry[20:28], entry[30:32], entry[34:36] = b"\xff" * 8, b"\x20\0", b"\xff\xff"
    entry[42:46] = b"\xff" * 4
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(entry) + 32, at, 0)
    assert contents(plain[:at] + entry + numbers + end) == [("a.bin", b"hello")]


def announced(data: bytes, directory_bytes: int) -> bytes:
    """The zip with a zip64 end record that announces a central directory of that length."""
    at = len(data) - 22
    count = int.from_bytes(data[at + 10 : at + 12], "little")
    numbers = (45, 45, 0, 0, count, count, directory_bytes, 0)
    large = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, *numbers)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, at, 1)
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, *[0xFFFF] * 2, *[0xFFFFFFFF] * 2, 0)
    return data[:at] + large + locator + end


REFUSALS = [
    (b"", 0),
    (b"no zip at all" * 9, 117),
    (patched_twice(zip_of(MEMBERS), "flags", 1), 487),
    (patched_twice(zip_of(MEMBERS), "flags", 1 << 6), 487),
    (patched_twice(zip_of(MEMBERS), "flags", 1 << 13), 487),
    (patched_twice(zip_of(MEMBERS), "method", 99), 487),
    (patched_twice(zip_of(MEMBERS), "flags", 1 << 5), 487),
    (patched_twice(zip_of(MEMBERS), "method", 97), 487),
    (patched(zip_of(MEMBERS), central(zip_of(MEMBERS)) + 34, 1), 487),
    (patched(zip_of(MEMBERS), len(zip_of(MEMBERS)) - 18, 1), 696),
    (patched(zip_of(MEMBERS), len(zip_of(MEMBERS)) - 12, 5), 696),
    (patched(zip_of(MEMBERS), len(zip_of(MEMBERS)) - 10, 1 << 31, 4), 696),
    (announced(zip_of(MEMBERS), 1 << 40), 772),
    (patched_twice(zip_of(MEMBERS), "size", 41, 4), 487),
    (zip_of(MEMBERS).replace(b"a.bin", b"a\0bin"), 487),
    (zip_of(MEMBERS).replace(b"a.bin", b"b.bin", 1), 487),
    (patched(zip_of(MEMBERS), 8, 8), 487),
    (patched(zip_of(MEMBERS), 14, 1, 4), 487),
    (patched(zip_of(MEMBERS), 28, 8), 487),
    (
        patched(zip_of(MEMBERS), central(zip_of(MEMBERS), 1) + 42, 0, 4),
        538,
    ),
    (
        patched(zip_of(MEMBERS), central(zip_of(MEMBERS), 1) + 42, 3, 4),
        538,
    ),
    (
        patched(zip_of(MEMBERS), central(zip_of(MEMBERS), 1) + 42, 1 << 30, 4),
        538,
    ),
    (
        patched_twice(patched_twice(zip_of(MEMBERS), "stored", 1 << 30, 4), "size", 1 << 30, 4),
        487,
    ),
    (
        patched(zip_of(MEMBERS), len(zip_of(MEMBERS)) - 14, 3),
        696,
    ),
    (patched(zip_of([("d/", b"")]), 0, 0), 32),
]


@pytest.mark.parametrize(("data", "offset"), REFUSALS)
def test_what_dsort_cannot_move_is_refused_by_name(data: bytes, offset: int) -> None:
    with raises(CorruptShardError, shard="s.zip", offset=offset):
        scan(data)


def test_entries_of_methods_that_nothing_reads_move_and_are_not_read() -> None:
    data = patched_twice(zip_of(MEMBERS, deflated=True), "method", 93)
    members = scan(data)
    assert members.notes.other_methods == (0,)  # type: ignore[attr-defined]
    with raises(ValueError, "zstd"):
        content(data, members, 0)


@pytest.mark.parametrize(
    ("size", "text"), [(39, "another size"), (41, "another size"), (40, "another CRC-32")]
)
def test_a_deflated_payload_is_as_long_as_the_directory_says(size: int, text: str) -> None:
    data = zip_of([("a.bin", b"x" * 40)], deflated=True)
    if size == 40:
        data = patched_twice(data, "crc", 1, 4)
    data = patched_twice(data, "size", size, 4)
    with raises(ValueError):
        content(data, scan(data), 0)


@pytest.mark.parametrize("size_bytes", [(1 << 20) - 1, 1 << 20, (1 << 20) + 1, (2 << 20) + 200])
def test_zeros_are_inflated_whole_wherever_their_last_piece_ends(size_bytes: int) -> None:
    data = zip_of([("a.bin", bytes(size_bytes))], deflated=True)
    members = scan(data)
    assert b"".join(ZIP.payloads.decompressed(members, 0, [deflated(data, members)])) == bytes(
        size_bytes
    )


def test_a_long_deflated_payload_takes_no_longer_in_one_piece_than_in_many() -> None:
    payload = random.Random(4).randbytes(1 << 20) * 48
    data = zip_of([("a.bin", payload)], deflated=True)
    members, taken_s = scan(data), []
    stored = deflated(data, members)
    for size in (64 << 10, len(stored)):
        pieces = [stored[at : at + size] for at in range(0, len(stored), size)]
        began_s = time.process_time()
        assert sum(map(len, ZIP.payloads.decompressed(members, 0, pieces))) == len(payload)
        taken_s.append(time.process_time() - began_s)
    assert taken_s[1] < 3 * taken_s[0]


@pytest.mark.parametrize("writer", WRITERS)
def test_a_zip_that_is_cut_off_anywhere_is_refused(writer: dict) -> None:
    data = zip_of(MEMBERS, **writer)
    for length in range(len(data)):
        with pytest.raises(CorruptShardError):
            scan(data[:length])


@pytest.mark.parametrize("writer", WRITERS)
def test_no_flipped_bits_of_a_header_change_what_is_read_unseen(
    writer: dict, rounds: Callable[[int, int], int]
) -> None:
    data = zip_of([("a.bin", b""), ("ü.cls", b"yy")], **writer)
    whole = scan(data)
    for at in range(len(data)):
        for mask in (1 << at % 8, 0x55, 0xFF)[: rounds(1, 3)]:
            try:
                found = scan(patched(data, at, data[at] ^ mask, 1))
            except CorruptShardError:
                continue
            if not found.notes.shortfall:
                assert found.names.tolist() == whole.names.tolist()
                assert found.payload_start.tolist() == whole.payload_start.tolist()
                assert found.payload_bytes.tolist() == whole.payload_bytes.tolist()
