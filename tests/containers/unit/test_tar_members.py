"""Whatever wrote a tar, a scan finds exactly the members that are in it, and its end: in one
piece, in windows of any size, many headers at once or one by one. What it says to copy makes a
tar with just these members, as ``tarfile`` and GNU tar read it."""

from __future__ import annotations

import io
import itertools
import random
import subprocess
import tarfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from dsort.containers.tar.oddities import TarNotes
from dsort.errors import CorruptShardError
from tests.support.internals import MemberKind
from tests.support.refusals import raises
from tests.support.tar_builder import END, header, member, pax
from tests.support.tar_reading import (
    as_plain,
    extracted,
    listed,
    members_in,
    read_with_tarfile,
    scan,
    scan_by_the_book,
    scan_in_windows,
)
from tests.support.tar_torture import Found, TarCase, crafted_cases, rewritten
from tests.support.tar_written import (
    GNU_FORMATS,
    gnu_tar_cases,
    tarfile_cases,
    webdataset_cases,
)

CASES = {case.name: case for case in [*crafted_cases(), *tarfile_cases(), *webdataset_cases()]}
GNU_CASES = [f"GNU tar, {name}" for name in GNU_FORMATS]


@pytest.fixture(scope="module")
def gnu_cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TarCase]:
    made = gnu_tar_cases(tmp_path_factory.mktemp("gnu-tar"))
    return {case.name: case for case in made}


@pytest.fixture(params=[*CASES, *GNU_CASES])
def case(request: pytest.FixtureRequest, gnu_cases: dict[str, TarCase]) -> TarCase:
    return CASES.get(request.param) or gnu_cases[request.param]


def without_payload_of_sparse(found: list[Found], expected: list[Found]) -> list[Found]:
    sparse = {member.name for member in expected if member.payload is None}
    return [Found(f.name, None, f.kind) if f.name in sparse else f for f in found]


def test_a_scan_finds_the_members_and_notes_what_is_odd(case: TarCase) -> None:
    table = scan("s.tar", case.data)
    found = without_payload_of_sparse(members_in(case.data, table), case.members)
    assert found == case.members
    assert replace(table.notes, shortfall="") == TarNotes(**case.notes)  # type: ignore[arg-type]


@pytest.mark.sample(keep=20)
def test_windows_of_any_size_give_the_same_table(case: TarCase) -> None:
    whole = as_plain(scan("s.tar", case.data))
    for window_bytes, before in itertools.product((1, 1024, 3000, 70_000), (0, 700, 1)):
        found = scan_in_windows(case.data, [window_bytes], before=before)
        assert as_plain(found) == whole, (window_bytes, before)


def test_many_at_once_and_one_by_one_give_the_same_table(case: TarCase) -> None:
    assert as_plain(scan("s.tar", case.data)) == as_plain(scan_by_the_book(case.data))


def test_tarfile_reads_back_what_is_copied(case: TarCase) -> None:
    back = read_with_tarfile(rewritten(case.data, scan("s.tar", case.data)))
    same = without_payload_of_sparse(back, case.members) == case.members
    assert same == (case.misread_by != "tarfile")


@pytest.mark.sample(keep=20)
def test_gnu_tar_reads_back_what_is_copied(case: TarCase, tmp_path: Path) -> None:
    copy = rewritten(case.data, scan("s.tar", case.data))
    if case.misread_by == "GNU tar":
        with pytest.raises(subprocess.CalledProcessError):
            listed(copy)
        return
    assert listed(copy) == b"".join(member.name + b"\n" for member in case.members)
    files = extracted(copy, tmp_path / "out", but=("chr", "blk"))
    for each in {one.name: one for one in case.members}.values():
        path = each.name.removeprefix(b"./")
        if each.kind == MemberKind.FILE and each.payload is not None:
            assert files.pop(path) == each.payload
        elif each.kind == MemberKind.FILE:
            assert len(files.pop(path)) > 0
    assert files == {}


