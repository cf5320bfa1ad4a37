"""Jobs over zips: entries move as they are stored, and others read all of what comes out."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from dsort import api
from dsort.errors import ConversionError, CorruptShardError
from dsort.options import RunOptions
from dsort.shard_contents import inspect_object
from dsort.storage.directory.bucket import LocalBucket
from tests.support.engine import count_of, refused, run_local, spec_of, verify_local
from tests.support.inline_runtime import Moved, run_inline
from tests.support.internals import read_shards
from tests.support.refusals import raises
from tests.support.tars import tar_of
from tests.support.zips import Record, read_zips, zip_of

pytestmark = pytest.mark.usefixtures("workers_here")

SHUFFLE = {"kind": "shuffle", "seed": 7}
ZIPS = {"input_format": {"template": "s-{0..2}"}, "input_extension": ".zip"}


def some_zips(directory: Path, *, deflated: bool = False, streamed: bool = False) -> list[Record]:
    """Three zips of unequal length in ``directory``; all that is in them."""
    directory.mkdir()
    everything: list[Record] = []
    for shard in range(3):
        members = []
        for number in range(4 + 3 * shard):
            key = f"{shard}/{number:03d}"
            members.append((f"{key}.bin", bytes([shard]) * (100 + 1000 * number)))
            members.append((f"{key}.cls", f"{99 - number}".encode()))
        data = zip_of(members, deflated=deflated, streamed=streamed)
        (directory / f"s-{shard}.zip").write_bytes(data)
        everything += members
    return everything


def outputs(bucket: Path, suffix: str = "zip") -> list[Path]:
    return sorted((bucket / "out").glob(f"*.{suffix}"))


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("deflated", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_shuffle_of_zips_keeps_every_entry_and_compresses_nothing_again(
    tmp_path: Path, *, deflated: bool, streamed: bool
) -> None:
    everything = some_zips(tmp_path / "in", deflated=deflated, streamed=streamed)
    run_local(tmp_path, spec_of(**ZIPS, algorithm=SHUFFLE, verify="content"))
    found = read_zips(outputs(tmp_path))
    assert Counter(found) == Counter(everything)
    assert found != everything
    methods = set()
    for path in outputs(tmp_path):
        with zipfile.ZipFile(path) as archive:
            methods |= {(each.compress_type, each.flag_bits) for each in archive.infolist()}
    assert methods == {(8 if deflated else 0, 8 if streamed else 0)}


def test_tars_become_zips_and_tars_again_with_the_same_members(tmp_path: Path) -> None:
    members = [(f"d/{n}.é.bin", bytes([n]) * n * 500) for n in range(5)]
    members += [("d/4.cls", b""), ("d/5.cls", b"five")]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "s-0.tar").write_bytes(tar_of(members))
    one = {"input_format": "s-{0..0}", "output_format": "s-{0..0}", "output_shard_records": 9}
    run_local(tmp_path, spec_of(**one, input_extension=".tar", output_extension=".zip"))
    (path,) = outputs(tmp_path)
    assert read_zips([path]) == members
    with zipfile.ZipFile(path) as archive:
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    back = tmp_path / "back"
    (back / "in").mkdir(parents=True)
    shutil.copy(path, back / "in")
    run_local(back, spec_of(**one, input_extension=".zip", output_extension=".tar"))
    (path,) = outputs(back, "tar")
    with tarfile.open(path) as archive:
        found = [(member.name, archive.extractfile(member).read()) for member in archive]  # type: ignore[union-attr]
    assert found == members


def test_a_tar_whose_names_no_zip_can_have_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "s-0.tar").write_bytes(tar_of([("a\udcff.bin", b"x")]))
    spec = spec_of(input_format="s-{0..0}", output_format="s-{0..0}", output_extension=".zip")
    with raises(ConversionError, "a\\xff.bin"):
        run_local(tmp_path, spec)


def test_renamed_records_have_their_new_name_wherever_a_reader_looks(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for shard in range(3):
        data = zip_of([("ü.bin", bytes([shard]))], streamed=shard == 1, deflated=shard == 2)
        (tmp_path / "in" / f"s-{shard}.zip").write_bytes(data)
    run_local(tmp_path, spec_of(**ZIPS, duplicate_keys="rename"))
    found = read_zips(outputs(tmp_path))
    assert sorted(found) == [("ü-1.bin", b"\1"), ("ü-2.bin", b"\2"), ("ü.bin", b"\0")]


def test_links_that_lead_out_are_made_safe_in_header_and_directory(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    link = zipfile.ZipInfo("a.lnk")
    link.create_system, link.external_attr = 3, 0o120777 << 16
    for shard in range(3):
        link.filename = f"{shard}.lnk"
        data = zip_of([(link, b"../../etc/passwd")], streamed=shard == 1)
        (tmp_path / "in" / f"s-{shard}.zip").write_bytes(data)
    run_local(tmp_path, spec_of(**ZIPS, unsafe_names="rename"))
    assert {payload for _, payload in read_zips(outputs(tmp_path))} == {b"etc/passwd"}


def one_with_a_wrong_byte(root: Path, *, deflated: bool) -> None:
    """Three zips in the bucket ``in``; in the second one an entry is not as its CRC-32 says."""
    some_zips(root / "in", deflated=deflated)
    path = root / "in" / "s-1.zip"
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        entry = archive.infolist()[2]
    if deflated:
        at = data.rindex(entry.filename.encode()) - 46
        for checksum in (entry.header_offset + 14, at + 16):
            data[checksum] ^= 1
    else:
        data[entry.header_offset + 30 + len(entry.filename) + 5] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("deflated", [False, True])
def test_a_payload_that_is_not_as_its_checksum_says_does_not_get_into_a_tar(
    tmp_path: Path, *, deflated: bool
) -> None:
    one_with_a_wrong_byte(tmp_path, deflated=deflated)
    spec = spec_of(**ZIPS, output_extension=".tar")
    with refused(tmp_path, CorruptShardError, "s-1.zip", "1/001.bin", "CRC-32"):
        run_local(tmp_path, spec)
    report = run_local(tmp_path, spec | {"corrupt_shards": "skip"})
    assert count_of(report, "corrupt_shards")[0] == 1
    assert report.records == 4 + 10
    assert verify_local(tmp_path, report).problems == ()
    with raises(CorruptShardError, "1/001.bin", "CRC-32", shard="s-1.zip"):
        list(read_shards(tmp_path / "in"))


@pytest.mark.parametrize("verify", ["none", "content"])
def test_an_entry_that_is_moved_is_as_its_checksum_says(tmp_path: Path, verify: str) -> None:
    one_with_a_wrong_byte(tmp_path, deflated=False)
    spec = spec_of(**ZIPS, verify=verify)
    for moved in (Moved("map"), Moved("spill"), Moved("spill", buffer_bytes=600)):
        with refused(tmp_path, CorruptShardError, "s-1.zip", "1/001.bin", "CRC-32"):
            run_inline(spec, tmp_path, moved)
    report = run_inline(spec | {"corrupt_shards": "skip"}, tmp_path)
    assert count_of(report, "corrupt_shards")[0] == 1
    assert verify_local(tmp_path, report).problems == ()


def test_a_deflated_entry_that_is_moved_is_not_looked_into(tmp_path: Path) -> None:
    one_with_a_wrong_byte(tmp_path, deflated=True)
    run_inline(spec_of(**ZIPS), tmp_path)


def test_a_tar_made_a_zip_that_changed_does_not_verify(tmp_path: Path) -> None:
    some_zips(tmp_path / "in")
    spec = spec_of(**ZIPS, output_bck="tars", output_extension=".tar")
    run_local(tmp_path, spec)
    back = {"input_bck": "tars", "input_format": {"template": "out-{0..4}"}}
    run_local(tmp_path, spec_of(**back, input_extension=".tar", output_extension=".zip"))
    (path,) = outputs(tmp_path)[:1]
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    (manifest,) = (tmp_path / "out" / ".dsort").glob("*/manifest.json")
    problems = api.verify(manifest.read_bytes(), options=RunOptions(root=tmp_path)).problems
    assert "corrupt_shard" in {each.kind for each in problems}
    assert {each.shard for each in problems} == {path.name}


def test_what_is_odd_about_zips_is_counted_and_listed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for shard in range(3):
        data = zip_of([(f"{shard}.bin", b"x")], comment=b"hello" if shard == 1 else b"")
        if shard == 2:
            data = b"#!/bin/sh\n" + data
        (tmp_path / "in" / f"s-{shard}.zip").write_bytes(data)
    report = run_local(tmp_path, spec_of(**ZIPS))
    assert count_of(report, "comments_dropped") == (5, ("s-1.zip",))
    assert count_of(report, "leading_bytes") == (10, ("s-2.zip",))
    seen = inspect_object(LocalBucket(tmp_path / "in"), "s-1.zip")
    assert [(each.kind, each.count) for each in seen.oddities] == [("comment", 5)]
    assert len(read_zips(outputs(tmp_path))) == 3
