"""``dsort.Dataset``: a result by number and key, with the manifest's counts and kept indexes."""

from __future__ import annotations

from pathlib import Path

import pytest

import dsort
from tests.support.datasets import small_dataset, write_shards
from tests.support.refusals import raises

SPEC = {
    "input_bck": "in",
    "output_bck": "out",
    "output_format": "out-%03d",
    "output_shard_records": 7,
    "algorithm": {"kind": "shuffle", "seed": 4},
}


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers_here: None) -> dsort.JobReport:
    monkeypatch.chdir(tmp_path)
    write_shards(tmp_path / "in", small_dataset(5))
    return dsort.run(SPEC)


def test_its_records_are_those_of_the_result_by_number_and_key(
    report: dsort.JobReport, tmp_path: Path
) -> None:
    wanted = list(dsort.read_shards(report))
    for where in (report, "out"):  # counts of the manifest, and counted ones
        with dsort.Dataset(where, cache=tmp_path / "kept") as dataset:
            assert len(dataset) == len(wanted) > 20
            for at in (0, 7, -1, len(wanted) // 2):
                found = dataset[at]
                same = (found.key, found.members, found.shard)
                assert same == (wanted[at].key, wanted[at].members, wanted[at].shard)
            assert [each.key for each in dataset[5:9]] == [each.key for each in wanted[5:9]]
            key = wanted[11].key
            same_key = [each.members for each in wanted if each.key == key]
            assert [each.members for each in dataset.where(key)] == same_key
            assert dataset.where("nowhere") == []
            with raises(IndexError, "999"):
                dataset[999]


def test_a_sample_has_each_record_once_and_is_the_same_for_a_seed(
    report: dsort.JobReport,
) -> None:
    dataset = dsort.Dataset(report, cache="")
    some = [(each.shard, each.index) for each in dataset.sample(10, seed=3)]
    assert len(set(some)) == 10
    assert some == [(each.shard, each.index) for each in dataset.sample(10, seed=3)]
    assert some != [(each.shard, each.index) for each in dataset.sample(10, seed=4)]
    assert len(dataset.sample(10_000)) == len(dataset)


def test_records_outlive_the_shards_that_are_open(
    report: dsort.JobReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsort.reading.dataset.SHARDS_OPEN_MAX", 1)
    records = list(dsort.Dataset(report, cache=""))
    wanted = list(dsort.read_shards(report))
    assert [each.members for each in records] == [each.members for each in wanted]


def test_it_is_the_same_dataset_wherever_its_shards_are(
    report: dsort.JobReport, tmp_path: Path
) -> None:
    moved = tmp_path / "elsewhere"
    (tmp_path / "out").rename(moved)
    assert report.manifest_name is not None
    found = dsort.Dataset(moved / report.manifest_name, cache="")
    moved.rename(tmp_path / "out")
    assert found.digest == dsort.Dataset(report, cache="").digest
    shard = next((tmp_path / "out").glob("*.tar"))
    names = [each for each in (tmp_path / "out").glob("*.tar") if each != shard]
    assert found.digest != dsort.Dataset(names, cache="").digest