def test_sparse_members_keep_their_content(gnu_cases: dict[str, TarCase], tmp_path: Path) -> None:
    for number, name in enumerate(("GNU tar, gnu", "GNU tar, pax", "GNU tar, oldgnu")):
        data = gnu_cases[name].data
        copy = rewritten(data, scan("s.tar", data))
        before = extracted(data, tmp_path / f"before-{number}")
        after = extracted(copy, tmp_path / f"after-{number}")
        assert len(before[b"holes.bin"]) == 2_500_004
        assert after[b"holes.bin"] == before[b"holes.bin"]


ONE, TWO = member(b"a.jpg", b"a" * 600), member(b"b.jpg", b"b")
MIB = 1 << 20


def notes_of(data: bytes) -> TarNotes:
    """The notes, which have to be the same in all ways of reading."""
    table = scan("s.tar", data)
    assert as_plain(scan_by_the_book(data)) == as_plain(table)
    for size in (1, 700, 1024, 5000):
        if len(data) // size < 50_000:
            assert as_plain(scan_in_windows(data, [size], before=3)) == as_plain(table)
    assert isinstance(table.notes, TarNotes)
    return table.notes


def padded_to(data: bytes, record_bytes: int) -> bytes:
    return data + END + bytes(-(len(data) + len(END)) % record_bytes)


@pytest.mark.parametrize("record_bytes", [512, 10240])
def test_what_a_writer_pads_with_is_no_matter(record_bytes: int) -> None:
    assert notes_of(padded_to(ONE + TWO, record_bytes)) == TarNotes()


@pytest.mark.parametrize("record_bytes", [32 << 10, 64 << 10, MIB])
def test_unusual_records_are_said(record_bytes: int) -> None:
    whole = padded_to(ONE + TWO, record_bytes)
    padding = len(whole) - len(ONE + TWO + END)
    assert notes_of(whole) == TarNotes(unusual_padding=padding)
    assert notes_of(whole).shortfall == ""


