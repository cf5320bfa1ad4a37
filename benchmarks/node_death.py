"""What it costs when a node dies in the midst of a job: the real coordinator, in simulated time.

Run as ``python -m benchmarks.node_death``; one JSON object on stdout. Tasks take as long as their
bytes do at the speed of a worker; each goes to the worker that is free first. When the node dies,
its workers, what they do and its scratch are gone: whoever needs that scratch hears so, and the
coordinator has it made again by the nodes that are left.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count

from msgspec.structs import replace

from benchmarks.arithmetic_workers import ArithmeticRuntime, Scale
from benchmarks.simulation import simulate
from dsort.errors import ScratchLostError
from dsort.scratch.nodes import Request
from dsort.workers.tasks import (
    CreateTask,
    ExtractTask,
    OrderDone,
    OrderRunTask,
    OrderTask,
    ScratchLost,
    Task,
    TaskDone,
    WorkerSetup,
)

__all__ = ["Death", "TimedRuntime", "simulate_death"]

WORKER_BYTES_PER_S = 400e6
"""Of a worker: 16 of them take what a node's disks and network give."""
INDEX_BYTES = 100
"""Of a record, read to order it."""
SMALL_TASK_S = 0.01
DEAD = 3
"""The number of the node that dies."""


@dataclass(frozen=True, slots=True)
class Death:
    """``seconds``: of the job with the death, over ``undisturbed_s``. ``extracted``, ``ordered``,
    ``cut``,
    ``created``: tasks of each kind that were done more often than without it."""

    undisturbed_s: float
    seconds: float
    ratio: float
    extracted: int
    ordered: int
    cut: int
    created: int


class TimedRuntime(ArithmeticRuntime):
    """See :class:`~dsort.runtime.base.Runtime`. ``dies_at_s``: when one of its nodes does, None:
    never."""

    def __init__(self, scale: Scale, dies_at_s: float | None = None) -> None:
        super().__init__(scale)
        self.now_s = 0.0
        self.done = dict.fromkeys(("ExtractTask", "OrderTask", "CutTask", "CreateTask"), 0)
        self._dies_at_s = dies_at_s
        self._is_dead = False
        self._workers = list(range(scale.workers))
        self._extracted_on: dict[int, str] = {}
        self._nodes_of: dict[str, set[str]] = {}  # by name of a shared file that says where all is
        self._dead_node = self._node(DEAD)

    def start(self, setup: WorkerSetup, workers: int) -> None:
        super().start(setup, workers)
        self._workers = list(range(workers))

    def scratch_nodes(self) -> tuple[str, ...]:
        nodes = super().scratch_nodes()
        return tuple(each for each in nodes if not self._is_dead or each != self._dead_node)

    def share(self, name: str, data: bytes) -> None:
        super().share(name, data)
        self._nodes_of[name] = {*self._extracted_on.values()}

    def ask(self, node: str, request: Request) -> object:
        if self._is_dead and node == self._dead_node:
            raise ScratchLostError(node, f"node {node} is dead")
        return super().ask(node, request)

    def run(
        self, tasks: Iterable[Task], *, workers_max: int | None = None
    ) -> Iterator[tuple[Task, TaskDone]]:
        waiting, more = deque[Task](), iter(tasks)
        free = self._workers[:workers_max]
        running: list[tuple[float, int, int, Task]] = []
        numbers = count()
        while True:
            while free and (task := waiting.popleft() if waiting else next(more, None)):
                if self._needs_dead(task):
                    yield task, ScratchLost(self._dead_node)
                    continue
                end_s = self.now_s + self._seconds(task)
                heapq.heappush(running, (end_s, next(numbers), free.pop(), task))
            if not running:
                return
            dies_s = self._dies_at_s
            if dies_s is not None and not self._is_dead and running[0][0] >= dies_s:
                self.now_s, self._is_dead = dies_s, True
                lost = [each for each in running if self._is_of_dead(each[2])]
                running = [each for each in running if not self._is_of_dead(each[2])]
                heapq.heapify(running)
                waiting.extend(each[3] for each in lost)
                self._workers = [each for each in self._workers if not self._is_of_dead(each)]
                free = [each for each in free if not self._is_of_dead(each)]
                continue
            self.now_s, _, worker, task = heapq.heappop(running)
            free.append(worker)
            for each in _parts(task):
                if type(each).__name__ in self.done:
                    self.done[type(each).__name__] += 1
            if isinstance(task, ExtractTask):
                self._extracted_on[task.shard] = self._node(worker)
            yield task, self._answer(task, worker)

    def _is_of_dead(self, worker: int) -> bool:
        return worker % self.scale.nodes == DEAD

    def _order(self, task: OrderTask) -> OrderDone:
        """A partition is where the worker is that orders it."""
        done = super()._order(task)
        if self._is_dead and done.node == self._dead_node:
            done = replace(done, node=self._node(DEAD + 1))
        return done

    def _needs_dead(self, task: Task) -> bool:
        """Whether some of what a task reads was on the node that died."""
        if not self._is_dead:
            return False
        if getattr(task, "node", "") == self._dead_node:
            return True
        if isinstance(task, CreateTask) and self._dead_node in dict(task.nodes).values():
            return True
        locations = {getattr(each, "locations", "") for each in _parts(task)}
        return any(self._dead_node in self._nodes_of.get(each, ()) for each in locations)

    def _seconds(self, task: Task) -> float:
        scale = self.scale
        if isinstance(task, ExtractTask):  # read, and written to spill
            return 2 * scale.records_of_shard(task.shard) * scale.stored_bytes / WORKER_BYTES_PER_S
        if isinstance(task, CreateTask):
            return 2 * sum(piece.stored_bytes for piece in task.pieces) / WORKER_BYTES_PER_S
        ordered = [each for each in _parts(task) if isinstance(each, OrderTask)]
        if ordered:
            records = sum(int(self._partition_records[each.partition]) for each in ordered)
            return SMALL_TASK_S + records * INDEX_BYTES / WORKER_BYTES_PER_S
        return SMALL_TASK_S


def _parts(task: Task) -> tuple[Task, ...]:
    """Those that a run has; the task itself if it is none."""
    return task.partitions if isinstance(task, OrderRunTask) else (task,)


def simulate_death(scale: Scale, *, share: float = 0.5) -> Death:
    """Run one job undisturbed, and once more with a node that dies after ``share`` of its time."""
    undisturbed = TimedRuntime(scale)
    simulate(scale, runtime=undisturbed)
    disturbed = TimedRuntime(scale, dies_at_s=undisturbed.now_s * share)
    simulate(scale, runtime=disturbed)
    more = {kind: disturbed.done[kind] - undisturbed.done[kind] for kind in disturbed.done}
    return Death(
        undisturbed.now_s,
        disturbed.now_s,
        disturbed.now_s / undisturbed.now_s,
        more["ExtractTask"],
        more["OrderTask"],
        more["CutTask"],
        more["CreateTask"],
    )


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=0.5, help="of the time, when it dies")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--shards", type=int, default=8000)
    parsed = parser.parse_args()
    scale = Scale(
        shards=parsed.shards,
        records=parsed.shards * 1000,
        record_bytes=1_000_000,
        output_shards=parsed.shards,
        nodes=parsed.nodes,
        workers_a_node=16,
    )
    print(json.dumps(dataclasses.asdict(simulate_death(scale, share=parsed.share))))


if __name__ == "__main__":
    main()
