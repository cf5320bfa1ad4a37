"""A runtime hosts workers: it moves tasks to them and answers back. It holds no policy.

Workers answer with a value or an error; errors of any kind travel whole to the coordinator.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

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
    """Where workers live. One runtime serves one job."""

    name: str

    def workers_max(self) -> int:
        """How many workers it can host."""

    def nodes(self) -> int:
        """How many nodes the workers are spread over."""

    def where(self) -> str:
        """What a user should know of where it runs: on what it listens; "" if there is nothing."""

    def start(self, setup: WorkerSetup, workers: int) -> None:
        """Make a node (a scratch directory) on each node and get ``workers`` workers ready.

        ``StorageError`` naming the node where there can be no node.
        """

    def scratch_nodes(self) -> tuple[str, ...]:
        """The ids of the nodes that are there now."""

    def share(self, name: str, data: bytes) -> None:
        """Give all nodes a small file, those too that join later."""

    def ask(self, node: str, request: Request) -> Any:
        """What ``node`` answers; ``ScratchLostError`` if it is gone."""

    def tell(self, node: str, request: Request) -> None:
        """The same without waiting for it, or for it to have worked."""

    def run(
        self, tasks: Iterable[Task], *, workers_max: int | None = None
    ) -> Iterator[tuple[Task, TaskDone]]:
        """Do all tasks, each on whatever worker is free, and yield answers as they come.

        ``workers_max``: at most so many of the workers are used.

        Raises what a task raised (``DsortError``; of several tasks the first), ``WorkerLostError``,
        or ``JobStoppedError``. Once a task has failed, only those before it are done.
        A task whose worker died is done again by another one; an answer is yielded once a task.
        A task with a ``node`` is given to a worker there, if one is free.
        """

    def check_directory(self, path: str, token: str) -> tuple[str, ...]:
        """``StorageError`` naming the node if some node does not see ``path`` with a file ``token``
        in it. The nodes that turned out to be lost, in words."""

    def warnings(self) -> list[str]:
        """What came up since this was asked last, and a user should know: it makes jobs slow."""

    def close(self, *, keep_scratch: bool = False) -> None:
        """Stop all workers at once, release what they hold, and remove their nodes unless
        ``keep_scratch``. May be called twice."""


def answer(worker: Worker, task: Task) -> tuple[TaskDone | None, DsortError | None]:
    """Have ``worker`` do ``task``: what it answered, or the error that the job ends with."""
    if not log.isEnabledFor(logging.DEBUG):
        return _answer(worker, task)
    log.debug("the worker begins: %s", task)
    began_s = time.monotonic()
    done, error = _answer(worker, task)
    seconds = time.monotonic() - began_s
    if error is not None:
        log.debug("the worker failed after %.3f s: %s: %s", seconds, task, error)
    elif isinstance(done, ScratchLost):
        log.debug("the worker found scratch %s lost after %.3f s: %s", done.node, seconds, task)
    else:
        log.debug("the worker is done in %.3f s: %s", seconds, task)
    return done, error


def _answer(worker: Worker, task: Task) -> tuple[TaskDone | None, DsortError | None]:
    try:
        return worker.do(task), None
    except ScratchLostError as lost:
        return ScratchLost(lost.node), None
    except DsortError as error:
        return None, error
    except MemoryError:
        return None, StorageFullError(
            "a worker ran out of memory", hint="give --max-memory, or fewer --workers"
        )
    except Exception as error:  # noqa: BLE001 - a bug: it goes to the coordinator whole
        if isinstance(error, RuntimeError) and is_no_thread(error):
            return None, WorkerLostError("a worker can start no thread", hint=PROCESSES_HINT)
        return None, InvariantError(f"a worker failed:\n{traceback.format_exc()}")


def reply(request: Request, store: IndexStore) -> tuple[Any, DsortError | None]:
    """The answer of the node in ``store`` to ``request``, or the error that it ended with."""
    try:
        return request.answer(store), None
    except DsortError as error:
        return None, error
    except Exception:  # noqa: BLE001 - a bug: it goes to whoever asked whole, and ends the job
        return None, InvariantError(f"a node failed to answer:\n{traceback.format_exc()}")
