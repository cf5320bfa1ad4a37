"""A runtime hosts workers: it moves tasks to them and answers back. It holds no policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from dsort.scratch.nodes import Request
from dsort.workers.tasks import (
    CreateTask,
    CutTask,
    DuplicatesTask,
    ExtractTask,
    OrderTask,
    SealTask,
    Task,
    TaskDone,
    WorkerSetup,
)

__all__ = ["TASK_TRIES_MAX", "Runtime", "describe", "next_for"]

TASK_TRIES_MAX = 3
"""A task that has taken so many workers with it fails the job."""


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
        """Make a home (a scratch directory) on each node and get ``workers`` workers ready.

        ``StorageError`` naming the node where there can be no home.
        """

    def homes(self) -> tuple[str, ...]:
        """The ids of the homes that are there now."""

    def share(self, name: str, data: bytes) -> None:
        """Give all homes a small file, those too that join later."""

    def ask(self, home: str, request: Request) -> Any:
        """What ``home`` answers; ``ScratchLostError`` if it is gone."""

    def tell(self, home: str, request: Request) -> None:
        """The same without waiting for it, or for it to have worked."""

    def run(
        self, tasks: Iterable[Task], *, workers_max: int | None = None
    ) -> Iterator[tuple[Task, TaskDone]]:
        """Do all tasks, each on whatever worker is free, and yield answers as they come.

        ``workers_max``: at most so many of the workers are used.

        Raises what a task raised (``DsortError``), ``WorkerLostError``, or ``JobStoppedError``.
        A task whose worker died is done again by another one; an answer is yielded once a task.
        A task with a ``home`` is given to a worker there, if one is free.
        """

    def check_directory(self, path: str, token: str) -> tuple[str, ...]:
        """``StorageError`` naming the node if some node does not see ``path`` with a file ``token``
        in it. The nodes that turned out to be lost, in words."""

    def close(self, *, keep_scratch: bool = False) -> None:
        """Stop all workers at once, release what they hold, and remove their homes unless
        ``keep_scratch``. May be called twice."""


def describe(task: Task) -> str:
    """A task in a user's words, for messages."""
    match task:
        case ExtractTask():
            return f"extracting shard {task.name}"
        case DuplicatesTask():
            return "looking for duplicate keys"
        case OrderTask() | CutTask():
            return f"planning partition {task.partition}"
        case CreateTask():
            ordinals = sorted({piece.ordinal for piece in task.pieces})
            span = f"{ordinals[0]} to {ordinals[-1]}" if len(ordinals) > 1 else str(ordinals[0])
            return f"writing output shards number {span}"
        case SealTask():
            return f"sealing output shards from number {task.shards[0].ordinal} on"


LOOKAHEAD_MAX = 64
"""So many waiting tasks are looked at for one whose files are where the free worker is."""


class HomedTask(Protocol):
    """An attempt at a task."""

    @property
    def task(self) -> Task: ...


def next_for(home: str, waiting: Sequence[HomedTask]) -> int:
    """The place in ``waiting`` of the task that a free worker of ``home`` should do next: one whose
    files are there, among the first, or else the first."""
    for at in range(min(len(waiting), LOOKAHEAD_MAX)):
        if getattr(waiting[at].task, "home", "") == home:
            return at
    return 0
