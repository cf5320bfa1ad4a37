"""Appends the payload of extracted records to the spill files of their partitions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Protocol

import numpy as np

from dsort.data.columns import Int32s, Int64s
from dsort.data.index import RANGES, STORED_BYTES
from dsort.data.segments import Segments
from dsort.data.table import Table
from dsort.errors import InvariantError
from dsort.moves.input_shard import Window, slices_of
from dsort.moves.short_records import (
    ROWS_AT_ONCE,
    Gatherer,
    are_short,
    rows_at_once,
    small_argsort,
)
from dsort.pipeline.movement import Movement
from dsort.scratch.directory import Scratch
from dsort.scratch.spill_writer import SpillWriter


class HasWindows(Protocol):
    """The source of the payload of an index: a shard, or a run of shards."""

    def windows(self, segments: Segments) -> Iterator[Window]:
        """See :meth:`dsort.moves.input_shard.ShardBytes.windows`."""

    def stream(self, segments: Segments, row: int) -> Iterator[memoryview]:
        """See :meth:`dsort.moves.input_shard.ShardBytes.stream`."""


class PayloadSpill:
    """The spill files of one worker, opened when the first record comes."""

    def __init__(self, movement: Movement, worker: int, scratch: Scratch) -> None:
        self._movement = movement
        self._worker = worker
        self._scratch = scratch
        self._writer: SpillWriter | None = None

    @property
    def writer(self) -> SpillWriter:
        """The writer that appends to the spill files."""
        if self._writer is None:
            self._writer = SpillWriter(
                self._scratch,
                self._worker,
                self._movement.partitions,
                to_disk=self._movement.to_disk,
                past_cache=self._movement.past_cache,
            )
        return self._writer

    def close(self) -> None:
        """Close the files."""
        if self._writer is not None:
            self._writer.close()

    def move(
        self,
        shard: HasWindows,
        index: Table,
        partition: Int32s | None = None,
    ) -> Int64s:
        """Append the payload of a shard's records. Return the begin of each partition's part, shape
        ``(partitions,)``.

        Rows of one partition are appended in the order of ``index``, in which the index file lists
        them. ``partition``: of each row; None: all rows are in one. Rows may be sorted by partition
        if the shard is in memory.
        """
        ranges = index[RANGES]
        planned, found = int(index[STORED_BYTES].sum()), int(ranges.length.sum())
        if planned != found:
            raise InvariantError(f"{planned} bytes of records were planned, {found} are in ranges")
        partitions = np.zeros(len(index), np.int32) if partition is None else partition
        with self.writer.appending() as starts:
            for window in shard.windows(ranges):
                if window.stop == window.row:
                    row = window.row
                    for piece in shard.stream(ranges, row):
                        self.writer.append(int(partitions[row]), [piece], len(piece))
                else:
                    self._move_window(window, ranges, partitions)
        return starts

    def _move_window(self, window: Window, segments: Segments, partitions: Int32s) -> None:
        """Append the records of a window. ``partitions``: of all rows of ``segments``."""
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
        """Append the records of ``segments``, ordered by partition, whose bytes are in
        ``window``."""
        count = len(partitions)
        first = np.flatnonzero(np.diff(partitions, prepend=-1))
        cuts = segments.offsets[np.append(first, count)]
        total = np.append(0, np.cumsum(segments.length))
        sizes = np.diff(total[cuts]).tolist()
        if are_short(segments):
            source = np.zeros(count, np.int32)
            data = gatherer.gathered({0: window.view}, source, segments, base=window.base)
            done = 0
            for partition, size in zip(partitions[first].tolist(), sizes, strict=True):
                self.writer.append(partition, [data[done : done + size]], size)
                done += size
            if done != len(data):
                raise InvariantError(f"{done} bytes of records were planned, {len(data)} gathered")
            return
        slices = slices_of(window.view, segments, window.base)
        for (begin, end), partition, size in zip(
            pairwise(cuts.tolist()), partitions[first].tolist(), sizes, strict=True
        ):
            self.writer.append(partition, slices[begin:end], size)
