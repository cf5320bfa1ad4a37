"""Which worker is given which input shard, as the queue of tasks decides it."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.support.internals import ExtractTask, Task, TaskQueue


class GivenShard(NamedTuple):
    """``fetched``: the shard that the worker had begun to fetch; ``follows``: the shard that it
    fetches now; -1: none."""

    fetched: int
    shard: int
    follows: int


def note_given_shards(monkeypatch: pytest.MonkeyPatch) -> list[GivenShard]:
    """The shards that workers are given from here on, in the order of time."""
    take, given, fetched = TaskQueue.take, list[GivenShard](), dict[Any, int]()

    def noted(self: TaskQueue[Any], worker: Any, node: str = "") -> Task | None:
        task = take(self, worker, node)
        if isinstance(task, ExtractTask):
            given.append(GivenShard(fetched.get(worker, -1), task.shard, task.next_shard))
            fetched[worker] = task.next_shard
        return task

    monkeypatch.setattr(TaskQueue, "take", noted)
    return given
