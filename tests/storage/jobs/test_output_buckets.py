"""Outputs that have buckets of their own: where everything is, what is refused and verified."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import dsort
from dsort import api
from dsort.errors import InputError, NamesTakenError, SpecError
from dsort.options import RunOptions, open_with_settings
from dsort.settings import Settings, StoreSettings
from dsort.spec.load import parse_spec
from dsort.storage.directory.bucket import LocalBucket
from tests.support.commands import CommandLine
from tests.support.datasets import (
    Member,
    Shard,
    files_of,
    payloads_in,
    tree_of,
    write_shards,
)
from tests.support.engine import plan_local, run_local, spec_of
from tests.support.internals import (
    find_garbage,
    job_directory,
    manifest_name,
    remove_garbage,
    result_name,
)
from tests.support.refusals import raises
from tests.support.seaweedfs import S3Server

pytestmark = pytest.mark.usefixtures("workers_here")

SHUFFLE = {"kind": "shuffle", "seed": 7}
OUTPUTS = [
    {"name": "train", "fraction": 0.6},
    {"name": "val", "fraction": 0.3, "output_bck": "val"},
    {"name": "test", "fraction": 0.1, "output_bck": "test", "output_shard_count": 1},
]


def apart(**fields: Any) -> dict[str, Any]:
    """All outputs have shards of the same names."""
    fixed = {"output_format": "s-%d", "algorithm": SHUFFLE, "outputs": OUTPUTS}
    return spec_of(**{**fixed, **fields})


@pytest.fixture
def root(tmp_path: Path, rng: random.Random) -> Path:
    shards = {
        f"in-{shard}.tar": Shard(
            tuple(
                Member(f"{shard}{number:02d}.bin", rng.randbytes(rng.randrange(300)))
                for number in range(20)
            )
        )
        for shard in range(3)
    }
    write_shards(tmp_path / "in", shards)
    return tmp_path


def verified(root: Path, job_id: str, **options: Any) -> list[str]:
    manifest = (root / "out" / manifest_name(job_id)).read_bytes()
    report = api.verify(manifest, options=RunOptions(root=root, **options))
    return [str(problem) for problem in report.problems] + list(report.warnings)


@pytest.mark.parametrize("move", ["map", "spill"])
def test_each_output_is_in_its_bucket_as_it_would_be_in_one(root: Path, move: str) -> None:
    together = [{name: each[name] for name in each if name != "output_bck"} for each in OUTPUTS]
    run_local(root, apart(outputs=together, output_format="{split}/s-%d", output_bck="one"))
    report = run_local(root, apart(verify="content"), move=move, workers=2)
    for name, bucket in (("train", "out"), ("val", "val"), ("test", "test")):
        own = files_of(root / bucket)
        assert {f"{name}/{each}": data for each, data in own.items()} == {
            each: data
            for each, data in files_of(root / "one").items()
            if each.startswith(f"{name}/")
        }
    beside = tree_of(root / "val").keys() - files_of(root / "val").keys()
    assert {name for name in beside if not name.endswith("/")} == {result_name(report.job_id)}
    assert [each.records for each in report.outputs] == [
        len(payloads_in(root / bucket)) for bucket in ("out", "val", "test")
    ]
    assert verified(root, report.job_id) == []


def test_a_result_is_read_from_all_of_its_buckets(root: Path, cli: CommandLine) -> None:
    report = run_local(root, apart(lineage="jsonl", index=["dali"]))
    records = [
        record.key
        for record in dsort.read_shards("out", job_id=report.job_id, options=RunOptions(root=root))
    ]
    buckets = ("out", "val", "test")
    held = [name.removesuffix(".bin") for each in buckets for name, _ in payloads_in(root / each)]
    assert records == held
    assert len(records) == 60
    assert (root / "val" / "s-0.idx").exists()
    key = payloads_in(root / "val")[0][0].removesuffix(".bin")
    assert "val//s-0.tar" in cli("where", "out", key).out
    assert verified(root, report.job_id) == []


def test_a_plan_names_the_shards_with_their_output(root: Path) -> None:
    names = [shard.name for shard in plan_local(root, apart()).shards]
    assert "s-0.tar" in names
    assert "test//s-0.tar" in names
    assert sorted(path.name for path in root.iterdir()) == ["in"]


def test_directories_and_stores_go_together(root: Path, s3: S3Server) -> None:
    settings = Settings(stores=(("s3", StoreSettings(endpoint_url=s3.endpoint_url)),))
    run_local(root, apart())
    outputs = [OUTPUTS[0], {**OUTPUTS[1], "output_bck": "s3://apart/val"}, OUTPUTS[2]]
    spec = apart(outputs=outputs, output_bck="again", verify="content")
    spec["outputs"][2] = {**OUTPUTS[2], "output_bck": "test-again"}
    report = run_local(root, spec, workers=2, settings=settings, move="spill")
    assert files_of(root / "again") == files_of(root / "out")
    assert files_of(root / "test-again") == files_of(root / "test")
    bucket = open_with_settings("s3://apart/val", root=root, settings=settings)
    stored = {info.name: bucket.read(info.name) for info in bucket.list("")}
    assert stored == files_of(root / "val")
    (note,) = bucket.list(job_directory(report.job_id))
    where = {"job_id": report.job_id, "output_uri": (root / "again").as_uri()}
    assert (note.name, json.loads(bucket.read(note.name))) == (result_name(report.job_id), where)
    manifest = (root / "again" / manifest_name(report.job_id)).read_bytes()
    found = api.verify(manifest, options=RunOptions(root=root, settings=settings))
    assert found.problems == ()
    with pytest.raises(NamesTakenError, match="val//s-0"):
        run_local(root, {**spec, "output_bck": "third"}, workers=2, settings=settings, move="spill")


def test_what_is_replaced_in_any_bucket_is_kept_until_the_end(root: Path) -> None:
    for bucket in ("out", "val", "test"):
        write_shards(root / bucket, {"s-0.tar": b"old"})
    with raises(NamesTakenError, "3 objects"):
        run_local(root, apart())
    report = run_local(root, apart(overwrite=True))
    assert b"old" not in [
        data for name in ("out", "val") for data in files_of(root / name).values()
    ]
    assert verified(root, report.job_id) == []
    assert [path.name for path in (root / "val").glob(".dsort/*/*")] == ["result.json"]


def test_what_is_left_of_an_older_result_goes_where_it_is(root: Path) -> None:
    run_local(root, apart(output_shard_records=2))
    before = files_of(root / "val")
    write_shards(root / "val", {"s-700.tar": b"another user's"})
    spec = apart(overwrite=True, remove_stale=True)
    report = run_local(root, spec)
    after = files_of(root / "val")
    assert after.pop("s-700.tar") == b"another user's"
    assert len(after) < len(before)
    assert len(after) == report.outputs[1].shards


def test_a_result_with_other_buckets_is_none_that_is_replaced(root: Path) -> None:
    run_local(root, apart(output_shard_records=2))
    kept = files_of(root / "val")
    outputs = [OUTPUTS[0], {**OUTPUTS[1], "output_bck": "other"}, OUTPUTS[2]]
    run_local(root, apart(outputs=outputs, overwrite=True, remove_stale=True))
    assert files_of(root / "val") == kept


def test_a_job_that_fails_leaves_a_note_which_gc_removes(root: Path) -> None:
    outputs = [OUTPUTS[0], {**OUTPUTS[1], "output_format": "v-{0..1}"}, OUTPUTS[2]]
    write_shards(root / "val", {"other.tar": b"other"})
    with raises(SpecError, "v-{0..1}", "11 shards", paths=["output_format"]):
        run_local(root, apart(outputs=outputs, output_shard_records=2))
    (note,) = [
        path for path in (root / "val").rglob("*") if path.is_file() and ".dsort" in path.parts
    ]
    assert note.name == "elsewhere.json"
    assert [path.name for path in (root / "out").rglob("*.*") if path.is_file()] == ["report.json"]
    bucket = LocalBucket(root / "val")
    (garbage,) = find_garbage(bucket)
    assert garbage.what.startswith("the note of a job in another bucket")
    remove_garbage(bucket, garbage)
    assert sorted(tree_of(root / "val")) == ["other.tar"]


@pytest.mark.parametrize("own", ["buckets", "codecs"])
def test_shards_of_outputs_apart_are_not_written_again(root: Path, own: str) -> None:
    outputs = OUTPUTS
    if own == "codecs":
        outputs = [OUTPUTS[0], {"name": "b", "fraction": 0.4, "output_extension": ".tar.zst"}]
    report = run_local(root, apart(outputs=outputs, output_format="{split}-%d"))
    manifest = (root / "out" / manifest_name(report.job_id)).read_bytes()
    (root / "keys.txt").write_text("000\n")
    options = RunOptions(root=root, workers=1)
    with raises(InputError, report.job_id):
        api.remove(manifest, root / "keys.txt", place="out", options=options)


def test_records_can_be_removed_from_exact_outputs(root: Path) -> None:
    together = [{name: each[name] for name in ("name", "fraction")} for each in OUTPUTS]
    report = run_local(root, apart(outputs=together, output_format="{split}-%d", exact=True))
    assert [each.records for each in report.outputs] == [36, 18, 6]
    manifest = (root / "out" / manifest_name(report.job_id)).read_bytes()
    (root / "keys.txt").write_text("000\n117\n")
    options = RunOptions(root=root, workers=1)
    removed = api.remove(manifest, root / "keys.txt", place="out", options=options)
    assert removed.job is not None
    assert verified(root, removed.job.job_id) == []


def test_an_output_in_the_bucket_of_the_inputs_replaces_none(root: Path) -> None:
    outputs = [OUTPUTS[0], {**OUTPUTS[1], "output_bck": "in", "output_format": "in-%d"}, OUTPUTS[2]]
    with raises(SpecError, "shard in-0.tar", paths=["output_format"]):
        run_local(root, apart(outputs=outputs))
    assert sorted(files_of(root / "in")) == ["in-0.tar", "in-1.tar", "in-2.tar"]


def test_two_names_of_one_bucket_are_found_out(root: Path) -> None:
    (root / "val").mkdir()
    (root / "test").symlink_to(root / "val")
    with raises(SpecError, "test//s-0.tar", paths=["outputs"]):
        run_local(root, apart())


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"index": "energon"}, "index"),
        ({"outputs": [{**OUTPUTS[0], "output_bck": "val"}, *OUTPUTS[1:]]}, "output_format"),
        (
            {"outputs": [OUTPUTS[0], {**OUTPUTS[1], "output_bck": "https://host/x"}, OUTPUTS[2]]},
            "outputs[1].output_bck",
        ),
        (
            {
                "output_format": None,
                "outputs": [
                    {**OUTPUTS[0], "output_format": "val/s-%d"},
                    {**OUTPUTS[1], "output_bck": "out/val", "output_format": "s-%d"},
                    {**OUTPUTS[2], "output_format": "s-%d"},
                ],
            },
            "outputs[1].output_format",
        ),
    ],
)
def test_mistakes_are_reported_before_anything_is_read(fields: dict[str, Any], path: str) -> None:
    with raises(SpecError, paths=[path]):
        parse_spec(apart(**fields))


def test_a_job_whose_outputs_all_have_buckets_is_in_the_first_one(
    root: Path, cli: CommandLine
) -> None:
    before = tree_of(root / "in")
    outputs = [{**OUTPUTS[0], "output_bck": "train"}, *OUTPUTS[1:]]
    spec = apart(outputs=outputs, output_bck="train")
    del spec["output_bck"]
    report = run_local(root, spec)
    assert (root / "train" / manifest_name(report.job_id)).is_file()
    assert tree_of(root / "in") == before
    assert cli("verify", "train").code == 0


def test_commands_find_a_result_from_each_of_its_buckets(root: Path, cli: CommandLine) -> None:
    report = run_local(root, apart(lineage="jsonl"))
    for bucket in ("val", "test"):
        assert cli("verify", bucket).code == 0
        assert report.job_id in cli("show", bucket).out
        assert find_garbage(LocalBucket(root / bucket)) == []
    assert cli("show", report.job_id).code == 0  # once, however many buckets name it
    key = payloads_in(root / "test")[0][0].removesuffix(".bin")
    assert "test//s-0.tar" in cli("where", "val", key).out


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"output_uri": "s3://bucket/other"}, "is in s3://bucket/other"),
        ({"output_uri": "file:///nowhere"}, "is in /nowhere no longer"),
        ({"output_uri": 7}, "does not name the job's bucket"),
        ({"job_id": "another"}, "does not name the job's bucket"),
        ([], "does not name the job's bucket"),
    ],
)
def test_what_says_where_a_result_is_is_not_trusted(
    root: Path, cli: CommandLine, said: Any, words: str
) -> None:
    report = run_local(root, apart())
    path = root / "val" / job_directory(report.job_id) / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **said} if said else said))
    ended = cli("show", "val")
    assert ended.code in (3, 4)
    assert words in " ".join(ended.err.split())
