"""What a node had that is lost is made again, and nothing else is: the order of the partitions that
other nodes have stays, and so does the cut."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dsort.errors import InvariantError
from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.engine import spec_of
from tests.support.inline_runtime import Moved, run_inline
from tests.support.internals import (
    CutTask,
    Extractor,
    IndexStore,
    Orderer,
    OrderTask,
    PartitionRows,
    SpillBlocksOf,
)
from tests.support.refusals import raises
from tests.support.tables import some_tables

PARTITIONS = 12
SPREAD = Moved("spill", workers=3, partitions=PARTITIONS, nodes=3, losses=1)


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a partition was ordered or cut, and asked for new places."""
    counts: Counter[str] = Counter()
    order, cut, answer = Orderer._ordered, Orderer.cut, SpillBlocksOf.answer

    def counted_order(orderer: Orderer, task: OrderTask, rows: PartitionRows) -> object:
        counts["order"] += 1
        return order(orderer, task, rows)

    def counted_cut(orderer: Orderer, task: CutTask) -> object:
        counts["cut"] += 1
        return cut(orderer, task)

    def counted_answer(request: SpillBlocksOf, store: IndexStore) -> object:
        counts["places"] += 1
        return answer(request, store)

    monkeypatch.setattr(Orderer, "_ordered", counted_order)
    monkeypatch.setattr(Orderer, "cut", counted_cut)
    monkeypatch.setattr(SpillBlocksOf, "answer", counted_answer)
    return counts


def spec(**fields: Any) -> dict[str, Any]:
    shuffle = {"kind": "shuffle", "seed": "7"}
    return spec_of(**{"algorithm": shuffle, "output_shard_records": 20, **fields})


def losing(task: str, seed: int, **fields: Any) -> Moved:
    return dataclasses.replace(SPREAD, losses_in=task, order_seed=seed, **fields)


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize(
    ("shards", "partitions"),
    [(7, PARTITIONS), (60, PARTITIONS), (7, 40)],
    ids=["single", "runs of shards", "runs of partitions"],
)
def test_only_partitions_of_a_node_that_is_lost_are_ordered_again(
    shards: int, partitions: int, tmp_path: Path, done: Counter[str]
) -> None:
    write_shards(tmp_path / "in", small_dataset("lost", shards=shards, records=420 // shards))
    run_inline(spec(), tmp_path, Moved())
    wanted = files_of(tmp_path / "out")
    for seed in range(2):
        done.clear()
        moved = losing("CreateTask", seed, partitions=partitions)
        run_inline(spec(), tmp_path, moved, overwrite=True)
        assert files_of(tmp_path / "out") == wanted
        assert partitions < done["order"] < 2 * partitions
        assert done["places"]


def test_a_lost_node_does_not_change_the_cut(tmp_path: Path, done: Counter[str]) -> None:
    write_shards(tmp_path / "in", small_dataset("lost", records=100))
    run_inline(spec(), tmp_path, Moved())
    wanted = files_of(tmp_path / "out")
    run_inline(spec(), tmp_path, losing("CutTask", 4), overwrite=True)
    assert files_of(tmp_path / "out") == wanted
    assert done["order"] > PARTITIONS + 1
    assert done["cut"] <= PARTITIONS + 2  # one of them with the first job, one where it was lost


@pytest.mark.parametrize("values_stay", [False, True])
def test_rows_of_tables_are_found_where_they_are_now(
    values_stay: bool, tmp_path: Path, done: Counter[str]
) -> None:
    (tmp_path / "in").mkdir()
    some_tables(tmp_path / "in", ".parquet")
    own = spec(input_extension=".parquet", key_field="id", row_group_rows=9)
    run_inline(own, tmp_path, Moved("spill"))
    wanted = files_of(tmp_path / "out")
    for seed in range(2):
        moved = losing("CreateTask", seed, values_stay=values_stay)
        run_inline(own, tmp_path, moved, overwrite=True)
        assert files_of(tmp_path / "out") == wanted
    assert done["places"]


def test_a_shard_that_has_other_records_when_it_is_extracted_again_ends_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards(tmp_path / "in", small_dataset("lost", shards=7, records=60))
    extract, seen = Extractor.extract, set[int]()

    def forgets_one(extractor: Extractor, task: Any) -> Any:
        done = extract(extractor, task)
        again = task.shard in seen
        seen.add(task.shard)
        return replace(done, records=done.records - 1) if again else done

    monkeypatch.setattr(Extractor, "extract", forgets_one)
    with raises(InvariantError, "shard in-6.tar", "(59, "):
        run_inline(spec(), tmp_path, losing("CreateTask", 1))


def test_a_partition_whose_spill_has_other_bytes_now_ends_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards(tmp_path / "in", small_dataset("lost", shards=7, records=60))
    answer = SpillBlocksOf.answer
    monkeypatch.setattr(SpillBlocksOf, "answer", lambda request, store: answer(request, store)[1:])
    with raises(InvariantError, "partition 6"):
        run_inline(spec(), tmp_path, losing("CreateTask", 1))
