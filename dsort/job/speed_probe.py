"""How fast the disk or the store that a job uses is now, asked for a moment: for estimates of time.

Inputs are read as they lie, at places all over them, so what is in the page cache counts as that.
Outputs that go to a directory are tried with a file that has no name, so that nobody ever sees it.
Nothing is stored in an object store: it is taken to write as fast as it reads.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from dsort.errors import DsortError
from dsort.job.job import Job
from dsort.storage.bucket import Bucket
from dsort.storage.output_buckets import bucket_for, placed_at
from dsort.workers.source import InputShard

__all__ = ["Speeds", "measure_speeds"]

READ_S_MAX, WRITE_S_MAX = 0.9, 0.7
READ_BYTES_MAX, WRITE_BYTES_MAX = 128 << 20, 96 << 20
PIECE_BYTES = 1 << 20
PIECES_A_SYNC = 16
STORE_PIECE_BYTES = 256 << 10
STORE_READERS_MAX = 8
WRITTEN_SHARE = 4
"""One part in so many of the inputs is written at most: of a small job, a plan is to be quick."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Bytes a second, 0 where nothing could be measured, and how long that took."""

    read_bytes_per_s: float
    write_bytes_per_s: float
    probe_s: float


def measure_speeds(job: Job) -> Speeds:
    """Ask the inputs and the main output bucket of a job; takes at most some 2 s."""
    began = time.monotonic()
    read = write = 0.0
    with contextlib.suppress(DsortError, OSError):
        read = _read_speed(job)
    output = bucket_for(job.outputs_bucket, placed_at("", "x")).local_path("x")
    if output is None:
        write = read
    else:
        total = sum(shard.size_bytes for shard in job.inputs)
        with contextlib.suppress(OSError):
            write = _write_speed(output.parent, min(total // WRITTEN_SHARE, WRITE_BYTES_MAX))
    return Speeds(read, write, time.monotonic() - began)


def _read_speed(job: Job) -> float:
    shards = [shard for shard in job.inputs if shard.size_bytes]
    if not shards:
        return 0.0
    bucket, rng = job.inputs_bucket, random.Random(0)
    if bucket.local_path(shards[0].name) is not None:
        read = _Reading(READ_BYTES_MAX, READ_S_MAX)
        while not read.is_over:
            _read_pieces(bucket, rng.choice(shards), rng, read)
        return read.bytes_per_s
    readers = min(job.movement.workers, STORE_READERS_MAX, len(shards))
    read = _Reading(READ_BYTES_MAX, READ_S_MAX)
    numbers = count()

    def stream() -> None:
        while not read.is_over and (number := next(numbers)) < len(shards):
            _read_on(bucket, shards[number], read)

    with ThreadPoolExecutor(readers) as threads:
        for done in [threads.submit(stream) for _ in range(readers)]:
            done.result()
    return read.bytes_per_s


class _Reading:
    """How much was read since it began, and whether that is enough."""

    def __init__(self, bytes_max: int, seconds_max: float) -> None:
        self._bytes_max, self._seconds_max = bytes_max, seconds_max
        self._began = time.monotonic()
        self._bytes = 0
        self._seconds = 0.0

    def note(self, size_bytes: int) -> None:
        """So much more came."""
        self._bytes += size_bytes
        self._seconds = time.monotonic() - self._began

    @property
    def is_over(self) -> bool:
        return self._bytes >= self._bytes_max or self._seconds >= self._seconds_max

    @property
    def bytes_per_s(self) -> float:
        return self._bytes / self._seconds if self._seconds else 0.0


def _read_pieces(bucket: Bucket, shard: InputShard, rng: random.Random, read: _Reading) -> None:
    """Some pieces of a file, at places drawn from all of it."""
    size = min(PIECE_BYTES, shard.size_bytes)
    view = memoryview(bytearray(size))
    with bucket.open(shard.name) as source:
        for _ in range(8):
            source.read_into(view, rng.randrange(shard.size_bytes - size + 1))
            read.note(size)
            if read.is_over:
                return


def _read_on(bucket: Bucket, shard: InputShard, read: _Reading) -> None:
    """An object from its beginning, by one request."""
    view = memoryview(bytearray(min(STORE_PIECE_BYTES, shard.size_bytes)))
    with bucket.open(shard.name) as source:
        for at in range(0, shard.size_bytes, len(view)):
            if read.is_over:
                return
            piece = view[: shard.size_bytes - at]
            source.read_into(piece, at)
            read.note(len(piece))


def _write_speed(
    directory: Path, bytes_max: int, *, clock: Callable[[], float] = time.monotonic
) -> float:
    """Of a file without a name on the file system of ``directory``, which need not be there yet;
    synced, as outputs are."""
    while not directory.is_dir() and directory != directory.parent:
        directory = directory.parent
    try:
        file = os.open(directory, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            return 0.0  # a file with a name might be seen
        raise
    try:
        piece = memoryview(random.Random(0).randbytes(PIECE_BYTES))
        began, written = clock(), 0
        while written < max(bytes_max, PIECE_BYTES) and clock() - began < WRITE_S_MAX:
            for _ in range(min(PIECES_A_SYNC, -(-bytes_max // PIECE_BYTES)) or 1):
                written += os.write(file, piece)
            os.fdatasync(file)
        return written / max(clock() - began, 1e-9)
    finally:
        os.close(file)
