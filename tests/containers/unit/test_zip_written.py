"""What is written as a zip, judged by readers that are not dsort's: Python's and Info-ZIP's."""

from __future__ import annotations

import io
import shutil
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dsort.containers.zip.container import ZIP
from dsort.containers.zip.entries import new_member, new_members, placed_directory
from tests.support.internals import BytesColumn, PlacedEntries
from tests.support.zips import zip_of

GIB = 1 << 30


def shard_of(members: list[tuple[str, bytes]]) -> bytes:
    """A shard as a job puts it together."""
    parts: list[bytes] = []
    placed = []
    at = entries_bytes = 0
    for name, payload in members:
        pieces, entry = ZIP.encode(name.encode(), payload)
        placed.append((at, entry))
        entries_bytes += len(entry)
        at += sum(map(len, pieces))
        parts += pieces
    end = ZIP.end(PlacedEntries.of(placed), at)
    assert len(end) == ZIP.end_bytes(len(members), entries_bytes, at)
    return b"".join(parts) + end


def shard_of_empty(count: int) -> bytes:
    """The same of so many members without payload, which are written all at once."""
    names = BytesColumn.of([b"%x" % number for number in range(count)])
    headers, entries = new_members(names, np.zeros(count, np.int64), np.zeros(count, np.uint32))
    end = ZIP.end(PlacedEntries(entries, headers.offsets[:-1]), len(headers.blob))
    assert len(end) == ZIP.end_bytes(count, len(entries.blob), len(headers.blob))
    return headers.blob.tobytes() + end


def test_a_zip_of_no_members_is_a_zip() -> None:
    assert zipfile.ZipFile(io.BytesIO(shard_of([]))).namelist() == []
    assert len(ZIP.scan("s.zip", shard_of([]))) == 0


def test_members_written_at_once_are_those_written_one_by_one() -> None:
    assert shard_of_empty(300) == shard_of([(f"{number:x}", b"") for number in range(300)])


def test_new_members_are_stored_with_utf8_names_and_no_time() -> None:
    data = shard_of([("a.bin", b"hello"), ("ü.bin", b"")])
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        infos = archive.infolist()
    assert [(each.filename, each.flag_bits) for each in infos] == [("a.bin", 0), ("ü.bin", 0x800)]
    assert {each.date_time for each in infos} == {(1980, 1, 1, 0, 0, 0)}
    assert {each.external_attr >> 16 for each in infos} == {0o100644}


@pytest.mark.parametrize("count", [65_534, 65_536])
def test_more_members_than_16_bits_count_need_zip64(tmp_path: Path, count: int) -> None:
    data = shard_of_empty(count)
    assert (b"PK\6\7" in data) == (count >= 65_535)
    assert len(ZIP.scan("s.zip", data)) == count
    if count == 65_536:
        assert len(zipfile.ZipFile(io.BytesIO(data)).namelist()) == count
        (tmp_path / "s.zip").write_bytes(data)
        if shutil.which("zipinfo"):
            done = subprocess.run(
                ["zipinfo", "-h", tmp_path / "s.zip"], capture_output=True, text=True, check=True
            )
            assert "number of entries: 65536" in done.stdout


def test_members_beyond_4_gib_are_found_by_others(tmp_path: Path) -> None:
    path, members = tmp_path / "s.zip", [("a.bin", b"one"), ("b.bin", b"two")]
    placed = []
    with path.open("wb") as file:  # full of holes: it takes some KB of disk
        for number, (name, payload) in enumerate(members):
            pieces, entry = ZIP.encode(name.encode(), payload)
            placed.append((number * 5 * GIB, entry))
            file.seek(number * 5 * GIB)
            file.writelines(pieces)
        at = file.tell()
        end = ZIP.end(PlacedEntries.of(placed), at)
        file.write(end)
    assert len(end) == ZIP.end_bytes(2, sum(len(entry) for _, entry in placed), at)
    with zipfile.ZipFile(path) as archive:
        assert [(name, archive.read(name)) for name in archive.namelist()] == members
    mapped = np.memmap(path, np.uint8, "r")
    found = ZIP.scan("s.zip", mapped)
    assert found.names.tolist() == [b"a.bin", b"b.bin"]
    assert found.range_start.tolist() == [0, 5 * GIB]
    assert found.entries is not None
    assert found.entries.tolist() == [entry for _, entry in placed]


def test_entries_of_large_members_take_12_bytes_more_in_a_large_shard_as_all_others_do() -> None:
    small, large = new_member(b"a.bin", 3, 0)[1], new_member(b"b.bin", 5 * GIB, 0)[1]
    placed = PlacedEntries.of([(0, small), (100, large), (6 * GIB, small)])
    directory = placed_directory(placed, 7 * GIB)
    assert len(directory) == 2 * len(small) + len(large) + 3 * 12
    end = ZIP.end(placed, 7 * GIB)
    with zipfile.ZipFile(Holes(7 * GIB, end)) as archive:
        infos = archive.infolist()
    assert [each.header_offset for each in infos] == [0, 100, 6 * GIB]
    assert [each.file_size for each in infos] == [3, 5 * GIB, 3]


class Holes(io.RawIOBase):
    """A file of ``size_bytes`` zeros and ``end``."""

    def __init__(self, size_bytes: int, end: bytes) -> None:
        self._size_bytes, self._end, self._at = size_bytes, end, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._at, self._size_bytes + len(self._end))[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        first = self._at - self._size_bytes
        assert first >= 0
        data = self._end[first:] if size < 0 else self._end[first : first + size]
        self._at += len(data)
        return data


def test_names_that_no_zip_can_have_are_refused() -> None:
    for name in (b"", b"a\0", b"\xff.bin", b"n" * 65_536):
        with pytest.raises(ValueError, match="zip"):
            new_member(name, 0, 0)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_renamed_member_says_so_in_its_header_and_in_its_entry(*, streamed: bool) -> None:
    data = zip_of([("a.bin", b"hello")], streamed=streamed)
    members = ZIP.scan("s.zip", data)
    assert members.entries is not None
    start = int(members.payload_start[0])
    headers = ZIP.renamed(BytesColumn.of([data[:start]]), BytesColumn.of(["ü.bin".encode()]))
    entries = ZIP.entries.renewed(headers, members.entries)
    stored = headers[0] + data[start : int(members.range_length[0])]
    whole = stored + ZIP.end(PlacedEntries(entries, np.zeros(1, np.int64)), len(stored))
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        assert archive.read("ü.bin") == b"hello"
    assert ZIP.scan("s.zip", whole).names.tolist() == ["ü.bin".encode()]