@pytest.mark.parametrize("blocks", [1, 20, 64, 2048])
def test_what_gnu_tar_pads_with_is_no_matter(blocks: int, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(b"x" * (700 * number))
    tar = ["tar", "-b", str(blocks), "-C", str(tmp_path), "-cf", "-", "0.jpg", "1.jpg", "2.jpg"]
    data = subprocess.run(tar, capture_output=True, check=True).stdout
    assert len(data) % (512 * blocks) == 0
    notes = scan("s.tar", data).notes
    assert notes.shortfall == ""
    assert isinstance(notes, TarNotes)
    assert bool(notes.unusual_padding) is (blocks > 20)


@pytest.mark.parametrize("blocks", [20, 64])
@pytest.mark.parametrize("how", ["-A", "-r", "--delete"])
def test_what_gnu_tar_makes_of_a_tar_is_whole(how: str, blocks: int, tmp_path: Path) -> None:
    rng = random.Random(f"{how} {blocks}")
    for name in ("a", "b", "c", "d"):
        (tmp_path / f"{name}.jpg").write_bytes(b"x" * rng.randrange(20_000))
        tar = ["tar", "-b", str(blocks), "-cf", f"{name}.tar", f"{name}.jpg"]
        subprocess.run(tar, cwd=tmp_path, check=True)
    more = {"-A": ["b.tar", "c.tar", "d.tar"], "-r": ["b.jpg", "c.jpg"], "--delete": []}[how]
    if how == "--delete":
        subprocess.run(["tar", "-rf", "a.tar", "b.jpg", "c.jpg"], cwd=tmp_path, check=True)
        subprocess.run(
            ["tar", "--delete", "-f", "a.tar", "b.jpg", "c.jpg"], cwd=tmp_path, check=True
        )
    else:
        subprocess.run(["tar", how, "-f", "a.tar", *more], cwd=tmp_path, check=True)
    table = scan("s.tar", (tmp_path / "a.tar").read_bytes())
    assert table.names.tolist() == [b"a.jpg", *(name[:1].encode() + b".jpg" for name in more)]
    if blocks == 20 or how != "-A":  # GNU tar pads records of unusual size by those of usual size
        assert table.notes.shortfall == ""


def test_more_than_a_mebibyte_of_padding_is_not_explained() -> None:
    whole = padded_to(ONE, 2 * MIB)
    assert notes_of(whole).unexplained_zeros == len(whole) - len(ONE + END)


def test_more_zeros_than_one_record_are_not_explained_but_by_a_tar_that_was_added() -> None:
    whole = padded_to(ONE * 9, 10240)
    padding = len(whole) + 10240 - len(ONE * 9 + END)
    assert notes_of(whole + bytes(10240)) == TarNotes(unusual_padding=padding)
    assert notes_of(whole + bytes(10240)).shortfall == ""
    three_records = notes_of(whole + bytes(20480))
    assert three_records.unexplained_zeros == len(whole) + 20480 - 9 * len(ONE) - 1024
    assert notes_of(whole + bytes(512)).unexplained_zeros > 0


@pytest.mark.parametrize("size_bytes", [0, 512, 1536, 4096, 10240, 3 * MIB])
def test_nothing_but_zeros_is_said(size_bytes: int) -> None:
    notes = notes_of(bytes(size_bytes))
    assert notes.blank
    assert notes.shortfall == "it holds nothing, or nothing but zeros"


def test_an_end_marker_alone_is_a_tar_without_members() -> None:
    assert notes_of(END) == TarNotes()


@pytest.mark.parametrize("padding", [0, 10240 - 1024 - len(ONE)])
def test_a_tar_behind_a_tar_is_read(padding: int) -> None:
    data = ONE + END + bytes(padding) + TWO + END
    assert scan("s.tar", data).names.tolist() == [b"a.jpg", b"b.jpg"]
    assert notes_of(data) == TarNotes(concatenated=1)


def test_large_padded_tars_behind_one_another_are_read() -> None:
    data = padded_to(ONE, MIB) + padded_to(TWO, MIB)
    notes = notes_of(data)
    assert (notes.concatenated, notes.shortfall) == (1, "")


def test_the_second_tar_has_to_end_as_well() -> None:
    notes = notes_of(ONE + END + TWO)
    assert notes == TarNotes(concatenated=1, missing_end=True, shortfall=notes.shortfall)
    with raises(CorruptShardError, shard="s.tar", offset=2560):
        scan("s.tar", ONE + END + member(b"b.jpg", b"b" * 2000)[:-512])


@pytest.mark.parametrize("zeros", [3, 8, 64])
def test_zeros_between_members_that_no_writer_pads_with_are_said(zeros: int) -> None:
    data = ONE * 30 + bytes(zeros * 4096) + TWO + END
    notes = notes_of(data)
    assert (notes.concatenated, notes.unexplained_zeros) == (1, zeros * 4096 - 1024)


def test_a_header_behind_the_end_must_be_one() -> None:
    broken = bytearray(TWO)
    broken[0] ^= 1
    notes = notes_of(ONE + END + bytes(broken) + END)
    assert (notes.concatenated, notes.trailing_bytes) == (0, len(TWO + END))
    assert notes_of(ONE + END + TWO[:300]).trailing_bytes == 300


def test_a_header_that_begins_with_a_nul_is_one_in_any_window() -> None:
    data = ONE + END + header(b"\0nameless") + TWO + END
    assert notes_of(data).concatenated == 1


def test_global_headers_end_with_their_archive() -> None:
    globals_ = pax({b"uname": b"one"}, b"g")
    data = globals_ + ONE + END + TWO + END
    table = scan("s.tar", data)
    assert set(table.literals) == {0}
    assert notes_of(data).global_headers_folded == 1


def test_every_cut_of_a_tar_is_refused_or_said_or_gives_every_member() -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for number in range(25):
            info = tarfile.TarInfo(f"{number}.jpg")
            info.size = 397 * (number % 7)
            archive.addfile(info, io.BytesIO(b"x" * info.size))
    data = out.getvalue()
    all_of_them = scan("s.tar", data).names.tolist()
    for cut in range(0, len(data), 128):
        try:
            table = scan("s.tar", data[:cut])
        except CorruptShardError:
            continue
        assert table.notes.shortfall or table.names.tolist() == all_of_them
