"""Where an error of any kind becomes a value, to be handed on whole: to a process, or a thread."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from dsort.errors import (
    DsortError,
    InvariantError,
    ScratchLostError,
    StorageFullError,
    WorkerLostError,
)
from dsort.storage.process_limits import PROCESSES_HINT, is_no_thread
from dsort.workers.tasks import HomeLost

if TYPE_CHECKING:
    from dsort.scratch.index import IndexStore
    from dsort.scratch.nodes import Request
    from dsort.workers.tasks import Task, TaskDone
    from dsort.workers.worker import Worker

__all__ = ["answer", "reply", "settle"]


def answer(worker: Worker, task: Task) -> tuple[TaskDone | None, DsortError | None]:
    """Have ``worker`` do ``task``: what it answered, or the error that the job ends with."""
    try:
        return worker.do(task), None
    except ScratchLostError as lost:
        return HomeLost(lost.home), None
    except DsortError as error:
        return None, error
    except MemoryError:
        return None, StorageFullError(
            "a worker ran out of memory", hint="give --memory-max, or fewer --workers"
        )
    except Exception as error:  # noqa: BLE001 - a bug: it goes to the coordinator whole
        if isinstance(error, RuntimeError) and is_no_thread(error):
            return None, WorkerLostError("a worker can start no thread", hint=PROCESSES_HINT)
        return None, InvariantError(f"a worker failed:\n{traceback.format_exc()}")


def reply(request: Request, store: IndexStore) -> tuple[Any, DsortError | None]:
    """The answer of the home in ``store`` to ``request``, or the error that it ended with."""
    try:
        return request.answer(store), None
    except DsortError as error:
        return None, error
    except Exception:  # noqa: BLE001 - a bug: it goes to whoever asked whole, and ends the job
        return None, InvariantError(f"a home failed to answer:\n{traceback.format_exc()}")


def settle(future: Future[None], call: Callable[[], object]) -> None:
    """Do ``call`` and let whoever waits for ``future`` know that it returned, or what it raised."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - it is raised, or translated, in the other thread
        future.set_exception(error)
    else:
        future.set_result(None)
