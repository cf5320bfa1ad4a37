"""What an actor of the Ray runtime holds: a worker, and where it is."""

from __future__ import annotations

import gc
import os
import socket
from dataclasses import dataclass

from dsort.errors import DsortError
from dsort.runtime.answers import answer
from dsort.runtime.ray_words import node_words
from dsort.workers.tasks import Task, TaskDone, WorkerSetup
from dsort.workers.worker import Worker

__all__ = ["Place", "RayWorker"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker lives. ``node``: in words."""

    node: str
    host: str
    pid: int


class RayWorker:
    """A worker whose errors are answers: those that it raised, Ray would wrap."""

    def __init__(self, setup: WorkerSetup, number: int) -> None:
        gc.disable()  # as in the local runtime: slices by the hundred thousand, and no cycles
        self._worker: Worker | None = None
        self._error: DsortError | None = None
        try:
            self._worker = Worker(setup, number)
        except DsortError as error:
            self._error = error

    def ready(self, address: str, node_id: str) -> tuple[Place, DsortError | None]:
        """Where it is, and why it cannot work, if it cannot."""
        host = socket.gethostname()
        return Place(node_words(host, address, node_id), host, os.getpid()), self._error

    def do(self, task: Task) -> tuple[TaskDone | None, DsortError | None]:
        """The answer to ``task``, or the error that the job ends with."""
        assert self._worker is not None, "a worker that could not be made is given no task"
        return answer(self._worker, task)
