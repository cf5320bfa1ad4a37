"""Whatever wrote a tar, a scan finds exactly the members that are in it: in one piece, in windows
of any size, many headers at once or one by one. What it says to copy makes a tar with just these
members, as ``tarfile`` and GNU tar read it."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from dsort.containers.tar.oddities import TarNotes
from tests.support.internals import MemberKind
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


def test_ranges_are_whole_blocks_that_do_not_overlap(case: TarCase) -> None:
    table = scan("s.tar", case.data)
    own = sorted(
        (start, start + length)
        for row, (start, length) in enumerate(
            zip(table.range_start.tolist(), table.range_length.tolist(), strict=True)
        )
        if table.range_start[row] < table.payload_start[row]  # a resolved hard link has no header
    )
    assert all(start % 512 == 0 and end % 512 == 0 for start, end in own)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(own))
    assert all(end <= len(case.data) for _, end in own)


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
    for member in {member.name: member for member in case.members}.values():
        path = member.name.removeprefix(b"./")
        if member.kind == MemberKind.FILE and member.payload is not None:
            assert files.pop(path) == member.payload
        elif member.kind == MemberKind.FILE:
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
