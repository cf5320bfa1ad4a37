"""The names of all that reactions dropped, kept or renamed are in a file of the job, not ten."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dsort.storage.directory.bucket import LocalBucket
from tests.support.engine import left_in, run_local, spec_of
from tests.support.internals import JobReport, find_garbage, list_job_directories
from tests.support.tar_builder import END, header, member

pytestmark = pytest.mark.usefixtures("workers_here")

SHARDS, KEYS = 4, 25
ALGORITHM = {"kind": "shuffle", "seed": 1}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Every key in all shards, and strays, links, directories and odd names of every sort."""
    (tmp_path / "in").mkdir()
    for number in range(SHARDS):
        parts = []
        for key in range(KEYS):
            parts.append(member(b"%03d.jpg" % key, b"%d" % number))
            parts.append(member(b"stray %03d of %d" % (key, number)))
            parts.append(header(b"dir %03d/" % key, 0, b"5"))
            parts.append(member(b"../up %03d %d.jpg" % (key, number), b"u"))
        parts.append(header(b"link.jpg", 0, b"1", link=b"000.jpg"))
        (tmp_path / "in" / f"in-{number}.tar").write_bytes(b"".join(parts) + END)
    (tmp_path / "in" / "torn.tar").write_bytes(b"torn")
    for number in range(15):
        (tmp_path / "in" / f"other-{number:02d}.zip").write_bytes(b"")
    return tmp_path


def lines_of(root: Path, report: JobReport) -> list[dict[str, Any]]:
    """The lines of the file that the manifest names."""
    manifest = json.loads((root / "out" / str(report.manifest_name)).read_text())
    assert manifest["reactions_file"] == f".dsort/{report.job_id}/reactions.jsonl"
    text = (root / "out" / manifest["reactions_file"]).read_text()
    return [json.loads(line) for line in text.splitlines()]


def spec(**fields: Any) -> dict[str, Any]:
    return spec_of(algorithm=ALGORITHM, corrupt_shards="skip", **fields)


@pytest.mark.parametrize("duplicates", ["warn", "drop", "rename", "ignore"])
def test_every_name_is_there_and_counts_add_up(root: Path, duplicates: str) -> None:
    report = run_local(root, spec(duplicate_keys=duplicates, unsafe_names="rename"))
    lines = lines_of(root, report)
    counted: Counter[str] = Counter()
    for line in lines:
        counted[line["kind"]] += line.get("count", 1)
    assert counted == {each.kind: each.count for each in report.reactions}
    named = {kind: [line for line in lines if line["kind"] == kind] for kind in counted}
    assert len({line["name"] for line in named["stray_members_kept"]}) == SHARDS * KEYS
    assert len(named["stray_members_dropped"]) == SHARDS * KEYS
    assert len(named["unsafe_names_renamed"]) == SHARDS * KEYS
    assert [line["name"] for line in named["objects_passed_over"]] == [
        f"other-{number:02d}.zip" for number in range(15)
    ]
    settled = [kind for kind in counted if kind.startswith("duplicate_keys")]
    if duplicates == "ignore":
        assert settled == []
        return
    repeated = {(line["shard"], line["name"].split(" ")[0]) for line in named[settled[0]]}
    keys = [f"{key:03d}" for key in range(KEYS)] + ["link"]
    assert repeated == {(f"in-{n}.tar", key) for n in range(1, SHARDS) for key in keys}


def test_without_reactions_there_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "in.tar").write_bytes(member(b"a.jpg") + END)
    report = run_local(tmp_path, spec_of())
    assert left_in(tmp_path / "out") == [".dsort/JOB/manifest.json", "out-0.tar"]
    manifest = json.loads((tmp_path / "out" / str(report.manifest_name)).read_text())
    assert manifest["reactions_file"] is None


def test_the_file_of_reactions_is_no_garbage_while_there_is_a_manifest(root: Path) -> None:
    report = run_local(root, spec())
    bucket = LocalBucket(root / "out")
    (directory,) = list_job_directories(bucket)
    assert (directory.objects, find_garbage(bucket)) == (0, [])
    (root / "out" / str(report.manifest_name)).unlink()
    (directory,) = list_job_directories(bucket)
    assert directory.objects == 1
    assert [each.job_id for each in find_garbage(bucket)] == [report.job_id]


def test_names_of_what_is_missing_are_bounded_and_the_rest_is_counted(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsort.job.setup.inputs.NAMES_KEPT_MAX", 20)
    report = run_local(root, spec(input_format={"template": "in-{0..99}"}))
    lines = [line for line in lines_of(root, report) if line["kind"] == "missing_shards"]
    assert [line.get("name") for line in lines] == [f"in-{n}.tar" for n in range(4, 24)] + [None]
    assert lines[-1] == {"kind": "missing_shards", "count": 76}
