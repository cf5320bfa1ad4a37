"""``index: croissant``: ``croissant.json`` describes the shards, and ``mlcroissant`` reads them."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.amending import append, made, remove, verify
from tests.support.datasets import write_shards
from tests.support.engine import run_local, shard_of, spec_of
from tests.support.verified import assert_verified

pytestmark = pytest.mark.usefixtures("workers_here")
FIELDS: dict[str, Any] = {"index": "croissant", "checksums": "sha256"}


def described(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "out/croissant.json").read_text())
    return found


def refuse_wrong_files(root: Path) -> None:
    """Each shard is a ``FileObject`` with its size and SHA-256, and the set is in all of them."""
    *files, members = described(root)["distribution"]
    assert sorted(each["contentUrl"] for each in files) == sorted(
        path.name for path in (root / "out").glob("*.tar")
    )
    for each in files:
        data = (root / "out" / each["contentUrl"]).read_bytes()
        assert each["@type"] == "cr:FileObject"
        assert each["sha256"] == hashlib.sha256(data).hexdigest()
        assert each["contentSize"] == f"{len(data)} B"
    assert [each["@id"] for each in members["containedIn"]] == [each["@id"] for each in files]


def test_each_shard_is_a_file_with_its_sha256(tmp_path: Path) -> None:
    made(tmp_path, **FIELDS)
    refuse_wrong_files(tmp_path)
    content = described(tmp_path)
    assert content["conformsTo"] == "http://mlcommons.org/croissant/1.0"
    sets = {each["@id"] for each in content["distribution"]}
    for field in content["recordSet"][0]["field"]:
        assert field["source"]["fileSet"]["@id"] in sets
    assert verify(tmp_path).problems == ()


def test_verify_compares_it_with_the_shards(tmp_path: Path) -> None:
    made(tmp_path, **FIELDS)
    path = tmp_path / "out/croissant.json"
    path.write_text(path.read_text().replace("12 records", "13 records"))
    assert {(each.kind, each.shard) for each in verify(tmp_path).problems} == {
        ("index", "croissant.json")
    }


def test_an_amended_result_has_all_shards_in_it(tmp_path: Path) -> None:
    made(tmp_path, **FIELDS)
    write_shards(tmp_path / "more", {"m.tar": shard_of(*"uvwxyz")})
    append(tmp_path, "more")
    refuse_wrong_files(tmp_path)
    remove(tmp_path, "c", "v")
    refuse_wrong_files(tmp_path)
    assert verify(tmp_path).problems == ()


def test_mlcroissant_reads_each_member_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlcroissant  # takes a second

    monkeypatch.setenv("HOME", str(tmp_path))
    made(tmp_path, **FIELDS)
    dataset = mlcroissant.Dataset(str(tmp_path / "out/croissant.json"))
    found = sorted(
        (each["records/name"].decode(), each["records/content"])
        for each in dataset.records("records")
    )
    stored = []
    for path in (tmp_path / "out").glob("*.tar"):
        with tarfile.open(path) as archive:
            stored += [(info.name, archive.extractfile(info).read()) for info in archive]  # type: ignore[union-attr]
    assert found == sorted(stored)


def test_mlcroissant_reads_each_line_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    lines = [b'{"n": %d}\n' % n for n in range(20)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in/in-0.jsonl").write_bytes(b"".join(lines))
    extensions = {"input_extension": ".jsonl", "output_extension": ".jsonl"}
    report = run_local(tmp_path, spec_of(**extensions, **FIELDS))
    assert_verified(tmp_path, report.job_id)
    import mlcroissant  # takes a second

    dataset = mlcroissant.Dataset(str(tmp_path / "out/croissant.json"))
    found = [each["records/line"] for each in dataset.records("records")]
    assert sorted(found) == sorted(line.rstrip() for line in lines)
