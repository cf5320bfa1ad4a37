"""A runtime that does all tasks in this process, and jobs whose way of moving payload a test sets.

Nothing is started, so a job takes milliseconds; and buffers may be as small as a test wants, which
no job on a real machine would choose.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsort.coordinator import plan_job, run_job
from dsort.core.movement import Movement
from dsort.core.tally import Tally
from dsort.job import Job
from dsort.job_setup import load_keymap, new_job_id, output_names, with_seed
from dsort.reports import Event, JobReport, PlanReport, RunOptions
from dsort.spec.load import parse_spec
from dsort.stopping import StopFlag
from dsort.storage.addresses import open_bucket
from dsort.workers.tasks import Task, TaskDone, WorkerSetup
from dsort.workers.worker import Worker

__all__ = ["InlineRuntime", "Moved", "plan_inline", "run_inline"]


@dataclass(frozen=True)
class Moved:
    """How payload is to move: what :func:`~dsort.core.movement.choose_movement` would decide.

    ``order_seed``: tasks are done, and their answers come, in an order drawn with it.
    """

    way: str = "map"
    workers: int = 1
    buckets: int = 1
    buffer_bytes: int = 1 << 20
    order_seed: int | None = None


class InlineRuntime:
    """Workers in this process; each task goes to another one than the task before."""

    name = "inline"

    def __init__(self, moved: Moved) -> None:
        self._moved = moved
        self._workers: list[Worker] = []
        self._rng = None if moved.order_seed is None else random.Random(moved.order_seed)
        self._next = 0
        self.tasks: list[Task] = []

    def workers_max(self) -> int:
        return self._moved.workers

    def start(self, setup: WorkerSetup, workers: int) -> None:
        self._workers = [Worker(setup, number) for number in range(workers)]

    def check_directory(self, path: str, token: str) -> None:
        assert (Path(path) / token).exists()

    def run(
        self, tasks: Iterable[Task], *, workers_max: int | None = None
    ) -> Iterator[tuple[Task, TaskDone]]:
        waiting = list(tasks)
        if self._rng is not None:
            self._rng.shuffle(waiting)
        answers = []
        for task in waiting:
            self.tasks.append(task)
            self._next += 1
            free = self._workers[:workers_max]
            answers.append((task, free[self._next % len(free)].do(task)))
        if self._rng is not None:
            self._rng.shuffle(answers)
        yield from answers

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._workers.clear()


class _MovedJob(Job):
    """A job that moves payload as it was told to, whatever would have been chosen."""

    __slots__ = ("chosen", "moved")

    @property
    def movement(self) -> Movement | None:  # type: ignore[override]
        return self.chosen

    @movement.setter
    def movement(self, chosen: Movement | None) -> None:
        if chosen is not None:
            chosen = replace(
                chosen,
                way=self.moved.way,
                workers=self.moved.workers,
                buckets=self.moved.buckets,
                buffer_bytes=self.moved.buffer_bytes,
            )
        self.chosen = chosen


def run_inline(
    spec: dict[str, Any],
    root: Path,
    moved: Moved | None = None,
    *,
    events: list[Event] | None = None,
    overwrite: bool | None = None,
) -> JobReport:
    """Run ``spec`` in this process, bare bucket names under ``root``."""
    options = RunOptions(root=root, overwrite=overwrite)
    with StopFlag() as stop:
        job, tally = _job(spec, options, moved or Moved(), stop, events)
        return run_job(job, tally)


def plan_inline(spec: dict[str, Any], root: Path, moved: Moved | None = None) -> PlanReport:
    """Plan ``spec`` in this process."""
    with StopFlag() as stop:
        job, tally = _job(spec, RunOptions(root=root), moved or Moved(), stop, None)
        return plan_job(job, tally)


def _job(
    spec: dict[str, Any],
    options: RunOptions,
    moved: Moved,
    stop: StopFlag,
    events: list[Event] | None,
) -> tuple[Job, Tally]:
    parsed = parse_spec(spec).spec
    tally = Tally()
    keymap = load_keymap(parsed, tally)
    job = object.__new__(_MovedJob)
    job.moved = moved
    job.__init__(  # type: ignore[misc]
        job_id=new_job_id(),
        spec=with_seed(parsed),
        options=options,
        inputs_bucket=open_bucket(parsed.input_bck.uri, root=options.root),
        outputs_bucket=open_bucket(parsed.output_bck.uri, root=options.root),
        runtime=InlineRuntime(moved),
        stop=stop,
        on_event=(lambda event: None) if events is None else events.append,
        names=output_names(parsed, keymap),
        keymap=keymap,
    )
    return job, tally
