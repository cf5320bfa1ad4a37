"""A runtime hosts workers: it moves tasks to them and answers back. It holds no policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

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

__all__ = ["TASK_TRIES_MAX", "Runtime", "describe"]

TASK_TRIES_MAX = 3
"""A task that has taken so many workers with it fails the job."""


class Runtime(Protocol):
    """Where workers live. One runtime serves one job."""

    name: str

    def workers_max(self) -> int:
        """How many workers it can host."""

    def start(self, setup: WorkerSetup, workers: int) -> None:
        """Get ``workers`` workers ready for the job."""

    def run(
        self, tasks: Iterable[Task], *, workers_max: int | None = None
    ) -> Iterator[tuple[Task, TaskDone]]:
        """Do all tasks, each on whatever worker is free, and yield answers as they come.

        ``workers_max``: at most so many of the workers are used.

        Raises what a task raised (``DsortError``), ``WorkerLostError``, or ``JobStoppedError``.
        A task whose worker died is done again by another one; an answer is yielded once a task.
        """

    def check_directory(self, path: str, token: str) -> None:
        """``StorageError`` naming the node if some node does not see ``path`` with a file ``token``
        in it."""

    def close(self) -> None:
        """Stop all workers at once and release what they hold. May be called twice."""


def describe(task: Task) -> str:
    """A task in a user's words, for messages."""
    match task:
        case ExtractTask():
            return f"extracting shard {task.name}"
        case DuplicatesTask():
            return "looking for duplicate keys"
        case OrderTask() | CutTask():
            return f"planning bucket {task.bucket}"
        case CreateTask():
            ordinals = sorted({piece.ordinal for piece in task.pieces})
            span = f"{ordinals[0]} to {ordinals[-1]}" if len(ordinals) > 1 else str(ordinals[0])
            return f"writing output shards number {span}"
        case SealTask():
            return f"sealing output shards from number {task.shards[0].ordinal} on"
