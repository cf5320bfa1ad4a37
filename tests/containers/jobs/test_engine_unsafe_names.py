"""Odd tars in whole jobs: all that is in them comes out, and what would be unpacked elsewhere
(``unsafe_names``) is reported, renamed or refused."""

from __future__ import annotations

import io
import itertools
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from dsort.errors import CorruptShardError, UnsafeNameError
from dsort.shard_contents import inspect_object
from dsort.storage.directory.bucket import LocalBucket
from tests.support.datasets import Member, files_of, write_shards
from tests.support.engine import count_of, refused, run_local, spec_of, verify_local
from tests.support.inline_runtime import Moved, run_inline
from tests.support.internals import MemberKind
from tests.support.tar_builder import END, checksum, gnu_long, header, member, pax
from tests.support.tar_corrupt import corrupt_cases
from tests.support.tar_reading import read_with_tarfile
from tests.support.tar_torture import Found, TarCase, crafted_cases
from tests.support.tar_written import gnu_tar_cases, tarfile_cases, webdataset_cases

pytestmark = pytest.mark.usefixtures("workers_here")


FAR = b"../" * 60 + b"etc/passwd"
SHARD = (
    member(b"a.jpg", b"a")
    + member(b"../a.jpg", b"up")
    + member(b"../a.cls", b"up too")
    + member(b"/abs/b.jpg", b"abs", style="gnu")
    + pax({b"path": b"c/../c.jpg", b"mtime": b"1.5"})
    + member(b"c.jpg", b"c")
    + header(b"out", 0, b"2", link=b"../out")
    + gnu_long(FAR, b"K")
    + header(b"far", 0, b"2", link=FAR[:100], style="gnu")
    + pax({b"linkpath": b"/etc/passwd"})
    + header(b"pax", 0, b"2", link=b"x")
    + header(b"d/in", 0, b"2", link=b"../a.jpg")
    + END
)
UNSAFE = ["../a.jpg", "../a.cls", "/abs/b.jpg", "c/../c.jpg", "out (a link to ../out)"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "in.tar").write_bytes(SHARD)
    return tmp_path


def members_out(root: Path) -> list[tuple[str, str, bytes]]:
    found = []
    for _, data in sorted(files_of(root / "out").items()):
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for info in archive:
                file = archive.extractfile(info) if info.isreg() else None
                found.append((info.name, info.linkname, file.read() if file else b""))
    return found


def test_they_are_reported_and_kept_by_default(root: Path) -> None:
    report = run_local(root, spec_of(verify="content"))
    count, names = count_of(report, "unsafe_names")
    assert count == 7
    assert list(names[:5]) == [f"in.tar: {name}" for name in UNSAFE]
    assert any("unsafe_names: rename" in text for text in report.warnings)
    assert ("../a.jpg", "", b"up") in members_out(root)


@pytest.mark.parametrize("move", ["map", "spill"])
def test_they_are_renamed_for_every_reader(root: Path, move: str) -> None:
    spec = spec_of(unsafe_names="rename", verify="content", output_shard_records=100)
    report = run_local(root, spec, move=move)
    count, names = count_of(report, "unsafe_names_renamed")
    assert (count, names[0]) == (7, "in.tar: ../a.jpg → a-1.jpg")
    assert members_out(root) == [
        ("a.jpg", "", b"a"),
        ("a-1.jpg", "", b"up"),
        ("a-1.cls", "", b"up too"),
        ("abs/b.jpg", "", b"abs"),
        ("c/c.jpg", "", b"c"),
        ("out", "out", b""),
        ("far", "etc/passwd", b""),
        ("pax", "etc/passwd", b""),
        ("d/in", "../a.jpg", b""),
    ]
    checked = verify_local(root, report)
    assert (checked.ok, checked.records) == (True, 8)


def test_they_are_refused(root: Path) -> None:
    words = ("in.tar", "7 members", "../a.jpg", "unsafe_names: rename")
    with refused(root, UnsafeNameError, *words):
        run_local(root, spec_of(Config={"unsafe_names": "abort"}))


