"""``dsort verify --sample``: a damaged shard that is drawn is found, the same shards are drawn
again, and the report has the list of all that was not read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsort import api
from dsort.errors import InputError
from dsort.options import RunOptions
from tests.support.commands import CommandLine
from tests.support.internals import Sample, VerifyReport
from tests.support.results import BY_KEY, SHUFFLE, FinishedJob, kinds, ordinary, swap_neighbours

pytestmark = pytest.mark.usefixtures("workers_here")


def sampled(job: FinishedJob, part: float = 0.3, seed: str = "") -> VerifyReport:
    options = RunOptions(root=job.root)
    return api.verify(job.manifest_path.read_bytes(), sample=part, seed=seed, options=options)


def drawn(job: FinishedJob, part: float = 0.3, seed: str = "") -> frozenset[str]:
    names: frozenset[str] = Sample(part, seed or job.report.job_id).drawn(job.names)
    return names


def flip(job: FinishedJob, name: str) -> None:
    path = job.outputs / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut_short(job: FinishedJob, name: str) -> None:
    path = job.outputs / name
    path.write_bytes(path.read_bytes()[:-512])


def remove(job: FinishedJob, name: str) -> None:
    (job.outputs / name).unlink()


def zeros_behind(job: FinishedJob, name: str) -> None:
    job.rewrite(name, job.records(name), end=bytes(10240))


def record_twice(job: FinishedJob, name: str) -> None:
    records = job.records(name)
    job.rewrite(name, [*records[:-1], records[0]])


def neighbours_swapped(job: FinishedJob, name: str) -> None:
    first, second, *others = job.records(name)
    job.rewrite(name, [second, first, *others])


UNIQUE: dict[str, Any] = {**BY_KEY, "duplicate_keys": "abort"}
DAMAGES: list[tuple[Callable[[FinishedJob, str], None], set[str]]] = [
    (flip, {"checksum", "corrupt_shard"}),
    (cut_short, {"size", "format", "corrupt_shard"}),
    (remove, {"missing_shard"}),
    (zeros_behind, {"format"}),
    (record_twice, {"duplicate_key", "order"}),
    (neighbours_swapped, {"order"}),
]


def test_a_sample_of_a_right_result_reads_its_shards_and_no_other_byte(tmp_path: Path) -> None:
    job = ordinary(tmp_path, {**SHUFFLE, "index": ["wids", "dali", "energon"]})
    report = sampled(job)
    sizes = {shard["name"]: shard["file_bytes"] for shard in job.manifest["outputs"]}
    assert report.ok
    assert report.bytes_read == sum(sizes[name] for name in drawn(job))
    assert report.sample is not None
    assert report.sample.shards == len(drawn(job)) == 2
    assert report.sample.not_checked


@pytest.mark.whole
@pytest.mark.parametrize(("damage", "expected"), DAMAGES)
def test_a_damaged_shard_that_is_drawn_is_found(
    tmp_path: Path, damage: Callable[[FinishedJob, str], None], expected: set[str]
) -> None:
    job = ordinary(tmp_path, UNIQUE)
    for name in sorted(drawn(job)):
        before = (job.outputs / name).read_bytes(), job.manifest_path.read_bytes()
        damage(job, name)
        found = sampled(job)
        assert set(kinds(found)) & expected, name
        assert set(kinds(found)) <= expected, name
        assert {each.shard for each in found.problems} == {name}
        (job.outputs / name).write_bytes(before[0])
        job.manifest_path.write_bytes(before[1])


def test_of_a_shard_that_is_not_drawn_the_size_is_checked_and_no_bit(tmp_path: Path) -> None:
    job = ordinary(tmp_path, {**BY_KEY, "index": "dali"})
    first, second, *_ = sorted(set(job.names) - drawn(job))
    flip(job, first)
    assert sampled(job).ok
    cut_short(job, first)
    remove(job, second)
    (job.outputs / second).with_suffix(".idx").unlink()
    assert {(each.kind, each.shard) for each in sampled(job).problems} == {
        ("size", first),
        ("missing_shard", second),
        ("index", Path(second).with_suffix(".idx").name),
    }


def test_what_needs_no_reading_is_checked_of_the_whole_result(tmp_path: Path) -> None:
    job = ordinary(tmp_path, BY_KEY)
    other, name = sorted(set(job.names) - drawn(job))[:2]
    facts = {shard["name"]: shard for shard in job.manifest["outputs"]}

    def move_a_record(manifest: dict[str, Any]) -> None:
        for shard in manifest["outputs"]:
            shard["records"] += {other: 1, name: -1}.get(shard["name"], 0)

    assert facts[name]["records"]
    job.edit(move_a_record)
    assert kinds(sampled(job)) == ["cut"]


def test_order_is_checked_from_one_drawn_shard_to_the_next(tmp_path: Path) -> None:
    job = ordinary(tmp_path, BY_KEY)
    first, second = sorted(drawn(job))
    left, right = job.records(first), job.records(second)
    job.rewrite(first, right)
    job.rewrite(second, left)
    assert "order" in kinds(sampled(job))


def test_a_sample_of_all_finds_what_verify_finds(tmp_path: Path) -> None:
    job = ordinary(tmp_path, SHUFFLE)
    swap_neighbours(job)
    whole, all_of_it = job.verify(), sampled(job, part=1)
    assert all_of_it.problems == whole.problems
    assert (all_of_it.sample, all_of_it.bytes_read) == (None, whole.bytes_read)


def test_the_same_seed_draws_the_same_shards(tmp_path: Path) -> None:
    names = [f"out-{number:04d}.tar" for number in range(1000)]
    same = Sample(0.01, "a").drawn(names)
    assert same == Sample(0.01, "a").drawn(names[::-1])
    assert len(same) == 10
    assert same != Sample(0.01, "b").drawn(names)
    assert same < Sample(0.5, "a").drawn(names)
    assert len(Sample(1e-9, "a").drawn(names)) == 1
    assert Sample(0.5, "a").drawn([]) == frozenset()


@pytest.mark.whole
@pytest.mark.parametrize("part", [0, -0.1, 1.5, float("nan")])
def test_what_is_no_part_is_refused(tmp_path: Path, part: float) -> None:
    with pytest.raises(InputError):
        sampled(ordinary(tmp_path, BY_KEY), part=part)


def test_the_command_ends_with_7_where_all_that_it_read_is_right(
    cli: CommandLine, tmp_path: Path
) -> None:
    job = ordinary(tmp_path, BY_KEY)
    good = cli("verify", "out", "--sample", "30%", "--seed", "tonight", "--progress", "none")
    assert good.code == 0
    assert "not checked" in good.out
    said = json.loads(cli("verify", "out", "--sample", "0.3", "--json").out)
    assert (said["ok"], said["sample"]["seed"]) == (True, job.report.job_id)
    assert (said["sample"]["part"], said["sample"]["shards"]) == (0.3, len(drawn(job)))
    assert cli("verify", "out", "--sample", "100%").code == 0
    cut_short(job, job.names[0])
    assert cli("verify", "out", "--sample", "30%").code == 3


@pytest.mark.whole
@pytest.mark.parametrize(
    "wrong", [["--sample", "0"], ["--sample", "1%%"], ["--sample", "nan"], ["--seed", "1"]]
)
def test_a_wrong_sample_is_a_mistake_of_usage(
    cli: CommandLine, tmp_path: Path, wrong: list[str]
) -> None:
    ordinary(tmp_path, BY_KEY)
    assert cli("verify", "out", *wrong).code == 2
