"""Workers of a local job in this process: they do the same tasks, and a job takes milliseconds. A
process takes half a second of a processor to begin, and hundreds of tests run a job.

Deaths, signals and memory of processes cannot be tested with these workers.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dsort.errors import DsortError
from dsort.stop_flag import StopFlag
from tests.support.internals import (
    IndexStore,
    LocalRuntime,
    NoExchange,
    ScratchNodes,
    Task,
    TaskDone,
    Worker,
    WorkerSetup,
    answer,
    make_scratch,
    open_scratch,
    scratch_owner,
)


class WorkersHere(LocalRuntime):
    """A local runtime whose workers take turns. Set-up, tasks and answers are pickled, as if they
    were sent."""

    def __init__(self, workers: int, stop: StopFlag, *, forks: bool = False) -> None:
        super().__init__(0, stop)
        self._wanted = workers
        self._workers: list[Worker] = []

    def workers_max(self) -> int:
        return self._wanted

    def start(self, setup: WorkerSetup, workers: int) -> None:
        scratch = Path(setup.scratch)
        self._node = make_scratch(scratch, scratch_owner(setup.job_id, setup.output_uri))
        self._store = IndexStore(open_scratch(scratch, self._node))
        for number in range(setup.attempt.first_worker, setup.attempt.first_worker + workers):
            nodes = ScratchNodes(self._node, self._store, NoExchange())
            self._workers.append(Worker(_sent(setup), number, nodes))

    def run(
        self, tasks: Iterable[Task], *, workers_max: int | None = None
    ) -> Iterator[tuple[Task, TaskDone]]:
        free = self._workers[:workers_max]
        for at, task in enumerate(list(tasks)):
            self._stop.raise_if_requested()
            done = _sent(answer(free[at % len(free)], _sent(task)))
            if isinstance(done, DsortError):
                raise done
            yield task, done

    def close(self, *, keep_scratch: bool = False) -> None:
        for worker in self._workers:
            worker.close()
        self._workers.clear()
        super().close(keep_scratch=keep_scratch)


def _sent(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))