def test_inspect_calls_them_odd(root: Path) -> None:
    summary = inspect_object(LocalBucket(root / "in"), "in.tar")
    odd = {each.kind: each.count for each in summary.oddities}
    assert (odd["unsafe_names"], odd["unsafe_links"]) == (4, 3)


def with_prefix(blocks: bytes, magic: bytes) -> bytes:
    """``blocks`` with a prefix that leads out, in a header of another kind than POSIX."""
    prefix = b"../..".ljust(155, b"\0") + bytes(12)
    return checksum(blocks[:257] + magic + blocks[265:345] + prefix) + blocks[512:]


@pytest.mark.parametrize("magic", [b"ustar  \0", bytes(8)])
class TestPrefixes:
    """tarfile and libarchive put a prefix before the name that dsort and GNU tar do not read."""

    @pytest.fixture
    def root(self, tmp_path: Path, magic: bytes) -> Path:
        (tmp_path / "in").mkdir()
        shard = with_prefix(member(b"m.jpg", b"m"), magic) + member(b"m.cls", b"c")
        long = gnu_long(b"long/" * 30 + b"z.jpg") + with_prefix(member(b"z", b"z"), magic)
        (tmp_path / "in" / "in.tar").write_bytes(shard + long + END)
        return tmp_path

    def test_they_are_reported(self, root: Path) -> None:
        count, names = count_of(run_local(root, spec_of()), "unsafe_names")
        assert (count, names[0]) == (1, "in.tar: m.jpg (../../m.jpg for some readers)")
        assert next(name for name, _, _ in members_out(root)) == "../../m.jpg"

    def test_they_are_taken_out(self, root: Path) -> None:
        report = run_local(root, spec_of(unsafe_names="rename", verify="content"))
        assert count_of(report, "unsafe_names_renamed")[0] == 1
        names = [name for name, _, _ in members_out(root)]
        assert names == ["m.jpg", "m.cls", "long/" * 30 + "z.jpg"]

    def test_they_are_refused(self, root: Path) -> None:
        with refused(root, UnsafeNameError, "in.tar", "1 member ", "../../m.jpg"):
            run_local(root, spec_of(Config={"unsafe_names": "abort"}))

    def test_inspect_calls_them_odd(self, root: Path) -> None:
        summary = inspect_object(LocalBucket(root / "in"), "in.tar")
        assert {each.kind: each.count for each in summary.oddities}["unsafe_prefixes"] == 1


LINKS = {
    "straight": [(b"d", b"."), (b"d/e/f.jpg", b"../../x")],
    "further down": [(b"a/b/c", b".."), (b"a/b/c/x.jpg", b"../../y")],
    "backwards": [(b"d/e/f.jpg", b"../../x"), (b"d", b".")],
    "in the target": [(b"d", b"."), (b"f.jpg", b"d/../x")],
    "after a new name": [(b"../d", b"."), (b"d/e/f.jpg", b"../../x")],
    "after another new name": [(b"d", b"x"), (b"/d", b"."), (b"d-1/e/f.jpg", b"../../x")],
}


