"""What stands beside a result is kept up by those who amend it: sidecars and lineages say what the
shards are afterwards, byte for byte as a reader of all shards would write them."""

from __future__ import annotations

import io
import json
import sqlite3
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dsort
from dsort import api
from dsort.amendments import Removal
from dsort.errors import DsortError, InputError, StorageError
from dsort.options import RunOptions
from dsort.storage.directory.bucket import LocalBucket
from tests.support.container_kinds import kind_named, some_records
from tests.support.datasets import Member, Shard, files_of, tree_of, write_shards
from tests.support.engine import run_local, shard_of, spec_of
from tests.support.internals import (
    JobReport,
    Manifest,
    VerifyReport,
    find_in_lineage,
    parse_manifest,
)

pytestmark = pytest.mark.usefixtures("workers_here")


def options(root: Path) -> RunOptions:
    return RunOptions(root=root, workers=1)


def newest(root: Path) -> bytes:
    return max(root.glob("out/.dsort/*/manifest.json")).read_bytes()


def manifest(root: Path) -> Manifest:
    return parse_manifest(newest(root))


def remove(root: Path, *keys: str) -> Removal:
    (root / "keys.txt").write_text("".join(f"{key}\n" for key in keys))
    return api.remove(newest(root), root / "keys.txt", place="out", options=options(root))


def append(root: Path, source: str, **named: Any) -> JobReport:
    return api.append(newest(root), source, place="out", options=options(root), **named)


def verify(root: Path) -> VerifyReport:
    return dsort.verify(newest(root), options=options(root))


def made(root: Path, **fields: Any) -> JobReport:
    """A shuffle of 12 records into shards of 4."""
    write_shards(root / "in", {"a.tar": shard_of(*"abcdef"), "b.tar": shard_of(*"ghijkl")})
    shuffle = {"kind": "shuffle", "seed": 3}
    return run_local(root, spec_of(output_shard_records=4, algorithm=shuffle, **fields))


def rows_of(root: Path) -> list[dict[str, Any]]:
    """All rows of the lineage, in its order."""
    keys = [chr(each) for each in range(ord("a"), ord("z") + 1)]
    bucket = LocalBucket(root / "out")
    rows: list[dict[str, Any]] = []
    for each in manifest(root).lineages:
        rows += find_in_lineage(bucket, each.name, keys)
    return rows


def refuse_wrong_rows(root: Path) -> None:
    """Each record has its row, which says where it was and where it is, by its bytes there; of a
    shard that was written again, which shard that is."""
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
def test_a_lineage_is_that_of_all_records_that_are_left(kind: str, tmp_path: Path) -> None:
    made(tmp_path, lineage=kind)
    write_shards(tmp_path / "more", {"m.tar": shard_of(*"uvwxyz")})
    before = rows_of(tmp_path)
    append(tmp_path, "more")
    assert rows_of(tmp_path)[:12] == before
    assert len(manifest(tmp_path).lineages) == 2
    refuse_wrong_rows(tmp_path)
    kept = {row["key"]: row for row in rows_of(tmp_path)}
    shards = {kept[key]["output_shard"] for key in "aul"}
    remove(tmp_path, "a", "u", "l")
    refuse_wrong_rows(tmp_path)
    assert len(rows_of(tmp_path)) == 15
    for row in rows_of(tmp_path):
        is_known = row["output_shard"] not in shards
        assert row == kept[row["key"]] | ({} if is_known else {"output_offset": None})
    write_shards(tmp_path / "again", {"n.tar": shard_of("a", "t")})
    append(tmp_path, "again")
    refuse_wrong_rows(tmp_path)
    remove(tmp_path, "t")
    refuse_wrong_rows(tmp_path)
    assert verify(tmp_path).problems == ()
    path = tmp_path / "out" / manifest(tmp_path).lineages[0].name
    path.write_bytes(path.read_bytes()[:-1])
    assert {each.kind for each in verify(tmp_path).problems} == {"index"}


