"""A runtime that does all tasks in this process, and jobs whose way of moving payload a test sets.

Nothing is started, so a job takes milliseconds; and buffers may be as small as a test wants, which
no job on a real machine would choose.
"""

from __future__ import annotations

import contextlib
import pickle
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dsort.errors import ScratchLostError
from dsort.options import RunOptions
from dsort.spec.load import parse_spec
from dsort.stop_flag import StopFlag
from dsort.storage.open import open_bucket
from dsort.storage.routed import BucketPlace, open_inputs, open_outputs
from tests.support.internals import (
    NO_MOVEMENT,
    WAYS,
    Buckets,
    Event,
    Found,
    IndexStore,
    Job,
    JobAttempt,
    JobReport,
    Manifest,
    Movement,
    Outcome,
    Reporter,
    Request,
    ScratchLost,
    ScratchNodes,
    Tally,
    Task,
    TaskDone,
    Worker,
    WorkerSetup,
    compile_pipeline,
    job_memory,
    load_keymap,
    load_steps,
    make_scratch,
    new_job_id,
    open_scratch,
    output_names,
    plan_job,
    run_job,
    scratch_owner,
    with_seed,
)


@dataclass(frozen=True)
class Moved:
    """A movement, in place of the choice of :func:`~dsort.pipeline.movement.choose_movement`.

    ``nodes``: the number of directories with the workers' scratch; each worker uses only one.
    ``losses``: so many nodes are lost during the job, at moments drawn with ``order_seed``.
    ``losses_in``: they are lost only while tasks of that name are done; "": any tasks.
    ``order_seed``: draws the order in which tasks are done and answered.
    ``hops``: under ``range``, whether headers are read one by one.
    ``values_stay``: False for tables whose long values are spilled even if the inputs are mapped.
    """

    movement: str = "map"
    workers: int = 1
    partitions: int = 1
    buffer_bytes: int = 1 << 20
    nodes: int = 1
    losses: int = 0
    losses_in: str = ""
    order_seed: int | None = None
    values_stay: bool = True
    hops: bool = True


class InlineExchange:
    """Answers requests as if they were sent: requests and answers are pickled."""

    def __init__(self, stores: dict[str, IndexStore]) -> None:
        self._stores = stores

    def begin(self, node: str, request: Request) -> Callable[[], Any]:
        if node not in self._stores:
            raise ScratchLostError(node, f"scratch {node} is gone")
        store, sent = self._stores[node], pickle.dumps(request)
        return lambda: pickle.loads(pickle.dumps(pickle.loads(sent).answer(store)))


