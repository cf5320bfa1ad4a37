"""Which output shards this home's workers have staged: told at once, for a death in mid-task.

A task has many shards, and its answer comes when all are there. Each is put down here as soon as
its receipt is, so that who resumes the job need not write it again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from dsort.errors import StorageError
from dsort.scratch.directory import Scratch

__all__ = ["CreatedLog", "CreatedShard", "read_created_logs"]

PREFIX = "created-"
SUFFIX = ".jsonl"


@dataclass(frozen=True, slots=True)
class CreatedShard:
    """One output shard that is staged. ``checksum``: XXH3; ``receipt``: for ``publish``; ``md5``:
    "" unless asked for."""

    ordinal: int
    checksum: str
    receipt: str
    md5: str = ""


class CreatedLog:
    """The list of one worker; lines are appended, each whole."""

    def __init__(self, scratch: Scratch, worker: int) -> None:
        self._scratch = scratch
        self._name = f"{PREFIX}{worker}{SUFFIX}"

    def append(self, shard: CreatedShard) -> None:
        """Put down a shard that is staged."""
        row = [shard.ordinal, shard.checksum, shard.receipt, shard.md5]
        self._scratch.append(self._name, json.dumps(row).encode() + b"\n")


def read_created_logs(scratch: Scratch) -> list[CreatedShard]:
    """What all workers of a home have put down; of a line that was cut off, nothing.
    ``StorageError`` for a line that is no such row."""
    names = [name for name in scratch.names() if name.startswith(PREFIX) and name.endswith(SUFFIX)]
    return [
        shard
        for name in sorted(names, key=scratch.written_ns)
        for shard in _shards(name, scratch.read(name))
    ]


def _shards(name: str, data: bytes) -> Iterator[CreatedShard]:
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        match row:
            case [int(ordinal), str(checksum), str(receipt), str(md5)] if ordinal >= 0:
                yield CreatedShard(ordinal, checksum, receipt, md5)
            case _:
                raise StorageError(f"line {number} of {name} in scratch tells of no output shard")