def test_no_lineage_names_a_record_that_was_removed(tmp_path: Path) -> None:
    made(tmp_path, lineage="jsonl", index=["wids", "sizes"])
    remove(tmp_path, "c")
    for name in tree_of(tmp_path / "out"):
        if "lineage" in name:
            assert b'"key": "c"' not in (tmp_path / "out" / name).read_bytes()
    assert len([*tmp_path.glob("out/.dsort/*/lineage.jsonl")]) == 1
    assert len([*tmp_path.glob("out/*-index.json")]) == 1


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_row_of_a_record_that_stays_is_never_taken_for_a_removed_one(
    kind: str, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    with tarfile.open(tmp_path / "in" / "in-0.tar", "w", errors="surrogateescape") as tar:
        for key in (b"a\xff", b"a\\xff", b"b"):  # the first two read alike in a lineage
            info = tarfile.TarInfo(f"{key.decode('utf-8', 'surrogateescape')}.txt")
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))
    fields = {"input_format": {"template": "in-{0..0}"}, "output_shard_records": 4}
    run_local(tmp_path, spec_of(lineage=kind, output_shard_size=None, **fields))
    before = tree_of(tmp_path / "out")
    (tmp_path / "keys.txt").write_bytes(b"a\xff\n")
    with pytest.raises(StorageError, match="does not say what is in the shards"):
        api.remove(newest(tmp_path), tmp_path / "keys.txt", place="out", options=options(tmp_path))
    after = tree_of(tmp_path / "out")
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_joined_records_keep_a_row_for_each_piece(kind: str, tmp_path: Path) -> None:
    for name, suffix in (("left", "jpg"), ("right", "txt")):
        members = tuple(Member(f"{key}.{suffix}", b"abc") for key in "abc")
        write_shards(tmp_path / name, {"in-0.tar": Shard(members)})
    inputs = [
        {"name": name, "input_bck": name, "input_format": {"template": "in-{0..0}"}}
        for name in ("left", "right")
    ]
    fields = {"output_shard_records": 4, "output_shard_size": None, "algorithm": {"kind": "none"}}
    spec = spec_of(inputs=inputs, join={}, lineage=kind, **fields)
    del spec["input_bck"]
    run_local(tmp_path, spec)
    remove(tmp_path, "b")
    assert sorted(row["key"] for row in rows_of(tmp_path)) == ["a", "a", "c", "c"]


def test_a_damaged_lineage_ends_a_removal(tmp_path: Path) -> None:
    made(tmp_path, lineage="jsonl")
    before = files_of(tmp_path / "out")
    path = tmp_path / "out" / manifest(tmp_path).lineages[0].name
    for wrong in (b"[]\n", b"{", b'{"key": 1}\n'):
        path.write_bytes(wrong)
        with pytest.raises(StorageError, match="damaged"):
            remove(tmp_path, *"abcdef")
        assert files_of(tmp_path / "out") == before


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("suffix", [".tar.gz", ".zip", ".jsonl", ".tfrecord", ".parquet"])
def test_lineages_of_other_containers_are_kept_up(suffix: str, tmp_path: Path) -> None:
    kind = kind_named(suffix)
    (tmp_path / "in").mkdir()
    records = [some_records(shard, 10) for shard in range(2)]
    for shard, own in enumerate(records):
        (tmp_path / "in" / f"s-{shard}{suffix}").write_bytes(kind.write(own))
    fields = {"input_extension": suffix, "key_field": kind.key_field, "lineage": "jsonl"}
    order = {"kind": "shuffle", "seed": 3}
    run_local(tmp_path, spec_of(**fields, output_shard_records=4, algorithm=order))
    remove(tmp_path, records[0][3].key, records[1][7].key)
    (listed,) = manifest(tmp_path).lineages
    lines = [json.loads(line) for line in (tmp_path / "out" / listed.name).open()]
    assert len(lines) == 18
    assert verify(tmp_path).problems == ()
    assert kind.key_of is not None
    shards = [(tmp_path / "out" / each.name).read_bytes() for each in manifest(tmp_path).outputs]
    found = [kind.key_of(each) for data in shards for each in kind.read(data)]
    assert [row["key"] for row in lines] == found


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
    with pytest.raises(InputError, match="other columns"):
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
            with pytest.raises(DsortError, match="the disk is gone"):
                verb()
        assert contents(tmp_path / "out") == before
    assert verify(tmp_path).problems == ()


def test_what_somebody_wrote_into_a_sidecar_is_not_lost(tmp_path: Path) -> None:
    made(tmp_path, index=["huggingface", "energon"])
    write_shards(tmp_path / "more", {"m.tar": shard_of(*"uvwxyz")})
    card, loader = tmp_path / "out" / "README.md", tmp_path / "out/.nv-meta/dataset.yaml"
    loader.write_text("sample_type: mine\n")
    kept = card.read_text()
    card.write_text(f"{kept}\n# My images\n")
    with pytest.raises(InputError, match=r"README.md was changed"):
        append(tmp_path, "more")
    card.unlink()  # as the hint says
    append(tmp_path, "more")
    assert "out-4.tar" in card.read_text()
    assert loader.read_text() == "sample_type: mine\n"


def test_shards_in_other_directories_would_need_another_list(tmp_path: Path) -> None:
    made(tmp_path, index=["sizes"], output_format="data/out-%d")
    write_shards(tmp_path / "more", {"m.tar": shard_of("x")})
    with pytest.raises(InputError, match="shards of other directories"):
        append(tmp_path, "more", output_format="other/out-%d")
    append(tmp_path, "more", output_format="data/other-%d")
    assert verify(tmp_path).problems == ()


def test_a_spec_that_says_less_than_that_of_the_result_is_refused(tmp_path: Path) -> None:
    report = made(tmp_path, index=["sizes"], lineage="jsonl")
    fields = {"output_format": "x-%d", "amend": {"job": report.job_id}}
    for more in ({}, {"lineage": "jsonl"}, {"index": ["sizes"]}):
        with pytest.raises(InputError, match="not as in the result"):
            run_local(tmp_path, spec_of(**fields, **more))