class InlineRuntime:
    """Workers in this process; each task goes to another worker than the task before it."""

    name = "inline"

    def __init__(self, moved: Moved) -> None:
        self._moved = moved
        self._workers: list[Worker] = []
        self._stores: dict[str, IndexStore] = {}
        self._shared: dict[str, bytes] = {}
        self._setup: WorkerSetup | None = None
        self._losses = moved.losses
        self._made = 0
        self._numbered = -1
        self._rng = None if moved.order_seed is None else random.Random(moved.order_seed)
        self._next = 0
        self.tasks: list[Task] = []

    def workers_max(self) -> int:
        return self._moved.workers

    def nodes(self) -> int:
        return self._moved.nodes

    def where(self) -> str:
        """See :class:`~dsort.runtime.base.Runtime`."""
        return ""

    def start(self, setup: WorkerSetup, workers: int) -> None:
        """Make ``nodes`` directories, and divide the workers among them."""
        self._setup = setup
        nodes = [self._make_home() for _ in range(self._moved.nodes)]
        for number in range(workers):
            self._workers.append(self._make_worker(nodes[number % len(nodes)]))

    def _make_home(self) -> str:
        assert self._setup is not None
        directory = Path(self._setup.scratch)
        if self._moved.nodes > 1:
            self._made += 1
            directory /= str(self._made)
        node = make_scratch(directory, scratch_owner(self._setup.job_id, self._setup.output_uri))
        self._stores[node] = IndexStore(open_scratch(directory, node))
        for name, data in self._shared.items():
            self._stores[node].write_file(name, data)
        return node

    def _make_worker(self, node: str) -> Worker:
        assert self._setup is not None
        exchange = InlineExchange(self._stores) if self._moved.nodes > 1 else None
        self._numbered += 1
        number = self._setup.attempt.first_worker + self._numbered
        return Worker(self._setup, number, ScratchNodes(node, self._stores[node], exchange))

    def _lose_home(self, rng: random.Random) -> None:
        """Lose a node with its scratch and its workers; another node takes its place."""
        lost = rng.choice(list(self._stores))
        shutil.rmtree(self._stores.pop(lost).scratch.path)
        fresh = self._make_home()
        for at, worker in enumerate(self._workers):
            if worker.nodes.node == lost:
                worker.close()
                self._workers[at] = self._make_worker(fresh)

    def scratch_nodes(self) -> tuple[str, ...]:
        return tuple(self._stores)

    def share(self, name: str, data: bytes) -> None:
        self._shared[name] = data
        for store in self._stores.values():
            store.write_file(name, data)

    def ask(self, node: str, request: Request) -> Any:
        return InlineExchange(self._stores).begin(node, request)()

    def tell(self, node: str, request: Request) -> None:
        with contextlib.suppress(ScratchLostError):
            self.ask(node, request)

    def check_directory(self, path: str, token: str) -> tuple[str, ...]:
        assert (Path(path) / token).exists()
        return ()

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
            try:
                answers.append((task, free[self._next % len(free)].do(task)))
            except ScratchLostError as lost:
                answers.append((task, ScratchLost(lost.node)))
            named = self._moved.losses_in in ("", type(task).__name__)
            if named and self._losses and self._rng is not None and self._rng.random() < 0.2:
                self._losses -= 1
                self._lose_home(self._rng)
        if self._rng is not None:
            self._rng.shuffle(answers)
        yield from answers

    def warnings(self) -> list[str]:
        """See :class:`~dsort.runtime.base.Runtime`."""
        return []

    def close(self, *, keep_scratch: bool = False) -> None:
        for worker in self._workers:
            worker.close()
        self._workers.clear()
        self._stores.clear()
        if self._setup is not None and not keep_scratch:
            shutil.rmtree(self._setup.scratch, ignore_errors=True)


class _MovedFound(Found, kw_only=True):
    """Makes a job move payload by the given movement, and ignores the chosen one."""

    moved: Moved
    chosen: Movement = NO_MOVEMENT

    @property
    def movement(self) -> Movement:  # type: ignore[override]
        return self.chosen

    @movement.setter
    def movement(self, chosen: Movement) -> None:
        self.chosen = replace(
            chosen,
            way=WAYS[self.moved.movement] if chosen.way.moves_payload else chosen.way,
            workers=self.moved.workers,
            partitions=self.moved.partitions,
            buffer_bytes=self.moved.buffer_bytes,
            values_stay=chosen.values_stay and self.moved.values_stay,
            hops=self.moved.movement == "range" and self.moved.hops,
        )


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


def plan_inline(spec: dict[str, Any], root: Path, moved: Moved | None = None) -> JobReport:
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
    tally = Tally(named={})
    keymap = load_keymap(parsed, tally)
    targets = (
        BucketPlace("", parsed.output_bck),
        *(BucketPlace(each.place, each.bucket) for each in parsed.targets if each.bucket),
    )
    spec = with_seed(parsed)
    places = tuple(BucketPlace(each.name, each.bucket) for each in parsed.sources)
    job_id, runtime = new_job_id(), InlineRuntime(moved)
    pipeline = compile_pipeline(spec, steps=load_steps(parsed, options), placed_by=keymap)
    listener = (lambda event: None) if events is None else events.append
    outputs = open_outputs(targets, lambda place: open_bucket(place.ref.uri, root=options.root))
    job = Job(
        job_id=job_id,
        spec=spec,
        options=options,
        pipeline=pipeline,
        buckets=Buckets(
            open_inputs(places, lambda place: open_bucket(place.ref.uri, root=options.root)),
            outputs,
            places,
            targets,
        ),
        runtime=runtime,
        stop=stop,
        reporter=Reporter(job_id, spec, pipeline.reading.containers, listener),
        attempt=JobAttempt(outputs, job_id, runtime),
        found=_MovedFound(Manifest.empty(spec), job_memory(parsed, options), moved=moved),
        outcome=Outcome(output_names(parsed, keymap)),
    )
    return job, tally
