"""The interface of runtimes. A runtime hosts workers: it moves tasks to them and answers back. It
holds no policy.

Workers answer with a value or an error; errors of any kind reach the coordinator unchanged.
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
    """Hosts the workers of one job."""

    name: str

    def workers_max(self) -> int:
        """The most workers that it can host."""

    def nodes(self) -> int:
        """The number of nodes that the workers are spread over."""

    def where(self) -> str:
        """The addresses that it listens on, in words for a user; "" if there are none."""

    def start(self, setup: WorkerSetup, workers: int) -> None:
        """Make a scratch directory on each node, and start ``workers`` workers.

        ``StorageError`` with the name of the node if a node cannot have one.
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
        """Check that each node sees ``path`` with a file ``token`` in it: ``StorageError`` with the
        name of the node if not. Return the nodes that were found to be lost, in words."""

    def warnings(self) -> list[str]:
        """New warnings for the user since the last call: they are about what makes jobs slow."""

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
    """``found``, an answer; raises it if it is an error."""
    if isinstance(found, DsortError):
        raise found
    return found
