"""A container that is not of the package is added to it: a job reads and writes its shards, and a
reader that knows nothing of dsort finds every record in them once, byte for byte."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from dsort import api
from dsort.containers import registry
from dsort.containers.base import Container
from dsort.errors import SpecError
from dsort.options import RunOptions
from dsort.registry import Registry
from dsort.shard_contents import inspect_object
from dsort.storage.directory.bucket import LocalBucket
from tests.support.engine import count_of, run_local, spec_of
from tests.support.refusals import raises
from tests.support.stored_zip import StoredZip

pytestmark = pytest.mark.usefixtures("workers_here")

Record = tuple[str, bytes]


def no_containers() -> Registry[Container]:
    return registry._Containers("dsort.containers", lambda container: container.suffixes, ())


@pytest.fixture(autouse=True)
def zips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stored zips are a container, here and in the workers that are started from here."""
    monkeypatch.setattr(registry, "_registered", no_containers())
    registry.register(StoredZip())


def zip_of(records: list[Record], comment: bytes = b"") -> bytes:
    """A shard as Python's ``zipfile`` writes it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, payload in records:
            archive.writestr(name, payload)
        archive.comment = comment
    return file.getvalue()


def some_shards(directory: Path) -> list[Record]:
    """Shards of unequal length in ``directory``; all that is in them."""
    directory.mkdir()
    everything: list[Record] = []
    for shard in range(3):
        records = []
        for number in range(4 + 3 * shard):
            key = f"{shard}/{number:03d}"
            records.append((f"{key}.bin", bytes([shard]) * (100 + 1000 * number)))
            records.append((f"{key}.cls", f"{number}".encode()))
        (directory / f"s-{shard}.szip").write_bytes(zip_of(records))
        everything += records
    return everything


def read_with_zipfile(directory: Path) -> list[Record]:
    found: list[Record] = []
    for path in sorted(directory.glob("*.szip")):
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            found += [(each.filename, archive.read(each)) for each in archive.infolist()]
    return found


def manifest_in(bucket: Path) -> bytes:
    (path,) = (bucket / ".dsort").glob("*/manifest.json")
    return path.read_bytes()


ZIPS = {
    "input_format": {"template": "s-{0..2}"},
    "input_extension": ".szip",
    "output_format": "out-%03d",
}


@pytest.mark.parametrize("move", ["map", "spill"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_shuffles_shards_of_a_container_from_outside(
    tmp_path: Path, move: str, workers: int
) -> None:
    everything = some_shards(tmp_path / "in")
    spec = spec_of(**ZIPS, algorithm={"kind": "shuffle", "seed": 7}, verify="content")
    run_local(tmp_path, spec, move=move, workers=workers)
    found = read_with_zipfile(tmp_path / "out")
    assert len(list((tmp_path / "out").glob("*.szip"))) == 5
    assert Counter(found) == Counter(everything)
    assert found != everything
    manifest = json.loads(manifest_in(tmp_path / "out"))
    for listed in manifest["outputs"]:
        assert listed["file_bytes"] == (tmp_path / "out" / listed["name"]).stat().st_size


def test_what_is_odd_is_reported_in_the_words_of_the_container(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for shard in range(3):
        data = zip_of([(f"{shard}.bin", b"x")], b"hello" if shard == 1 else b"")
        (tmp_path / "in" / f"s-{shard}.szip").write_bytes(data)
    report = run_local(tmp_path, spec_of(**ZIPS))
    assert count_of(report, "comments_dropped") == (5, ("s-1.szip",))
    assert "5 bytes of comments were dropped, in s-1.szip, …" in report.warnings
    seen = inspect_object(LocalBucket(tmp_path / "in"), "s-1.szip")
    assert [(each.kind, each.count) for each in seen.oddities] == [("comment", 5)]


def test_shards_of_one_container_are_converted_to_another_that_can_pack_them(
    tmp_path: Path,
) -> None:
    everything = some_shards(tmp_path / "in")
    spec = spec_of(**ZIPS, output_extension=".tar", algorithm={"kind": "shuffle", "seed": 7})
    run_local(tmp_path, spec)
    found: list[Record] = []
    for path in sorted((tmp_path / "out").glob("*.tar")):
        with tarfile.open(path) as archive:
            for member in archive:
                file = archive.extractfile(member)
                assert file is not None
                found.append((member.name, file.read()))
    assert Counter(found) == Counter(everything)
    assert found != everything


def test_a_converted_result_verifies_and_a_changed_one_does_not(tmp_path: Path) -> None:
    some_shards(tmp_path / "in")
    (tmp_path / "in" / "s-3.szip").write_bytes(zip_of([("0/000.bin", b"again")]))
    spec = spec_of(
        **ZIPS | {"input_format": {"template": "s-{0..3}"}, "output_extension": ".tar"},
        algorithm={"kind": "shuffle", "seed": 7},
        output_shard_records=50,
        duplicate_keys="rename",
        verify="content",
    )
    run_local(tmp_path, spec)
    manifest, options = manifest_in(tmp_path / "out"), RunOptions(root=tmp_path)
    assert not api.verify(manifest, options=options).problems
    (path,) = (tmp_path / "out").glob("*.tar")
    data = bytearray(path.read_bytes())
    data[data.index(b"again")] ^= 1
    path.write_bytes(data)
    problems = api.verify(manifest, options=options).problems
    assert {each.kind for each in problems} == {"checksum", "changed_bytes"}
    assert "0/000-1" in {each.record for each in problems}


def test_shards_are_not_converted_to_a_container_that_cannot_pack_others(tmp_path: Path) -> None:
    with raises(SpecError, ".tar", ".szip", paths=["output_extension"]):
        run_local(tmp_path, spec_of(output_format="out-%03d", output_extension=".szip"))


def test_without_it_such_shards_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_registered", no_containers())
    with raises(SpecError, ".szip", paths=["input_extension"]):
        run_local(tmp_path, spec_of(**ZIPS))