@pytest.mark.parametrize("case", LINKS)
class TestLinksThroughLinks:
    """Each link stays inside as it is written; together they lead out."""

    @pytest.fixture
    def root(self, tmp_path: Path, case: str) -> Path:
        (tmp_path / "in").mkdir()
        links = [header(name, 0, b"2", link=target) for name, target in LINKS[case]]
        shard = b"".join(links) + member(b"d/ok.jpg", b"x")
        (tmp_path / "in" / "in.tar").write_bytes(shard + END)
        return tmp_path

    def test_they_are_reported(self, root: Path) -> None:
        _, names = count_of(run_local(root, spec_of()), "unsafe_names")
        assert any("jpg (a link to " in name for name in names)

    def test_they_are_mended(self, root: Path, case: str) -> None:
        run_local(root, spec_of(unsafe_names="rename", verify="content"))
        targets = {name: link for name, link, _ in members_out(root)}
        (found,) = [
            link for name, link in targets.items() if link[-1:] in ("x", "y") and "." in name
        ]
        assert ".." not in found.split("/")
        assert not {*targets.values()} & {"../../x", "../../y"}

    def test_they_are_refused(self, root: Path) -> None:
        with refused(root, UnsafeNameError, "in.tar"):
            run_local(root, spec_of(Config={"unsafe_names": "abort"}))

    def test_inspect_calls_them_odd(self, root: Path) -> None:
        summary = inspect_object(LocalBucket(root / "in"), "in.tar")
        assert {each.kind: each.count for each in summary.oddities}["unsafe_links"] == 1


def test_a_prefix_counts_for_links_through_links(tmp_path: Path) -> None:
    """For tarfile the second link is ``p/c/f.jpg``, and goes through the first."""
    (tmp_path / "in").mkdir()
    second = header(b"c/f.jpg", 0, b"2", link=b"../x", style="gnu", prefix=b"p")
    shard = header(b"p/c", 0, b"2", link=b"..") + second + member(b"z.jpg", b"z") + END
    (tmp_path / "in" / "in.tar").write_bytes(shard)
    count, names = count_of(run_local(tmp_path, spec_of()), "unsafe_names")
    assert (count, names) == (1, ("in.tar: c/f.jpg (a link to ../x)",))


