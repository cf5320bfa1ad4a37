"""Which output shards this home's workers have staged: told at once, for a death in mid-task.

A task has many shards, and its answer comes when all are there. Each is put down here as soon as
its receipt is, so that who resumes the job need not write it again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from dsort.storage.os_errors import StorageErrors
from dsort.workers.tasks import CreatedShard

__all__ = ["CreatedLog", "read_created_logs"]

PREFIX = "created-"


class CreatedLog:
    """The list of one worker; lines are appended, each whole."""

    def __init__(self, scratch: Path, worker: int) -> None:
        self._path = scratch / f"{PREFIX}{worker}.jsonl"

    def append(self, shard: CreatedShard) -> None:
        """Put down a shard that is staged."""
        row = [shard.ordinal, shard.checksum, shard.receipt, shard.md5]
        with (
            StorageErrors(f"write {self._path.name}", str(self._path.parent)),
            self._path.open("ab", buffering=0) as file,
        ):
            file.write(json.dumps(row).encode() + b"\n")


def read_created_logs(scratch: Path) -> list[CreatedShard]:
    """What all workers of a home have put down; of a line that was cut off, nothing."""
    found = []
    for path in sorted(scratch.glob(f"{PREFIX}*.jsonl"), key=os.path.getmtime):
        with StorageErrors(f"read {path.name}", str(scratch)):
            lines = path.read_bytes().split(b"\n")
        found += [CreatedShard(*json.loads(line)) for line in lines[:-1]]
    return found
