"""The floor of a shuffle between buckets: get every shard, and put the same bytes, without other
work.

Run as ``python -m benchmarks.scripts.copy_shards``. Each process has one buffer and dsort's own
client, reads a whole shard, and writes it as creators do: it stages, finishes and publishes it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from dsort.spec.buckets import parse_bucket
from dsort.storage.bucket import Bucket
from dsort.storage.open import open_bucket

__all__ = ["Copier", "main"]

JOB = "floor"


class Copier:
    """The state of one process: two buckets, and a buffer as large as the largest shard so far."""

    def __init__(self, source: Bucket, target: Bucket) -> None:
        self._source = source
        self._target = target
        self._buffer = bytearray()

    def copy(self, name: str) -> int:
        """Copy the shard ``name``. Returns its size."""
        with self._source.open(name) as shard:
            size_bytes = shard.info.size_bytes
            if size_bytes > len(self._buffer):
                self._buffer = bytearray(size_bytes)
            view = memoryview(self._buffer)[:size_bytes]
            shard.read_into(view, 0)
        token = f".dsort/{JOB}/staged/{name}"
        with self._target.stage(token, name=name, size_bytes=size_bytes) as staged:
            staged.write_at(0, [view])
            receipt = staged.finish()
        self._target.publish(token, name, overwrite=False, receipt=receipt)
        return size_bytes


_here: list[Copier] = []
"""The copier of this process; [] in a process that is no worker."""


def _copy(name: str) -> int:
    return _here[0].copy(name)


def _open(text: str) -> Bucket:
    return open_bucket(parse_bucket(json.loads(text)), root=Path.cwd())


def main() -> None:
    """Start processes that copy shard after shard, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", required=True, help="a bucket as in a spec, JSON")
    parser.add_argument("--output", required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("shards", nargs="+")
    arguments = parser.parse_args()
    began = time.perf_counter()
    # As dsort's workers do, forks share the clients of the process that began them.
    _here.append(Copier(_open(arguments.input), _open(arguments.output)))
    forks = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(arguments.workers, forks) as pool:
        copied = sum(pool.map(_copy, arguments.shards))
    print(json.dumps({"work_seconds": time.perf_counter() - began, "bytes": copied}))


if __name__ == "__main__":
    main()
