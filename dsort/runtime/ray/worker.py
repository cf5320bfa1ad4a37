"""What an actor of the Ray runtime holds: a worker, and where it is."""

from __future__ import annotations

import gc
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from dsort.errors import DsortError
from dsort.runtime.answers import answer
from dsort.runtime.ray.agent import seat_of, token_of
from dsort.runtime.ray.messages import node_words
from dsort.scratch.index import IndexStore
from dsort.scratch.nodes import Exchange, Homes, open_home
from dsort.workers.tasks import Task, TaskDone, WorkerSetup
from dsort.workers.worker import Worker

__all__ = ["Place", "RayWorker"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker lives. ``node``: in words."""

    node: str
    node_id: str
    pid: int


class RayWorker:
    """A worker whose errors are answers: those that it raised, Ray would wrap.

    It is made in two steps, for only where it has landed can it be given a home.
    """

    def __init__(self, setup: WorkerSetup, number: int, exchange: Exchange) -> None:
        gc.disable()  # as in the local runtime: slices by the hundred thousand, and no cycles
        self._setup = setup
        self._number = number
        self._exchange = exchange
        self._worker: Worker | None = None
        self._home = ""

    def where(self, address: str, node_id: str) -> Place:
        """Where it is."""
        return Place(node_words(socket.gethostname(), address, node_id), node_id, os.getpid())

    def begin(self, told: tuple[str, DsortError | None]) -> tuple[str, DsortError | None]:
        """Its home, or why it cannot work. ``told``: what the agent of its node said of the home
        there. May be asked again; the home stays the same."""
        home, error = told
        if self._worker is not None:
            return self._home, None
        if error is not None:
            return "", error
        directory = Path(self._setup.scratch) / seat_of(home)
        try:
            store = IndexStore(open_home(directory, token_of(home)))
            self._worker = Worker(self._setup, self._number, Homes(home, store, self._exchange))
        except DsortError as failed:
            return "", failed
        self._home = home
        return home, None

    def do(self, task: Task) -> tuple[TaskDone | None, DsortError | None]:
        """The answer to ``task``, or the error that the job ends with."""
        assert self._worker is not None, "a worker that could not be made is given no task"
        return answer(self._worker, task)
