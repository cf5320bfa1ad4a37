"""``dsort verify`` of a result that is wrong: every way of being wrong is found and called by its
name, even where the manifest was made to agree."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.datasets import Member, Shard
from tests.support.internals import PROBLEMS_MAX
from tests.support.results import (
    BY_CLASS,
    BY_KEY,
    BY_SIZE,
    KEPT,
    MAPPED,
    MAPPED_BY_KEY,
    SHUFFLE,
    FinishedJob,
    drop_last,
    finished_job,
    kinds,
    ordinary,
    swap_neighbours,
)

pytestmark = pytest.mark.usefixtures("workers_here")


def file(name: str, text: str = "x", **more: str) -> Member:
    return Member(name, text.encode(), **more)


def flip_payload(job: FinishedJob) -> None:
    """One bit of the payload of one record, and all checksums put right."""
    name = job.names[1]
    records = job.records(name)
    member = records[3][0]
    at = len(member.raw) - 512
    raw = member.raw[:at] + bytes([member.raw[at] ^ 1]) + member.raw[at + 1 :]
    records[3][0] = replace(member, raw=raw)
    job.rewrite(name, records)


def flip_mode(job: FinishedJob) -> None:
    """Another file mode in a header, whose checksum is put right."""
    name = job.names[0]
    records = job.records(name)
    member = records[0][0]
    block = member.raw[:100] + b"0000600\0" + member.raw[108:148] + b" " * 8 + member.raw[156:512]
    block = block[:148] + b"%06o\0 " % sum(block) + block[156:]
    records[0][0] = replace(member, raw=block + member.raw[512:])
    job.rewrite(name, records)


def drop_member(job: FinishedJob) -> None:
    name = job.names[0]
    job.rewrite(
        name, [record[:1] if i == 2 else record for i, record in enumerate(job.records(name))]
    )


def double_last(job: FinishedJob) -> None:
    name = job.names[-1]
    records = job.records(name)
    job.rewrite(name, [*records, records[-1]])


def put_in_foreign(job: FinishedJob) -> None:
    name = job.names[-1]
    raw = Member("zzz.jpg", b"from elsewhere").raw
    stranger = replace(job.records(name)[0][0], name="zzz.jpg", payload=b"from elsewhere", raw=raw)
    job.rewrite(name, [*job.records(name), [stranger]])


def swap_across_shards(job: FinishedJob) -> None:
    """The last record of a shard and the first of the next one."""
    here, there = job.names[0], job.names[1]
    left, right = job.records(here), job.records(there)
    job.rewrite(here, [*left[:-1], right[0]])
    job.rewrite(there, [left[-1], *right[1:]])


def tear_apart(job: FinishedJob) -> None:
    """The members of two records, one of each in turn."""
    name = job.names[0]
    (a, b), (c, d), *others = job.records(name)
    job.rewrite(name, [[a], [c], [b], [d], *others])
    job.edit(lambda manifest: manifest["outputs"][0].update(records=8))


def turn_members(job: FinishedJob) -> None:
    """The members of a record in another order."""
    name = job.names[0]
    first, *others = job.records(name)
    job.rewrite(name, [first[::-1], *others])


def move_to_next(job: FinishedJob) -> None:
    """A record too few here, one too many there; the order is right."""
    here, there = job.names[0], job.names[1]
    left, right = job.records(here), job.records(there)
    job.rewrite(here, left[:-1])
    job.rewrite(there, [left[-1], *right])


def rename_file(job: FinishedJob) -> None:
    (job.outputs / job.names[2]).rename(job.outputs / "elsewhere.tar")


def rename_in_manifest(job: FinishedJob) -> None:
    rename_file(job)
    job.edit(lambda manifest: manifest["outputs"][2].update(name="elsewhere.tar"))


def cut_short(job: FinishedJob) -> None:
    path = job.outputs / job.names[0]
    path.write_bytes(path.read_bytes()[:-3000])


def cut_end_marker(job: FinishedJob) -> None:
    job.rewrite(job.names[0], job.records(job.names[0]), end=b"")


def append_zeros(job: FinishedJob) -> None:
    job.rewrite(job.names[0], job.records(job.names[0]), end=bytes(10240))


def wrong_checksum(job: FinishedJob) -> None:
    job.edit(lambda manifest: manifest["outputs"][0].update(xxh3="0123456789abcdef"))


def wrong_counts(job: FinishedJob) -> None:
    job.edit(lambda manifest: manifest["outputs"][0].update(records=9, members=17, payload_bytes=1))


def wrong_input_counts(job: FinishedJob) -> None:
    job.edit(lambda manifest: manifest["inputs"][1].update(records=11))


def wrong_totals(job: FinishedJob) -> None:
    manifest = job.manifest
    manifest["totals"]["records"] += 1
    job.manifest_path.write_text(json.dumps(manifest))


def turn_inputs(job: FinishedJob) -> None:
    job.edit(lambda manifest: manifest["inputs"].reverse())


def list_twice(job: FinishedJob) -> None:
    job.edit(lambda manifest: manifest["outputs"].append(manifest["outputs"][-1]))


def forget_a_shard(job: FinishedJob) -> None:
    (job.outputs / job.names[-1]).unlink()
    job.edit(lambda manifest: manifest["outputs"].pop())


def exchange_templates(job: FinishedJob) -> None:
    """A record of one template in a shard of another, where the order would have it, too."""
    low, high = job.names
    *others, last = job.records(low)
    job.rewrite(low, others)
    job.rewrite(high, [last, *job.records(high)])


def ruin_index(job: FinishedJob) -> None:
    path = job.outputs / job.manifest["index"]
    index = json.loads(path.read_text())
    index["shardlist"][1]["md5sum"] = "0" * 32
    path.write_text(json.dumps(index))


def shorten_index(job: FinishedJob) -> None:
    path = job.outputs / job.manifest["index"]
    index = json.loads(path.read_text())
    del index["shardlist"][-1]
    path.write_text(json.dumps(index))


def no_index(job: FinishedJob) -> None:
    (job.outputs / job.manifest["index"]).write_text("[]")


def remove_index(job: FinishedJob) -> None:
    (job.outputs / job.manifest["index"]).unlink()


INDEXED = {**SHUFFLE, "index": "wids"}
NATURAL = {
    "algorithm": {"kind": "alphanumeric", "natural": True, "decreasing": True},
    "output_shard_records": 8,
}
EVEN = {"algorithm": {"kind": "none"}, "output_shard_count": 4}

WRONG: list[tuple[Callable[[FinishedJob], None], dict[str, Any], list[str]]] = [
    (flip_payload, BY_KEY, ["changed_bytes"]),
    (flip_payload, SHUFFLE, ["changed_bytes"]),
    (flip_mode, KEPT, ["changed_bytes"]),
    (drop_last, BY_KEY, ["missing_record"]),
    (drop_member, BY_KEY, ["changed_bytes"]),
    (turn_members, BY_KEY, ["changed_bytes"]),
    (double_last, BY_KEY, ["doubled_record"]),
    (double_last, SHUFFLE, ["doubled_record"]),
    (put_in_foreign, BY_KEY, ["foreign_record"]),
    (swap_neighbours, BY_KEY, ["order"]),
    (swap_neighbours, SHUFFLE, ["order"]),
    (swap_neighbours, KEPT, ["order"]),
    (swap_neighbours, BY_CLASS, ["order"]),
    (swap_neighbours, MAPPED, ["order"]),
    (swap_neighbours, NATURAL, ["order"]),
    (swap_across_shards, {**BY_KEY, "algorithm": {"kind": "md5"}}, ["order"]),
    (swap_across_shards, KEPT, ["order"]),
    (swap_across_shards, SHUFFLE, ["order"]),
    (tear_apart, SHUFFLE, ["counts", "cut", "split_record"]),
    (move_to_next, BY_KEY, ["cut"]),
    (move_to_next, BY_SIZE, ["cut"]),
    (move_to_next, EVEN, ["cut"]),
    (rename_file, BY_KEY, ["missing_shard"]),
    (rename_in_manifest, BY_KEY, ["name"]),
    (rename_in_manifest, MAPPED, ["name"]),
    (cut_short, BY_KEY, ["corrupt_shard", "size"]),
    (cut_end_marker, BY_KEY, ["format"]),
    (append_zeros, BY_KEY, ["format"]),
    (wrong_checksum, BY_KEY, ["checksum"]),
    (wrong_counts, BY_KEY, ["counts"]),
    (wrong_input_counts, BY_KEY, ["counts"]),
    (wrong_totals, BY_KEY, ["manifest"]),
    (turn_inputs, BY_KEY, ["manifest"]),
    (list_twice, BY_KEY, ["cut", "doubled_record", "name", "order"]),
    (forget_a_shard, BY_KEY, ["missing_record"]),
    (forget_a_shard, EVEN, ["cut", "missing_record"]),
    (exchange_templates, MAPPED_BY_KEY, ["misplaced_record"]),
    (ruin_index, INDEXED, ["index"]),
    (shorten_index, INDEXED, ["index"]),
    (no_index, INDEXED, ["index"]),
    (remove_index, INDEXED, ["index"]),
]


@pytest.mark.sample(keep=14)
@pytest.mark.parametrize(
    ("tamper", "spec", "expected"),
    WRONG,
    ids=[f"{number}-{tamper.__name__}" for number, (tamper, _, _) in enumerate(WRONG)],
)
def test_what_is_wrong_is_found_and_named(
    tmp_path: Path,
    tamper: Callable[[FinishedJob], None],
    spec: dict[str, Any],
    expected: list[str],
) -> None:
    job = ordinary(tmp_path, spec)
    assert job.verify().ok
    tamper(job)
    report = job.verify()
    assert kinds(report) == expected
    assert not report.ok


def test_ties_have_to_keep_the_order_of_the_inputs(tmp_path: Path) -> None:
    members = [file(f"{key}.cls", "5") for key in "dbca"]
    job = finished_job(tmp_path, {"in-0.tar": Shard(tuple(members))}, BY_CLASS)
    assert job.verify().ok
    swap = job.records(job.names[0])
    job.rewrite(job.names[0], [swap[0], swap[2], swap[1], swap[3]])
    report = job.verify()
    assert [(each.kind, each.record) for each in report.problems] == [("order", "b")]
    assert "ties" in report.problems[0].text


def test_a_record_that_the_key_map_drops_must_not_be_there(tmp_path: Path) -> None:
    spec = {**MAPPED_BY_KEY, "ekm": {"low-%02d": ["^0000"]}, "ekm_default": "low-%02d"}
    job = ordinary(tmp_path, spec)
    assert job.verify().ok
    job.edit(lambda manifest: manifest["spec"].update(ekm_default=None))
    report = job.verify()
    assert kinds(report) == ["counts", "undropped_record"]
    assert sum(problem.kind == "undropped_record" for problem in report.problems) == 26


def test_a_problem_names_shard_record_member_and_input(tmp_path: Path) -> None:
    job = ordinary(tmp_path, BY_KEY)
    flip_payload(job)
    key = job.records(job.names[1])[3][0].name.split(".")[0]
    source = next(
        path.name for path in job.inputs.iterdir() if f"{key}.jpg".encode() in path.read_bytes()
    )
    (problem,) = job.verify().problems
    assert (problem.shard, problem.record) == (job.names[1], key)
    assert problem.text == f"{key}.jpg has other bytes than in the input shard {source}"


def test_members_that_are_gone_are_named(tmp_path: Path) -> None:
    job = ordinary(tmp_path, BY_KEY)
    key = job.records(job.names[0])[2][0].name.split(".")[0]
    drop_member(job)
    (problem,) = job.verify().problems
    assert problem.text.startswith(
        f"has the members {key}.jpg in place of {key}.jpg, {key}.cls in the input shard in-"
    )


def test_missing_records_are_named_after_their_input(tmp_path: Path) -> None:
    job = ordinary(tmp_path, KEPT)
    drop_last(job)
    (problem,) = job.verify().problems
    assert (problem.shard, problem.kind) == ("in-2.tar", "missing_record")
    last = job.inputs / "in-2.tar"
    assert f"{problem.record}.jpg".encode() in last.read_bytes()


def test_an_unreadable_shard_explains_the_records_that_are_missing(tmp_path: Path) -> None:
    job = ordinary(tmp_path, SHUFFLE)
    (job.outputs / job.names[0]).unlink()
    (job.outputs / job.names[2]).write_bytes(b"rubbish" * 1000)
    report = job.verify()
    assert kinds(report) == ["corrupt_shard", "missing_shard", "size"]
    assert report.problem_count == 3
    drop_last(job)
    report = job.verify()
    assert kinds(report) == ["corrupt_shard", "missing_record", "missing_shard", "size"]
    assert "17 records" in report.problems[-1].text


def test_all_problems_are_counted_and_the_first_are_named(tmp_path: Path) -> None:
    records = 2 * PROBLEMS_MAX
    job = finished_job(
        tmp_path,
        {"in-0.tar": Shard(tuple(file(f"{key:04d}.jpg") for key in range(records)))},
        {"output_shard_size": "1MB"},
    )
    name = job.names[0]
    changed = Shard(tuple(file(f"{key:04d}.jpg", "y") for key in range(records))).data
    (job.outputs / name).write_bytes(changed)
    report = job.verify()
    assert report.problem_count == records + 1  # and the checksum
    assert len(report.problems) == PROBLEMS_MAX


WIDS_DAMAGE: dict[str, tuple[Callable[[Any], object], str]] = {
    "nsamples": (lambda index: index["shardlist"][0].update(nsamples=1), "shard"),
    "nsamples as text": (lambda index: index["shardlist"][0].update(nsamples="15"), "shard"),
    "nsamples as a fraction": (lambda index: index["shardlist"][0].update(nsamples=15.0), "shard"),
    "filesize": (lambda index: index["shardlist"][0].update(filesize=1), "shard"),
    "md5sum": (lambda index: index["shardlist"][0].update(md5sum="0" * 32), "shard"),
    "md5sum missing": (lambda index: index["shardlist"][0].pop("md5sum"), "shard"),
    "weight": (lambda index: index["shardlist"][0].update(weight=0), "shard"),
    "url": (lambda index: index["shardlist"][0].update(url="other-0.tar"), "list"),
    "a shard twice": (lambda index: index["shardlist"].append(index["shardlist"][0]), "list"),
    "order": (lambda index: index["shardlist"].reverse(), "list"),
    "no shard": (lambda index: index["shardlist"].append([]), "list"),
    "__kind__": (lambda index: index.update(__kind__="wids-shard-index-v9"), "index"),
    "wids_version": (lambda index: index.update(wids_version=2), "index"),
    "name": (lambda index: index.pop("name"), "index"),
    "base": (lambda index: index.update(base="http://elsewhere.test/"), "index"),
    "datasets": (lambda index: index.update(datasets=[{"source_url": "x"}]), "index"),
}


@pytest.mark.sample(keep=5)
@pytest.mark.parametrize("what", WIDS_DAMAGE)
def test_whatever_a_wids_index_says_otherwise_than_its_job_wrote_is_named(
    tmp_path: Path, what: str
) -> None:
    job = ordinary(tmp_path, INDEXED)
    path = job.outputs / job.manifest["index"]
    index = json.loads(path.read_text())
    path.write_text(json.dumps(index))  # white space is no difference
    assert job.verify().ok
    damage, where = WIDS_DAMAGE[what]
    damage(index)
    path.write_text(json.dumps(index))
    problem, *others = job.verify().problems
    shard = job.manifest["outputs"][0]["name"]
    assert (problem.kind, problem.shard) == ("index", shard if where == "shard" else path.name)
    assert not others
    assert where == "list" or what.split()[0] in problem.text
