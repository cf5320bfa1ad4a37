"""Spill: a record's bytes, appended to the file of its partition, one file a worker and partition.

What a worker that died had appended stays in its files, unread: index files name the ranges that
count. A partition is read back as *blocks* (one for each shard that put records in it).
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Sequence

import numpy as np

from dsort.data.columns import Int64s
from dsort.errors import StorageError
from dsort.scratch.directory import Scratch
from dsort.storage.bucket import Buffer
from dsort.storage.directory.files import LocalStagedObject, StorageErrors

__all__ = ["SpillFiles", "SpillWriter", "read_spill", "remove_spill", "spill_name"]


FLUSH_BYTES = 1 << 20
"""Dirty pages are sent on their way in such pieces: under a memory limit they would otherwise fill
it, and everybody waits."""


def spill_name(worker: int, partition: int) -> str:
    """The spill file of one worker and partition."""
    return f"spill-{worker}-{partition}"


def remove_spill(scratch: Scratch, partition: int, workers: Iterable[int]) -> None:
    """Free the room of a partition whose records are written."""
    for worker in workers:
        scratch.unlink(spill_name(worker, partition))


class SpillWriter:
    """Appends to the spill files of one worker; knows how long each of them is."""

    def __init__(self, scratch: Scratch, worker: int, partitions: int, *, to_disk: bool) -> None:
        """``to_disk``: have the disk take it on the way, not when memory is full."""
        self._to_disk = to_disk
        self._scratch = scratch
        self._worker = worker
        self._files: dict[int, LocalStagedObject] = {}
        self._lengths = np.zeros(partitions, np.int64)
        self._started = np.zeros(partitions, np.int64)  # so much is on its way to the disk
        _allow_open_files(partitions + 64)

    def lengths(self) -> Int64s:
        """The length of each partition's file, shape ``(partitions,)``."""
        return self._lengths.copy()

    def append(self, partition: int, slices: Sequence[Buffer], size_bytes: int) -> None:
        """Append ``slices``, ``size_bytes`` in all, to a partition."""
        file = self._files.get(partition)
        if file is None:
            file = self._files[partition] = self._create(partition)
        file.write_at(int(self._lengths[partition]), slices)
        self._lengths[partition] += size_bytes
        unsynced = int(self._lengths[partition] - self._started[partition])
        if self._to_disk and unsynced >= FLUSH_BYTES:
            file.start_sync(int(self._started[partition]), unsynced)
            self._started[partition] = self._lengths[partition]

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _create(self, partition: int) -> LocalStagedObject:
        name = spill_name(self._worker, partition)
        fd = self._scratch.open_to_write(name, os.O_WRONLY | os.O_TRUNC)
        return LocalStagedObject(fd, name, str(self._scratch))


def read_spill(
    scratch: Scratch, worker: int, partition: int, start: int, buffer: memoryview
) -> None:
    """Fill ``buffer`` from byte ``start`` of one spill file."""
    name = spill_name(worker, partition)
    file = scratch.open_to_read(name)
    try:
        with StorageErrors(f"read {name}", str(scratch)):
            _fill(file, name, start, buffer)
    finally:
        os.close(file)


class SpillFiles:
    """The spill files of one partition in one home, opened when they are needed first."""

    def __init__(self, scratch: Scratch, partition: int) -> None:
        self._scratch = scratch
        self._partition = partition
        self._files: dict[int, int] = {}

    def read_into(self, buffer: memoryview, worker: int, start: int) -> None:
        """Fill ``buffer`` from byte ``start`` of a worker's file."""
        name = spill_name(worker, self._partition)
        with StorageErrors(f"read {name}", str(self._scratch)):
            file = self._files.get(worker)
            if file is None:
                file = self._files[worker] = self._scratch.open_to_read(name)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            _fill(file, name, start, buffer)

    def forget(self) -> None:
        """What was read is in a buffer: give its pages back."""
        for file in self._files.values():
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()


def _fill(file: int, name: str, start: int, buffer: memoryview) -> None:
    done = 0
    while done < len(buffer):
        got = os.preadv(file, [buffer[done:]], start + done)
        if got == 0:
            raise StorageError(f"{name} in scratch ends at byte {start + done:,}")
        done += got


def _allow_open_files(wanted: int) -> None:
    """Raise this process's own limit of open files as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        room = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, room), hard))
