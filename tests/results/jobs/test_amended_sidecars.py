"""What stands beside a result is kept up by those who amend it: sidecars and lineages say what the
shards are afterwards, byte for byte as a reader of all shards would write them."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dsort
from dsort.errors import InputError, StorageError
from dsort.storage.directory.bucket import LocalBucket
from tests.support.amending import append, made, newest, options, remove, verify
from tests.support.datasets import files_of, write_shards
from tests.support.engine import run_local, shard_of, spec_of
from tests.support.internals import (
    Manifest,
    find_in_lineage,
    parse_manifest,
)
from tests.support.refusals import raises

pytestmark = pytest.mark.usefixtures("workers_here")


def manifest(root: Path) -> Manifest:
    return parse_manifest(newest(root))


def rows_of(root: Path) -> list[dict[str, Any]]:
    """All rows of the lineage, in its order."""
    keys = [chr(each) for each in range(ord("a"), ord("z") + 1)]
    bucket = LocalBucket(root / "out")
    rows: list[dict[str, Any]] = []
    for each in manifest(root).lineages:
        rows += find_in_lineage(bucket, each.name, keys)
    return rows


def refuse_wrong_rows(root: Path) -> None:
    """Each record has its row, which says where it was and where it is, by its bytes there."""
    rows = rows_of(root)
    read = dsort.read_shards("out", job_id=manifest(root).job_id, options=options(root))
    assert [row["key"] for row in rows] == [each.key for each in read]
    for row in rows:
        for side, place in (("input", None), ("output", root / "out")):
            base = place or next(p for p in root.iterdir() if (p / row["input_shard"]).exists())
            at, size = row[f"{side}_offset"], row[f"{side}_bytes"]
            data = (base / row[f"{side}_shard"]).read_bytes()
            name = row["key"].encode() + b"."
            assert name in data if at is None else data[at : at + size].startswith(name)


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_an_append_adds_a_file_to_the_lineage(kind: str, tmp_path: Path) -> None:
    made(tmp_path, lineage=kind)
    write_shards(tmp_path / "more", {"m.tar": shard_of(*"uvwxyz")})
    before = rows_of(tmp_path)
    append(tmp_path, "more")
    assert rows_of(tmp_path)[:12] == before
    assert len(manifest(tmp_path).lineages) == 2
    refuse_wrong_rows(tmp_path)
    path = tmp_path / "out" / manifest(tmp_path).lineages[0].name
    path.write_bytes(path.read_bytes()[:-1])
    assert {each.kind for each in verify(tmp_path).problems} == {"index"}


def test_a_removal_deletes_the_lineage_and_later_records_have_one(tmp_path: Path) -> None:
    made(tmp_path, lineage="jsonl", index=["wids", "sizes"])
    remove(tmp_path, "c")
    assert [*tmp_path.glob("out/.dsort/*/lineage.jsonl")] == []
    assert manifest(tmp_path).lineages == []
    assert len([*tmp_path.glob("out/*-index.json")]) == 1
    write_shards(tmp_path / "again", {"n.tar": shard_of("c", "t")})
    append(tmp_path, "again")
    assert sorted(row["key"] for row in rows_of(tmp_path)) == ["c", "t"]
    assert verify(tmp_path).problems == ()


ALL_KINDS = ["wids", "dali", "energon", "huggingface", "sizes"]


def samples_of(root: Path) -> list[tuple[Any, ...]]:
    with sqlite3.connect(root / "out" / ".nv-meta" / "index.sqlite") as database:
        return database.execute("SELECT tar_file_id, sample_key FROM samples").fetchall()


def test_sidecars_say_what_the_result_is(tmp_path: Path) -> None:
    """``verify`` makes all of them anew from the shards, and compares their bytes."""
    made(tmp_path, index=ALL_KINDS)
    write_shards(tmp_path / "more", {"m.tar": shard_of(*"uvwxyz")})
    append(tmp_path, "more")
    assert (verify(tmp_path).problems, verify(tmp_path).warnings) == ((), ())
    assert len(json.loads((tmp_path / "out/sizes.json").read_text())) == 5
    assert "out-4.tar" in (tmp_path / "out" / "README.md").read_text()
    assert {row[0] for row in samples_of(tmp_path)} == {*range(5)}
    remove(tmp_path, "a", "u")
    assert verify(tmp_path).problems == ()
    assert {row[1] for row in samples_of(tmp_path)} == {*"bcdefghijklvwxyz"}
    (index,) = tmp_path.glob(f"out/{manifest(tmp_path).job_id}-index.json")
    assert sum(row["nsamples"] for row in json.loads(index.read_text())["shardlist"]) == 16
    for wrong in ("sizes.json", "README.md", "out-0.idx", "out-4.tar.idx", index.name):
        path = tmp_path / "out" / wrong
        kept = path.read_bytes()
        path.write_bytes(
            kept.replace(b"4", b"3") if kept != kept.replace(b"4", b"3") else kept[:-1]
        )
        assert {each.kind for each in verify(tmp_path).problems} == {"index"}, wrong
        path.write_bytes(kept)


def test_lines_keep_their_indexes(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    rows = [json.dumps({"id": f"k{number}", "n": number}) for number in range(12)]
    (tmp_path / "in" / "a.jsonl").write_text("".join(f"{row}\n" for row in rows))
    fields = {"input_extension": ".jsonl", "key_field": "/id", "index": ["lines", "sizes"]}
    run_local(tmp_path, spec_of(**fields, output_shard_records=4))
    remove(tmp_path, "k3", "k11")
    assert verify(tmp_path).problems == ()


@pytest.mark.parametrize("suffix", [".mds", ".bin"])
def test_files_that_list_shards_list_those_that_are_added(suffix: str, tmp_path: Path) -> None:
    write_shards(tmp_path / "more", {"m.tar": shard_of(*"uvwxyz")})
    fields = {"output_extension": suffix, "input_extension": ".tar"}
    made(tmp_path, **fields)
    before = files_of(tmp_path / "out", f"*{suffix}")
    append(tmp_path, "more")
    assert {name: files_of(tmp_path / "out", f"*{suffix}")[name] for name in before} == before
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert len(index["shards" if suffix == ".mds" else "chunks"]) == 5
    assert verify(tmp_path).problems == ()
    shard = shard_of("n")
    other = replace(shard.members[0], name="n.other")
    write_shards(tmp_path / "other", {"o.tar": type(shard)((*shard.members, other))})
    with raises(InputError, "index.json"):
        append(tmp_path, "other")
    assert verify(tmp_path).problems == ()


def contents(directory: Path) -> dict[str, bytes]:
    """All files but for reports."""
    paths = [each for each in directory.rglob("*") if each.is_file() and each.name != "report.json"]
    return {str(each): each.read_bytes() for each in paths}


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("nth", [1, 4, 9])
def test_an_amendment_that_fails_leaves_sidecars_as_they_were(
    nth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first name, at a sidecar of a shard and at one of the whole result."""
    made(tmp_path, index=ALL_KINDS, lineage="jsonl")
    write_shards(tmp_path / "more", {"m.tar": shard_of(*"uvwxyz")})
    before = contents(tmp_path / "out")
    real, left = LocalBucket.publish, [nth]

    def publish(bucket: LocalBucket, token: str, name: str, **named: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise StorageError("the disk is gone")
        real(bucket, token, name, **named)

    for verb in (lambda: append(tmp_path, "more"), lambda: remove(tmp_path, "a", "e", "i")):
        with monkeypatch.context() as patch:
            patch.setattr(LocalBucket, "publish", publish)
            left[0] = nth
            with raises(StorageError, "the disk is gone"):
                verb()
        assert contents(tmp_path / "out") == before
    assert verify(tmp_path).problems == ()


def test_text_that_a_user_wrote_into_a_sidecar_is_not_lost(tmp_path: Path) -> None:
    made(tmp_path, index=["huggingface", "energon"])
    write_shards(tmp_path / "more", {"m.tar": shard_of(*"uvwxyz")})
    card, loader = tmp_path / "out" / "README.md", tmp_path / "out/.nv-meta/dataset.yaml"
    loader.write_text("sample_type: mine\n")
    kept = card.read_text()
    card.write_text(f"{kept}\n# My images\n")
    with raises(InputError, "README.md"):
        append(tmp_path, "more")
    card.unlink()  # as the hint says
    append(tmp_path, "more")
    assert "out-4.tar" in card.read_text()
    assert loader.read_text() == "sample_type: mine\n"


def test_shards_in_other_directories_would_need_another_list(tmp_path: Path) -> None:
    made(tmp_path, index=["sizes"], output_format="data/out-%d")
    write_shards(tmp_path / "more", {"m.tar": shard_of("x")})
    with raises(InputError, "sizes.json"):
        append(tmp_path, "more", output_format="other/out-%d")
    append(tmp_path, "more", output_format="data/other-%d")
    assert verify(tmp_path).problems == ()


def test_a_spec_that_says_less_than_that_of_the_result_is_refused(tmp_path: Path) -> None:
    report = made(tmp_path, index=["sizes"], lineage="jsonl")
    fields = {"output_format": "x-%d", "amend": {"job": report.job_id}}
    for more in ({}, {"lineage": "jsonl"}, {"index": ["sizes"]}):
        with raises(InputError, report.job_id):
            run_local(tmp_path, spec_of(**fields, **more))
