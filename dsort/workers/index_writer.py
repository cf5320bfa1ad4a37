"""Writes the results of extraction to scratch: the record index by partition, and the payload,
which goes to the spill files of one worker."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np

from dsort.closing import ClosesOnExit
from dsort.data.columns import Int32s, Int64s, offsets_of
from dsort.data.index import ORDINAL, RANGES, SHARD, STORED_BYTES, sort_keys_of
from dsort.data.segments import Segments
from dsort.data.table import Table
from dsort.errors import InvariantError
from dsort.moves.input_shard import ShardBytes, Window
from dsort.moves.slices import (
    ROWS_AT_ONCE,
    Gatherer,
    are_short,
    rows_at_once,
    slices_of,
    small_argsort,
)
from dsort.order.sort import Partitioning
from dsort.scratch.directory import Scratch
from dsort.scratch.index import IndexStore
from dsort.storage.bucket import Buffer
from dsort.storage.directory.direct_writes import DirectWrites, direct_writes
from dsort.storage.directory.files import LocalStagedObject
from dsort.storage.directory.random_reads import ALIGNMENT_BYTES
from dsort.storage.process_limits import files_that_fit
from dsort.workers.tasks import Stage, WorkerSetup

FLUSH_BYTES = 1 << 20
"""The writeback of dirty pages starts in pieces of this size. Under a memory limit, they would
otherwise fill the memory, and all processes would wait. Pages that will not be read from the cache
are released one piece later, so that the next pieces use the same memory again: new memory costs
more than the copy."""

DIRECT_BYTES_MIN = 256 << 10
"""Fewer bytes at once go through the page cache, because the caller waits for a write past it. The
padding of a last block is at most 2 % of this size."""


class SpillWriter:
    """Appends to the spill files of one worker, each of which is opened when its first record
    comes."""

    def __init__(
        self,
        scratch: Scratch,
        worker: int,
        partitions: int,
        *,
        to_disk: bool,
        past_cache: bool = False,
    ) -> None:
        """``to_disk``: start writeback early, not when memory is full. ``past_cache``: the page
        cache need not keep the spill, which is read without it."""
        self._to_disk = to_disk
        self._past_cache = past_cache
        self._scratch = scratch
        self._worker = worker
        self._partitions = partitions
        self._files: dict[int, _AppendedFile] = {}

    @cached_property
    def _is_direct(self) -> bool:
        # Direct writes take a second descriptor of each file.
        return self._past_cache and files_that_fit(2 * self._partitions) == 2 * self._partitions

    def move(
        self,
        shard: ShardBytes,
        index: Table,
        partition: Int32s,
    ) -> Int64s:
        """Append the payload of a shard's records. Return where the bytes of each partition begin
        in its file, shape ``(partitions,)``.

        Rows of one partition are appended in the order of ``index``, in which the index file lists
        them. ``partition``: the partition of each row. Rows may be sorted by partition if the shard
        is in memory.
        """
        ranges = index[RANGES]
        planned, found = int(index[STORED_BYTES].sum()), int(ranges.length.sum())
        if planned != found:
            raise InvariantError(f"{planned} bytes of records were planned, {found} are in ranges")
        with self.appending() as starts:
            for window in shard.windows(ranges):
                if window.stop == window.row:
                    row = window.row
                    for piece in shard.stream(ranges, row):
                        self.append(int(partition[row]), [piece], len(piece))
                else:
                    self._move_window(window, ranges, partition)
        return starts

    def _move_window(self, window: Window, segments: Segments, partitions: Int32s) -> None:
        """Append the records of a window. ``partitions``: the partition of each row of
        ``segments``."""
        ordered = partitions[window.row : window.stop]
        segments = segments.run(window.row, window.stop)
        if bool((ordered[1:] < ordered[:-1]).any()):
            rows = small_argsort(ordered)
            ordered, segments = ordered[rows], segments.take(rows)
        gatherer = Gatherer()
        step = rows_at_once(segments) if are_short(segments) else ROWS_AT_ONCE
        for at in range(0, len(ordered), step):
            part = ordered[at : at + step]
            self._append(window, gatherer, segments.run(at, at + len(part)), part)

    def _append(
        self, window: Window, gatherer: Gatherer, segments: Segments, partitions: Int32s
    ) -> None:
        """Append the records of ``segments``, whose bytes are in ``window``. They are ordered by
        partition."""
        count = len(partitions)
        first = np.flatnonzero(np.diff(partitions, prepend=-1))
        cuts = segments.offsets[np.append(first, count)]
        total = offsets_of(segments.length)
        sizes = np.diff(total[cuts]).tolist()
        if are_short(segments):
            source = np.zeros(count, np.int32)
            data = gatherer.gathered({0: window.view}, source, segments, base=window.base)
            done = 0
            for partition, size in zip(partitions[first].tolist(), sizes, strict=True):
                self.append(partition, [data[done : done + size]], size)
                done += size
            if done != len(data):
                raise InvariantError(f"{done} bytes of records were planned, {len(data)} gathered")
            return
        slices = slices_of(window.view, segments, window.base)
        for (begin, end), partition, size in zip(
            pairwise(cuts.tolist()), partitions[first].tolist(), sizes, strict=True
        ):
            self.append(partition, slices[begin:end], size)

    @contextlib.contextmanager
    def appending(self) -> Iterator[Int64s]:
        """Yield the places at which each partition's next bytes will begin, shape
        ``(partitions,)``. Bytes that are appended in this context can be read once the context has
        ended."""
        starts = np.zeros(self._partitions, np.int64)
        for partition, file in self._files.items():
            starts[partition] = file.begin_part()
        yield starts
        for file in self._files.values():
            file.end_part()

    def append(self, partition: int, slices: Sequence[Buffer], size_bytes: int) -> None:
        """Append ``slices``, with ``size_bytes`` in total, to a partition."""
        if partition not in self._files:
            self._files[partition] = self._create(partition)
        self._files[partition].append(slices, size_bytes)

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _create(self, partition: int) -> _AppendedFile:
        from dsort.scratch.spill import spill_name  # most jobs spill nothing

        name = spill_name(self._worker, partition)
        fd = self._scratch.open_to_write(name, os.O_WRONLY | os.O_TRUNC)
        file = LocalStagedObject(fd, name, str(self._scratch))
        direct = direct_writes(file) if self._is_direct else None
        return _AppendedFile(file, direct, to_disk=self._to_disk, past_cache=self._past_cache)


class _AppendedFile(ClosesOnExit):
    """One partition's file. Bytes are appended in parts; each part takes several calls.

    Writes past the page cache have whole blocks, so each part ends with a whole block.
    """

    def __init__(
        self,
        file: LocalStagedObject,
        direct: DirectWrites | None,
        *,
        to_disk: bool,
        past_cache: bool,
    ) -> None:
        """``direct``: writes the file past the page cache; it is closed with the file."""
        self._file = file
        self._direct = direct
        self._to_disk = to_disk
        self._past_cache = past_cache
        self._size_bytes = 0
        self._part_begin = 0
        self._started_bytes = 0  # writeback has started up to here

    def begin_part(self) -> int:
        """Begin a part; return its place."""
        self._part_begin = self._size_bytes
        return self._part_begin

    def append(self, slices: Sequence[Buffer], size_bytes: int) -> None:
        direct = self._direct
        if direct is None:
            self._append_to_cache(slices, size_bytes)
            return
        views = [memoryview(each).cast("B") for each in slices]
        # Checked only at the start of a part: later, some bytes wait for the rest of their block,
        # and must be written first.
        is_small = self._size_bytes == self._part_begin and size_bytes < DIRECT_BYTES_MIN
        taken = 0 if is_small else direct.write(views)
        self._size_bytes += size_bytes
        if taken < len(views):
            self._leave_direct(direct, views[taken:])

    def end_part(self) -> None:
        direct = self._direct
        if direct is not None and direct.kept:
            # The padding belongs to no part: the next part begins behind it.
            self._size_bytes += ALIGNMENT_BYTES - len(direct.kept)
            if not direct.fill_block():
                self._leave_direct(direct)

    def close(self) -> None:
        """Close the file. Closing again is harmless."""
        if self._direct is not None:
            self._direct.close()
        self._file.close()

    def _append_to_cache(self, slices: Sequence[Buffer], size_bytes: int) -> None:
        self._file.write_at(self._size_bytes, slices)
        self._size_bytes += size_bytes
        unsynced = self._size_bytes - self._started_bytes
        if self._to_disk and unsynced >= FLUSH_BYTES:
            begun = self._started_bytes
            self._file.start_sync(begun, unsynced)
            if begun and self._past_cache:  # most of these bytes are on the disk by now
                self._file.forget(0, begun)
            self._started_bytes = self._size_bytes

    def _leave_direct(self, direct: DirectWrites, slices: Sequence[memoryview] = ()) -> None:
        """Write the rest, and all later bytes, through the page cache. This is for small parts, and
        for file systems and disks that accept no direct writes."""
        self._direct = None
        self._started_bytes = direct.written_bytes
        direct.leave(self._file, slices)


class IndexWriter:
    """Writes index and spill of one worker."""

    def __init__(self, setup: WorkerSetup, worker: int, store: IndexStore) -> None:
        self._pipeline, self.worker, self._store = setup.pipeline, worker, store
        movement = setup.movement
        self.spill = SpillWriter(
            store.scratch,
            worker,
            movement.partitions,
            to_disk=movement.to_disk,
            past_cache=movement.past_cache,
        )

    def partitioning(self, stage: Stage) -> Partitioning:
        """The rule that assigns records to partitions."""
        splitters = self._store.splitters(stage.splitters) if stage.splitters else None
        weights = self._pipeline.division.weights
        decreasing = self._pipeline.algorithm.decreasing
        return Partitioning(stage.partitions, decreasing, splitters, weights)

    def write(
        self, stage: Stage, shard: int, index: Table, source: ShardBytes, *, in_memory: bool
    ) -> None:
        """Write the records of ``shard``, or of a run of shards that begins with it; for a run,
        ``index`` has a column of shards. ``source``: the payload. ``in_memory``: the payload can be
        read in the order of partitions. If it is false, the payload is read once more, in its own
        order."""
        spill: dict[str, Int64s] = {}
        if stage.partitions == 1:
            offsets = np.array([0, len(index)], np.int64)
            if stage.spill:
                in_one = np.zeros(len(index), np.int32)
                spill["spill_starts"] = self.spill.move(source, index, in_one)
        else:
            shards: Int32s | int = shard
            if SHARD in index:
                shards = index[SHARD]
            partition = self.partitioning(stage).assign(sort_keys_of(index), shards, index[ORDINAL])
            # Stable: within a partition, rows keep the order of the input, which breaks ties.
            by_partition = small_argsort(partition)
            counts = np.bincount(partition, minlength=stage.partitions)
            offsets = offsets_of(counts)
            if stage.spill and not in_memory:
                spill["spill_starts"] = self.spill.move(source, index, partition)
                index = index.without(RANGES)
            index = index.take(by_partition)
            if stage.spill and in_memory:
                spill["spill_starts"] = self.spill.move(source, index, partition[by_partition])
        self._store.write_shard(stage.name, shard, index, offsets, worker=self.worker, spill=spill)

    def close(self) -> None:
        """Close the spill files."""
        self.spill.close()
