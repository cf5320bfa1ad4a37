"""Spill: a record's bytes, appended to the file of its bucket, one file a worker and bucket.

What a worker that died had appended stays in its files, unread: index files name the ranges that
count. A bucket is read back as *blocks* (one for each shard that put records in it).
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from dsort.core.columns import Int64s
from dsort.errors import InvariantError
from dsort.storage.base import Buffer
from dsort.storage.local_objects import LocalStagedObject
from dsort.storage.os_errors import StorageErrors

__all__ = ["SpillFiles", "SpillWriter", "read_spill", "remove_spill", "spill_path"]


FLUSH_BYTES = 1 << 20
"""Dirty pages are sent on their way in such pieces: under a memory limit they would otherwise fill
it, and everybody waits."""


def spill_path(scratch: Path, worker: int, bucket: int) -> Path:
    """The spill file of one worker and bucket."""
    return scratch / f"spill-{worker}-{bucket}"


def remove_spill(scratch: Path, bucket: int, workers: Iterable[int]) -> None:
    """Free the room of a bucket whose records are written."""
    for worker in workers:
        spill_path(scratch, worker, bucket).unlink(missing_ok=True)


class SpillWriter:
    """Appends to the spill files of one worker; knows how long each of them is."""

    def __init__(self, scratch: Path, worker: int, buckets: int, *, to_disk: bool) -> None:
        """``to_disk``: have the disk take it on the way, not when memory is full."""
        self._to_disk = to_disk
        self._scratch = scratch
        self._worker = worker
        self._files: dict[int, LocalStagedObject] = {}
        self._lengths = np.zeros(buckets, np.int64)
        self._started = np.zeros(buckets, np.int64)  # so much is on its way to the disk
        _allow_open_files(buckets + 64)

    def lengths(self) -> Int64s:
        """The length of each bucket's file, shape ``(buckets,)``."""
        return self._lengths.copy()

    def append(self, bucket: int, slices: Sequence[Buffer], size_bytes: int) -> None:
        """Append ``slices``, ``size_bytes`` in all, to a bucket."""
        file = self._files.get(bucket)
        if file is None:
            file = self._files[bucket] = self._create(bucket)
        file.write_at(int(self._lengths[bucket]), slices)
        self._lengths[bucket] += size_bytes
        unsynced = int(self._lengths[bucket] - self._started[bucket])
        if self._to_disk and unsynced >= FLUSH_BYTES:
            file.start_sync(int(self._started[bucket]), unsynced)
            self._started[bucket] = self._lengths[bucket]

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _create(self, bucket: int) -> LocalStagedObject:
        path = spill_path(self._scratch, self._worker, bucket)
        with StorageErrors(f"write {path.name}", str(self._scratch)):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            return LocalStagedObject(os.open(path, flags, 0o600), path.name, str(self._scratch))


def read_spill(scratch: Path, worker: int, bucket: int, start: int, buffer: memoryview) -> None:
    """Fill ``buffer`` from byte ``start`` of one spill file."""
    path = spill_path(scratch, worker, bucket)
    with StorageErrors(f"read {path.name}", str(scratch)):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _fill(file, path, start, buffer)
        finally:
            os.close(file)


class SpillFiles:
    """The spill files of one bucket in one home, opened when they are needed first."""

    def __init__(self, scratch: Path, bucket: int) -> None:
        self._scratch = scratch
        self._bucket = bucket
        self._files: dict[int, int] = {}

    def read_into(self, buffer: memoryview, worker: int, start: int) -> None:
        """Fill ``buffer`` from byte ``start`` of a worker's file."""
        path = spill_path(self._scratch, worker, self._bucket)
        with StorageErrors(f"read {path.name}", str(self._scratch)):
            file = self._files.get(worker)
            if file is None:
                file = self._files[worker] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            _fill(file, path, start, buffer)

    def forget(self) -> None:
        """What was read is in a buffer: give its pages back."""
        for file in self._files.values():
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()


def _fill(file: int, path: Path, start: int, buffer: memoryview) -> None:
    done = 0
    while done < len(buffer):
        got = os.preadv(file, [buffer[done:]], start + done)
        if got == 0:
            raise InvariantError(f"{path.name} ends at byte {start + done}")
        done += got


def _allow_open_files(wanted: int) -> None:
    """Raise this process's own limit of open files as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        room = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, room), hard))
