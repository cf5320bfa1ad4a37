"""The queue of tasks that both runtimes take theirs from."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

import pytest

from dsort.errors import InputError, WorkerLostError
from tests.support.internals import (
    LOOKAHEAD_MAX,
    TASK_TRIES_MAX,
    WORKERS_LOST_MAX,
    CreateTask,
    ExtractTask,
    PublishDone,
    PublishTask,
    Stage,
    Task,
    TaskQueue,
)
from tests.support.refusals import raises

DONE = PublishDone(1)


def extract(shard: int, next_shard: int = -1) -> ExtractTask:
    return ExtractTask(
        shard, f"{shard}.tar", 1, "", Stage("index", spill=True), next_shard=next_shard
    )


def create(node: str) -> CreateTask:
    return CreateTask((), "", (), node)


def begun(tasks: list[Task], ahead: int = sys.maxsize) -> TaskQueue[str]:
    queue: TaskQueue[str] = TaskQueue()
    queue.begin(tasks, ahead)
    assert queue.is_open() == bool(tasks)
    return queue


def test_every_task_is_answered_once_whatever_workers_are_lost(rng: random.Random) -> None:
    tasks = [extract(shard) for shard in range(40)]
    queue, answered, lost = begun([*tasks], ahead=5), [], []
    doing: dict[str, Task] = {}
    while queue.is_open():
        for worker in "abc":
            if queue.is_free(worker) and (task := queue.take(worker)) is not None:
                doing[worker] = task
        worker = rng.choice(sorted(doing))
        task = doing.pop(worker)
        if len(lost) < WORKERS_LOST_MAX and task not in lost and rng.random() < 0.8:
            lost.append(task)
            queue.lose(worker, "it died", "")
            continue
        assert queue.answer(worker, DONE) == ((task, DONE),)
        answered.append(task)
    queue.raise_failure()
    assert len(lost) == WORKERS_LOST_MAX
    assert sorted(each.shard for each in answered) == [*range(40)]


def test_only_a_bounded_number_of_tasks_is_made_ahead() -> None:
    made: list[int] = []

    def tasks() -> Iterator[Task]:
        for shard in range(10):
            made.append(shard)
            yield extract(shard)

    queue: TaskQueue[str] = TaskQueue()
    queue.begin(tasks(), ahead=3)
    assert not made
    queue.fill()
    assert made == [0, 1, 2]
    assert queue.take("a") == extract(0)
    assert queue.is_open()
    assert made == [0, 1, 2, 3]


def test_the_error_of_the_first_task_by_order_ends_the_run() -> None:
    queue = begun([extract(shard) for shard in range(4)])
    for worker in "abc":
        queue.take(worker)
    assert not queue.answer("c", InputError("third"))
    assert queue.take("c") is None, "those behind a task that failed are not begun"
    assert queue.is_open()
    assert not queue.answer("a", InputError("first"))
    assert not queue.is_open(), "the second cannot change how the run ends"
    with pytest.raises(InputError, match="first"):
        queue.raise_failure()


def test_answers_to_an_earlier_run_are_dropped() -> None:
    queue = begun([extract(0), extract(1)])
    queue.take("a")
    queue.take("b")
    queue.begin([extract(2)])
    assert queue.is_open()
    assert not queue.is_free("a"), "it is busy until it answers"
    assert not queue.answer("a", DONE)
    queue.lose("b", "it died", "")
    assert queue.take("a") == extract(2)
    assert queue.answer("a", DONE) == ((extract(2), DONE),)
    assert not queue.is_open()


def test_a_task_that_ends_its_workers_fails_the_job() -> None:
    queue = begun([extract(7)])
    for number in range(TASK_TRIES_MAX - 1):
        queue.take(f"worker {number}")
        queue.lose(f"worker {number}", "it died", "")
    queue.take("worker 9")
    with raises(WorkerLostError, "shard 7.tar", f"{TASK_TRIES_MAX} times", "worker 9"):
        queue.lose("worker 9", "it died", "")


def test_a_worker_that_was_lost_before_it_got_its_task_is_not_counted_against_it() -> None:
    queue = begun([extract(0), extract(1)])
    for number in range(TASK_TRIES_MAX + 1):
        assert queue.take(f"w{number}") == extract(0)
        queue.put_back(f"w{number}")
        queue.lose(f"w{number}", "it died", "")
    assert queue.take("last") == extract(0)


def test_a_job_that_loses_too_many_workers_is_given_up() -> None:
    queue = begun([extract(0)])
    for number in range(WORKERS_LOST_MAX):
        queue.lose(f"w{number}", "it died", "")
    with raises(WorkerLostError, f"{WORKERS_LOST_MAX + 1} workers"):
        queue.lose("last", "it died", "")


def test_a_worker_gets_the_shard_that_it_fetches() -> None:
    queue = begun([extract(0, 2), extract(1, 3), *map(extract, range(2, 5))])
    assert queue.take("a") == extract(0, 2)
    assert queue.take("b") == extract(1, 3)
    queue.answer("b", DONE)
    assert queue.take("b") == extract(3), "its own, though it is not the first"
    assert queue.take("c") == extract(4), "another worker fetches the first"
    queue.answer("c", DONE)
    assert queue.take("c") == extract(2), "only fetched ones are left: the last"


def test_a_worker_that_fetches_nothing_leaves_to_others_what_they_fetch() -> None:
    queue = begun([extract(0, 1), extract(1), extract(2)])
    queue.take("a")
    assert queue.take("b") == extract(2)


def test_tasks_without_shards_are_done_in_order() -> None:
    others = [PublishTask(()), create("n")]
    queue = begun([extract(0, 5), *others])
    queue.take("a")
    queue.answer("a", DONE)
    assert queue.take("a") == others[0]
    assert queue.take("b") == others[1]


def test_a_task_whose_files_are_on_the_workers_node_comes_first() -> None:
    far = [create("far")] * (LOOKAHEAD_MAX - 1)
    queue = begun([*far, create("near"), create("near")])
    assert queue.take("a", "near") == create("near")
    assert queue.take("b", "near") == create("near"), "it is among the first once another is gone"
    assert queue.take("c", "near") == create("far")