def test_ordinary_links_are_not_reported(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    links = [(b"latest", b"v2"), (b"v1/a.jpg", b"../v2/a.jpg"), (b"b.jpg", b"latest/a.jpg")]
    shard = b"".join(header(name, 0, b"2", link=target) for name, target in links)
    (tmp_path / "in" / "in.tar").write_bytes(shard + member(b"v2/a.jpg", b"a") + END)
    report = run_local(tmp_path, spec_of())
    assert report.warnings == () or not any("unsafe" in text for text in report.warnings)


def meaning(found: Found) -> tuple[bytes, bytes | None, int]:
    return found.name.rstrip(b"/"), found.payload, found.kind


def all_cases(tmp_path: Path) -> list[TarCase]:
    """All but those that this test could not read back."""
    (tmp_path / "files").mkdir()
    cases = [
        *crafted_cases(),
        *gnu_tar_cases(tmp_path / "files"),
        *tarfile_cases(),
        *webdataset_cases(),
    ]
    return [case for case in cases if case.misread_by != "tarfile"]


def wanted_of(case: TarCase) -> Counter[tuple[bytes, bytes | None, int]]:
    """What of a shard must come out: all files and links, but of those side by side with one name
    the last. Strays are passed over, and none comes twice here."""
    kept = [each for each in case.members if each.kind in (MemberKind.FILE, MemberKind.SYMLINK)]
    strays = [each for each in kept if b"." not in each.name.rpartition(b"/")[2][1:]]
    others = [each for each in kept if each not in strays]
    last = [*others[-1:], *strays]
    last += [each for each, later in itertools.pairwise(others) if each.name != later.name]
    return Counter(map(meaning, last))


@pytest.mark.parametrize("move", ["map", "spill"])
def test_all_that_is_in_odd_shards_comes_out(move: str, tmp_path: Path) -> None:
    cases = all_cases(tmp_path)
    wanted = sum(map(wanted_of, cases), Counter[tuple[bytes, bytes | None, int]]())
    write_shards(tmp_path / "in", {f"{n:03d}.tar": case.data for n, case in enumerate(cases)})
    spec = spec_of(
        algorithm={"kind": "shuffle", "seed": 3},
        output_shard_records=200,
        verify="content",
        Config={
            "duplicate_keys": "ignore",
            "duplicated_records": "ignore",
            "incomplete_shards": "ignore",
        },
    )
    run_local(tmp_path, spec, move=move, workers=2)
    found: Counter[tuple[bytes, bytes | None, int]] = Counter()
    for data in files_of(tmp_path / "out").values():
        found += Counter(map(meaning, read_with_tarfile(data)))
    assert found == wanted


def test_no_corrupt_shard_is_read_in_silence(tmp_path: Path) -> None:
    cases = corrupt_cases()
    write_shards(tmp_path / "in", {f"{n:03d}.tar": case.data for n, case in enumerate(cases)})
    spec = spec_of(Config={"corrupt_shards": "skip", "duplicate_keys": "ignore"})
    for moved in (Moved("map"), Moved("spill", buffer_bytes=1 << 20, partitions=3, order_seed=1)):
        report = run_inline(spec, tmp_path, moved, overwrite=True)
        assert count_of(report, "corrupt_shards")[0] == len(cases)
        assert report.records == 0


def test_garbage_in_the_middle_of_a_job_names_its_shard(tmp_path: Path) -> None:
    good = member(b"a.jpg", b"a") + END
    write_shards(tmp_path / "in", {"0.tar": good, "1.tar": b"not a tar\n" * 300, "2.tar": good})
    with refused(tmp_path, CorruptShardError, "1.tar", "byte 0"):
        run_local(tmp_path, spec_of(), workers=2)


def test_global_headers_stay_true_for_members_that_are_renamed(tmp_path: Path) -> None:
    long = b"/".join([b"directory"] * 12) + b"/a.jpg"
    write_shards(
        tmp_path / "in",
        {
            "0.tar": member(b"a.jpg", b"0") + gnu_long(long) + member(long[:90], b"0") + END,
            "1.tar": pax({b"mtime": b"1.5"}, b"g")
            + member(b"a.jpg", b"1" * 700)
            + member(b"a.hard", b"", b"1", link=b"a.jpg")
            + gnu_long(long)
            + member(long[:90], b"2", style="gnu")
            + pax({b"mtime": b"2.5"})
            + member(b"b.jpg", b"3")
            + END,
        },
    )
    spec = spec_of(output_shard_records=9, Config={"duplicate_keys": "rename"})
    run_local(tmp_path, spec)
    with tarfile.open(tmp_path / "out" / "out-0.tar") as archive:
        found = []
        for info in archive:
            file = archive.extractfile(info)
            assert file is not None
            found.append((info.name, file.read(), info.mtime))
    key = long.decode().removesuffix(".jpg")
    assert found[2:] == [
        ("a-1.jpg", b"1" * 700, 1.5),
        ("a-1.hard", b"1" * 700, 1.5),
        (f"{key}-1.jpg", b"2", 1.5),
        ("b.jpg", b"3", 2.5),
    ]


def test_a_record_may_be_larger_than_every_buffer(tmp_path: Path) -> None:
    # Members far apart, a link to one of them, and headers that are made anew.
    big = b"".join(b"%07d\n" % n for n in range(5000))
    shard = (
        member(b"big.a", big)
        + member(b"x.jpg", b"x" * 3000)
        + member(b"big.b", big[::-1])
        + header(b"big.c", 0, b"1", link=b"big.a")
        + member(b"y.jpg", b"")
        + END
    )
    write_shards(tmp_path / "in", {"0.tar": shard, "1.tar": Member("big.z", b"z").raw + END})
    spec = spec_of(
        output_shard_records=1,
        algorithm={"kind": "alphanumeric"},
        verify="content",
        Config={"duplicate_keys": "rename"},
    )
    results = []
    for moved in (Moved("map"), Moved("spill", partitions=4, buffer_bytes=4096, workers=2)):
        run_inline(spec, tmp_path, moved, overwrite=True)
        results.append(files_of(tmp_path / "out"))
    assert results[0] == results[1]
    found = read_with_tarfile(results[0]["out-0.tar"])
    assert [(m.name, m.payload) for m in found] == [
        (b"big.a", big),
        (b"big.b", big[::-1]),
        (b"big.c", big),
    ]
