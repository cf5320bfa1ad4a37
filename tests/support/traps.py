"""Names of shards that do something to the worker they are sent to: it takes a task out of its
envelope before it does it, and the name springs then. And requests that do something to a scratch
node.

Only what every process of a job can import may be used here.
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
    are ``paths`` (which must not be there yet). ``block``: open one pipe to write, so that a
    process that reads it knows, and another to read, until a process has opened it to write.
    ``number``: turn into something that is no name.
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
    """A task that is best done on ``node``."""

    node: str = ""
