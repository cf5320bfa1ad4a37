"""The interface of runtimes, and the queue of tasks under each of them. A runtime hosts workers: it
moves tasks to them and answers back. It holds no policy; the queue does no I/O.

Workers answer with a value or an error; errors of any kind reach the coordinator unchanged.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, Generic, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dsort.errors import (
    DsortError,
    InvariantError,
    ScratchLostError,
    StorageFullError,
    WorkerLostError,
)
from dsort.log_lines import logger_of
from dsort.scratch.index import IndexStore
from dsort.scratch.nodes import Request
from dsort.storage.process_limits import PROCESSES_HINT, is_no_thread
from dsort.workers.tasks import ScratchLost, Task, TaskDone, WorkerSetup
from dsort.workers.worker import Worker

log = logger_of("runtime")


class Runtime(Protocol):
    """Hosts the workers of one job."""

    name: str

    def workers_max(self) -> int:
        """The most workers that it can host."""

    def nodes(self) -> int:
        """The number of nodes that the workers are spread over."""

    def where(self) -> str:
        """The addresses that it listens on, in words for a user; "" if it listens on none."""

    def start(self, setup: WorkerSetup, workers: int) -> None:
        """Make a scratch directory on each node, and start ``workers`` workers.

        ``StorageError``, which names the node, if a node cannot have a scratch directory.
        """

    def scratch_nodes(self) -> tuple[str, ...]:
        """The ids of the scratch nodes that exist now."""

    def share(self, name: str, data: bytes) -> None:
        """Send a small file to all nodes, including nodes that join later."""

    def ask(self, node: str, request: Request) -> Any:
        """The answer of ``node`` to ``request``; ``ScratchLostError`` if the node is gone."""

    def tell(self, node: str, request: Request) -> None:
        """Send ``request``, without waiting for the answer; errors are ignored."""

    def run(
        self, tasks: Iterable[Task], *, workers_max: int | None = None
    ) -> Iterator[tuple[Task, TaskDone]]:
        """Do all tasks, each on any free worker, and yield answers in the order in which they come.

        ``workers_max``: the most workers that are used.

        Raises the error of a task (``DsortError``; of several tasks the first),
        ``WorkerLostError``, or ``JobStoppedError``. Once a task has failed, only the tasks before
        it are done.
        A task whose worker died is done again by another worker; each task has one answer.
        A task with a ``node`` goes to a worker on that node, if one is free.
        """

    def check_directory(self, path: str, token: str) -> tuple[str, ...]:
        """Check that each node sees ``path`` with a file ``token`` in it; ``StorageError`` names a
        node that does not see it. Return the nodes that were found to be lost, in words."""

    def warnings(self) -> list[str]:
        """New warnings for the user since the last call, about things that make jobs slow."""

    def close(self, *, keep_scratch: bool = False) -> None:
        """Stop all workers at once, release their resources, and remove the scratch nodes unless
        ``keep_scratch``. May be called twice."""


def answer(worker: Worker, task: Task) -> TaskDone | DsortError:
    """Do ``task`` with ``worker``; return its answer, or the error with which the job ends."""
    if not log.isEnabledFor(logging.DEBUG):
        return _answer(worker, task)
    log.debug("the worker begins: %s", task)
    began_s = time.monotonic()
    done = _answer(worker, task)
    seconds = time.monotonic() - began_s
    if isinstance(done, DsortError):
        log.debug("the worker failed after %.3f s: %s: %s", seconds, task, done)
    elif isinstance(done, ScratchLost):
        log.debug("the worker found scratch %s lost after %.3f s: %s", done.node, seconds, task)
    else:
        log.debug("the worker is done in %.3f s: %s", seconds, task)
    return done


def _answer(worker: Worker, task: Task) -> TaskDone | DsortError:
    try:
        return worker.do(task)
    except ScratchLostError as lost:
        return ScratchLost(lost.node)
    except DsortError as error:
        return error
    except MemoryError:
        return StorageFullError(
            "a worker ran out of memory", hint="give --max-memory, or fewer --workers"
        )
    except Exception as error:  # noqa: BLE001 - a bug: it is sent to the coordinator whole
        if isinstance(error, RuntimeError) and is_no_thread(error):
            return WorkerLostError("a worker can start no thread", hint=PROCESSES_HINT)
        return InvariantError(f"a worker failed:\n{traceback.format_exc()}")


def reply(request: Request, store: IndexStore) -> Any:
    """The answer of the node in ``store`` to ``request``, or the ``DsortError`` that it caused."""
    try:
        return request.answer(store)
    except DsortError as error:
        return error
    except Exception:  # noqa: BLE001 - a bug: it is sent to the requester whole, and ends the job
        return InvariantError(f"a node failed to answer:\n{traceback.format_exc()}")


def given(found: Any) -> Any:
    """The answer ``found``; if it is an error, it is raised."""
    if isinstance(found, DsortError):
        raise found
    return found


TASK_TRIES_MAX: Final = 3
"""If a task has ended this many workers, the job fails."""
WORKERS_LOST_MAX: Final = 16
"""The most workers that may be lost before the job fails."""
LOOKAHEAD_MAX: Final = 64
"""The number of waiting tasks among which a task with files on the free worker's node is
searched."""

W = TypeVar("W", bound=Hashable)


class _Attempt(Struct, frozen=True):
    """One try at a task. ``order``: the place of the task in its run; ``run``: the number of the
    run, because answers to tasks of earlier runs are dropped."""

    task: Task
    order: int
    run: int
    tries: int = 1


class TaskQueue(Generic[W]):
    """The tasks of one run after the other, for workers of the type ``W``; ``str`` of a worker is
    its name for users. The queue decides which task a free worker gets next, when a run of tasks is
    over, and whether the task of a lost worker is done again.

    If several tasks of a run fail, the error of the first of them in the order of tasks ends the
    run, whichever failed first in time. So the error names the same shard for any number of
    workers.
    """

    def __init__(self) -> None:
        self._lost = 0
        self._run = self._taken = 0
        self._tasks: Iterator[Task] = iter(())
        self._ahead = 0
        self._waiting: deque[_Attempt] = deque()
        self._doing: dict[W, _Attempt] = {}
        self._fetches: dict[W, int] = {}
        self._failed: tuple[int, DsortError] | tuple[()] = ()  # the order of the task, its error

    def begin(self, tasks: Iterable[Task], ahead: int = sys.maxsize) -> None:
        """Begin a run. ``ahead``: how many tasks are made in advance, before a worker is free for
        them."""
        self._run += 1
        self._taken = 0
        self._tasks, self._ahead, self._failed = iter(tasks), ahead, ()
        # Workers may still do tasks of a run that has failed: `_doing` stays, so that none of them
        # gets a second task.
        self._waiting.clear()
        self._fetches.clear()

    def is_open(self) -> bool:
        """Whether a task waits, or an answer may still decide how the run ends."""
        self.fill()
        return bool(self._waiting) or any(map(self._matters, self._doing.values()))

    def raise_failure(self) -> None:
        """Raise the error that ended the run, if any."""
        if self._failed:
            raise self._failed[1]

    def fill(self) -> None:
        """Make tasks in advance."""
        if not self._failed:
            for task in islice(self._tasks, max(self._ahead - len(self._waiting), 0)):
                self._waiting.append(_Attempt(task, self._taken, self._run))
                self._taken += 1

    def is_free(self, worker: W) -> bool:
        """Whether a worker has no task."""
        return worker not in self._doing

    def is_idle(self) -> bool:
        """Whether all workers are free."""
        return not self._doing

    def take(self, worker: W, node: str = "") -> Task | None:
        """The next task for a free worker; None: no task waits. ``node``: the worker's node, if
        workers are on several nodes."""
        if not self._waiting:
            return None
        at = self._next(worker, node)
        attempt = self._waiting[at]
        del self._waiting[at]
        self._doing[worker] = attempt
        self._fetches[worker] = getattr(attempt.task, "next_shard", -1)
        return attempt.task

    def put_back(self, worker: W) -> None:
        """Return a task that could not be sent. The loss of this worker does not count as a try of
        the task."""
        # In front, so that the worker that could not be reached does not delay the task.
        self._waiting.appendleft(self._doing.pop(worker))

    def answer(self, worker: W, done: TaskDone | DsortError) -> Sequence[tuple[Task, TaskDone]]:
        """The answer of a worker, with its task; nothing if the task failed, or belongs to an
        earlier run."""
        attempt = self._doing.pop(worker)
        if attempt.run != self._run:
            return ()
        if not isinstance(done, DsortError):
            return ((attempt.task, done),)
        if self._matters(attempt):
            self._failed = attempt.order, done
            # Tasks before the failed task may still fail; then their error ends the run.
            self._waiting = deque(each for each in self._waiting if self._matters(each))
        return ()

    def lose(self, worker: W, cause: str, hint: str, lost_max: int = WORKERS_LOST_MAX) -> None:
        """Record that a worker was lost; its task waits again.

        ``WorkerLostError`` if the task has ended several workers, or the job has lost more than
        ``lost_max`` workers.
        """
        attempt = self._doing.pop(worker, None)
        self._fetches.pop(worker, None)
        doing = str(attempt.task) if attempt is not None else "it had no task"
        self._lost += 1
        if attempt is not None and attempt.tries >= TASK_TRIES_MAX:
            raise WorkerLostError(
                f"{doing} ended its worker {attempt.tries} times; the last one, {worker}: {cause}",
                hint=hint,
            )
        if self._lost > lost_max:
            raise WorkerLostError(
                f"{self._lost} workers were lost, the last one, {worker}, while {doing}: {cause}",
                hint=hint,
            )
        if attempt is not None and self._matters(attempt):
            self._waiting.append(replace(attempt, tries=attempt.tries + 1))

    def _matters(self, attempt: _Attempt) -> bool:
        """Whether the answer to an attempt may decide how the run ends."""
        return attempt.run == self._run and (not self._failed or attempt.order < self._failed[0])

    def _next(self, worker: W, node: str) -> int:
        """The number of the waiting task that a worker should do next, counted from 0.

        If input shards are fetched ahead, it is the task of the shard that this worker fetches;
        else the first task with a shard that no worker fetches; else the last task, because its
        shard will arrive last. If no shards are fetched ahead, it is a task with files on the
        worker's node, or else the first task.
        """
        if any(shard >= 0 for shard in self._fetches.values()):
            own, fetched = self._fetches.get(worker, -1), {*self._fetches.values()}
            some = [
                getattr(each.task, "shard", -1)
                for each in islice(self._waiting, 2 * len(self._fetches) + 2)
            ]
            if own >= 0 and own in some:
                return some.index(own)
            free = (at for at, shard in enumerate(some) if shard < 0 or shard not in fetched)
            return next(free, len(self._waiting) - 1)  # all of these are being fetched
        if node:
            for at, attempt in enumerate(islice(self._waiting, LOOKAHEAD_MAX)):
                if getattr(attempt.task, "node", "") == node:
                    return at
        return 0
