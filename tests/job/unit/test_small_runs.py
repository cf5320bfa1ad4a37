"""Which mapped output shards one task writes."""

from __future__ import annotations

import numpy as np

from tests.support.internals import runs_of_small


def _runs(sizes: list[int], *, workers: int = 2) -> list[list[int]]:
    found = runs_of_small(np.arange(len(sizes)), np.array(sizes, np.int64), workers)
    return [run.tolist() for run in found]


def test_large_shards_are_a_task_each() -> None:
    assert _runs([1 << 30] * 5) == [[0], [1], [2], [3], [4]]
    assert _runs([100 << 20] * 200) == [[number] for number in range(200)]


def test_few_small_shards_keep_all_workers_busy() -> None:
    assert _runs([1000] * 8) == [[number] for number in range(8)]


def test_many_small_shards_share_tasks_that_are_bounded_in_bytes_and_in_number() -> None:
    runs = _runs([100_000] * 10_000)
    assert [each for run in runs for each in run] == list(range(10_000))
    assert len(runs) < 200
    assert max(map(len, runs)) <= 64

    runs = _runs([1 << 20] * 4000)
    assert max(map(len, runs)) <= 17


def test_a_large_shard_among_small_ones_begins_a_task() -> None:
    sizes = [100_000] * 500 + [1 << 30] + [100_000] * 500
    run = next(run for run in _runs(sizes) if 500 in run)
    assert run[0] == 500
    assert [each for run in _runs(sizes) for each in run] == list(range(1001))
