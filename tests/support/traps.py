"""Names of shards that act on the worker to which they are sent: a trap springs when the worker
unpickles its task, before the task is done. And requests that act on a scratch node.

This module uses only modules that every process of a job can import.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from tests.support.internals import ExtractTask, IndexStore


class Trap(str):
    """The name of a shard; ``kind`` is what it does, with the files at ``paths``.

    ``note``: append the worker's process id to a file. ``die``: kill the worker, as often as there
    are ``paths`` (which must not exist yet). ``block``: open the first pipe to write, which a
    process that reads it notices, and then the second to read, until a process has opened it to
    write. ``number``: become a number, which is no name.
    """

    kind: str
    paths: tuple[str, ...]

    def __new__(cls, name: str, kind: str, *paths: Path) -> Trap:
        trap = super().__new__(cls, name)
        trap.kind, trap.paths = kind, tuple(map(str, paths))
        return trap

    def __reduce__(self) -> tuple[object, ...]:
        return (_spring, (str(self), self.kind, self.paths))


def _spring(name: str, kind: str, paths: tuple[str, ...]) -> object:
    match kind:
        case "note":
            with Path(paths[0]).open("a") as noted:
                noted.write(f"{os.getpid()}\n")
        case "die":
            for path in paths:
                if not Path(path).exists():
                    Path(path).touch()
                    os.kill(os.getpid(), signal.SIGKILL)
        case "block":
            with Path(paths[0]).open("w"):
                pass
            with Path(paths[1]).open("r"):
                pass
        case "number":
            return 7
    return name


@dataclass(frozen=True, slots=True)
class WriteTo:
    """A request to write to a file, or a pipe, anywhere."""

    path: str
    data: bytes

    def answer(self, store: IndexStore) -> None:
        Path(self.path).write_bytes(self.data)


@dataclass(frozen=True, slots=True)
class FileBytes:
    """A request for a file in scratch."""

    name: str

    def answer(self, store: IndexStore) -> bytes:
        return store.file_bytes(self.name)


class LocatedTask(ExtractTask, frozen=True):
    """A task that should be done on ``node``."""

    node: str = ""
