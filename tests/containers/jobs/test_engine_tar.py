"""Every odd shard of the torture set goes through a job: all that is in it comes out, and what
cannot be read whole never does so in silence."""

from __future__ import annotations

import itertools
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from dsort.errors import CorruptShardError
from tests.support.datasets import Member, files_of, write_shards
from tests.support.engine import count_of, refused, run_local, spec_of
from tests.support.inline_runtime import Moved, run_inline
from tests.support.internals import MemberKind
from tests.support.tar_builder import END, gnu_long, header, member, pax
from tests.support.tar_corrupt import corrupt_cases
from tests.support.tar_reading import read_with_tarfile
from tests.support.tar_torture import Found, TarCase, crafted_cases
from tests.support.tar_written import gnu_tar_cases, tarfile_cases, webdataset_cases

pytestmark = pytest.mark.usefixtures("workers_here")


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
    with refused(tmp_path, CorruptShardError, "1.tar", "byte 0", "not a tar"):
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
