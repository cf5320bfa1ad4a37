"""``unsafe_names``: what would be unpacked elsewhere is told, renamed or refused."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from dsort import api
from dsort.errors import UnsafeNameError
from dsort.inspection import inspect_object
from dsort.reports import RunOptions
from dsort.storage.local import LocalBucket
from tests.support.datasets import files_of
from tests.support.engine import count_of, refused, run_local, spec_of
from tests.support.tar_builder import END, gnu_long, header, member, pax

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


def test_they_are_told_and_kept_by_default(root: Path) -> None:
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
    checked = api.verify(
        (root / "out" / str(report.manifest_name)).read_bytes(),
        output_uri=(root / "out").as_uri(),
        options=RunOptions(root=root),
    )
    assert (checked.ok, checked.records) == (True, 8)


def test_they_are_refused(root: Path) -> None:
    words = ("in.tar", "7 members", "../a.jpg", "unsafe_names: rename")
    with refused(root, UnsafeNameError, *words):
        run_local(root, spec_of(Config={"unsafe_names": "abort"}))


def test_inspect_calls_them_odd(root: Path) -> None:
    summary = inspect_object(LocalBucket(root / "in"), "in.tar")
    odd = {each.kind: each.count for each in summary.oddities}
    assert (odd["unsafe_names"], odd["unsafe_links"]) == (4, 3)
