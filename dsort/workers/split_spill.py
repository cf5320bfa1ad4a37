"""A partition larger than the buffer, spilled once more: in runs of the output order that fit.

The spill is read once, in order, and each record goes to the run that it belongs to, in a file
without a name. Then each run is read whole. So small records are never read one by one, whatever
the memory: two more passes, but all in sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dsort.data.columns import Int64s
from dsort.data.index import RANGES, STORED_BYTES
from dsort.data.segments import Segments
from dsort.data.table import Table
from dsort.errors import InvariantError
from dsort.scratch.directory import Scratch
from dsort.scratch.spill import SpillReader
from dsort.storage.directory.files import LocalStagedObject
from dsort.storage.directory.os_errors import StorageErrors
from dsort.workers.gathering import are_short, gathered, small_argsort
from dsort.workers.payload_files import PayloadBuffer
from dsort.workers.source import slices_of

SPLIT_BYTES_MAX = 32 << 10
"""Records that are longer on average are read one by one in less time than twice in order."""
WINDOW_BYTES = 8 << 20
ROWS_AT_ONCE = 4096
"""2 MiB of short records at most."""


def runs_that_fit(stored_bytes: Int64s, size_bytes: int) -> Int64s:
    """Where runs of rows begin that have ``size_bytes`` at most, and where the last one ends. A row
    that is larger is a run by itself."""
    ends = np.cumsum(stored_bytes)
    bounds, before = [0], 0
    while bounds[-1] < len(ends):
        until = int(np.searchsorted(ends, before + size_bytes, side="right"))
        bounds.append(max(until, bounds[-1] + 1))
        before = int(ends[bounds[-1] - 1])
    return np.array(bounds, np.int64)


class SplitSpill:
    """Rows ``start:stop`` of one partition, in runs; ``rows``: all of the partition's, in output
    order, with their places in its spill."""

    def __init__(
        self,
        reader: SpillReader,
        rows: Table,
        span: tuple[int, int],
        buffer: PayloadBuffer,
        scratch: Scratch,
    ) -> None:
        self._first, stop = span
        self._stored = rows[STORED_BYTES][self._first : stop]
        self._buffer = buffer
        self._bounds = runs_that_fit(self._stored, buffer.size_bytes)
        self._loaded = -1  # the run that the buffer holds
        with StorageErrors("split a partition", str(scratch)):
            file = scratch.open_nameless()
        self._file = LocalStagedObject(file, "split partition", str(scratch))
        try:
            self._starts = self._split(reader, rows[RANGES].start[self._first : stop])
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the file."""
        self._file.close()

    def slices(self, start: int, stop: int) -> Iterator[Sequence[memoryview]]:
        """The slices of rows ``start:stop`` of the partition, some records at a time; valid until
        the next step."""
        at, stop = start - self._first, stop - self._first
        while at < stop:
            run = int(np.searchsorted(self._bounds, at, side="right")) - 1
            until = min(int(self._bounds[run + 1]), stop)
            if self._stored[at] > self._buffer.size_bytes:
                yield from self._streamed(at)
            else:
                yield from self._of_run(run, at, until)
            at = until

    def _of_run(self, run: int, start: int, stop: int) -> Iterator[Sequence[memoryview]]:
        first, last = self._bounds[run : run + 2].tolist()
        base = int(self._starts[first:last].min())
        view = self._buffer.view(int(self._stored[first:last].sum()))
        if self._loaded != run:
            self._file.read_into(view, base)
            self._loaded = run
        for at in range(start, stop, ROWS_AT_ONCE):
            rows = slice(at, min(at + ROWS_AT_ONCE, stop))
            yield _pieces(view, self._starts[rows], self._stored[rows], base)

    def _streamed(self, row: int) -> Iterator[Sequence[memoryview]]:
        self._loaded = -1
        start, length = int(self._starts[row]), int(self._stored[row])
        for at in range(0, length, self._buffer.size_bytes):
            view = self._buffer.view(min(self._buffer.size_bytes, length - at))
            self._file.read_into(view, start + at)
            yield [view]

    def _split(self, reader: SpillReader, places: Int64s) -> Int64s:
        """Copy all records to the file, run by run; where each is in it. ``places``: where each is
        in the spill."""
        order = np.argsort(places, kind="stable")  # as they lie in the spill
        run_of = np.searchsorted(self._bounds, order, side="right") - 1
        by_run = small_argsort(run_of)
        lengths = self._stored[order[by_run]]
        starts = np.empty(len(places), np.int64)
        starts[order[by_run]] = np.cumsum(lengths) - lengths
        window_bytes = min(self._buffer.size_bytes, WINDOW_BYTES)
        begins, ends = places[order], (places + self._stored)[order]
        row = 0
        while row < len(order):
            until = int(np.searchsorted(ends, begins[row] + window_bytes, side="right"))
            until = min(until, row + ROWS_AT_ONCE)
            if until <= row:
                self._copy_large(reader, int(begins[row]), int(ends[row]), int(starts[order[row]]))
                row += 1
                continue
            base = int(begins[row])
            view = self._buffer.view(int(ends[until - 1]) - base)
            reader.read_into(view, base)
            rows = order[row:until][small_argsort(run_of[row:until])]
            self._append(view, rows, places, starts, base)
            row = until
        return starts

    def _append(
        self, view: memoryview, rows: Int64s, places: Int64s, starts: Int64s, base: int
    ) -> None:
        """Copy ``rows``, ordered by run and in each as they lie in the spill: so those of one run
        are side by side in the file, too."""
        pieces = _pieces(view, places[rows], self._stored[rows], base)
        to, sizes = starts[rows], self._stored[rows]
        begins = np.flatnonzero(np.append(True, to[1:] != to[:-1] + sizes[:-1]))
        total = np.add.reduceat(sizes, begins)
        first_of = np.append(begins, len(rows)).tolist()
        done = 0
        for at, size in enumerate(total.tolist()):
            if len(pieces) == len(rows):
                part = pieces[first_of[at] : first_of[at + 1]]
            else:
                part = [pieces[0][done : done + size]]
            if sum(map(len, part)) != size:
                raise InvariantError("a record was split otherwise than planned")
            self._file.write_at(int(to[begins[at]]), part)
            done += size

    def _copy_large(self, reader: SpillReader, start: int, stop: int, target: int) -> None:
        """Copy a record that is larger than a window."""
        for at in range(start, stop, self._buffer.size_bytes):
            view = self._buffer.view(min(self._buffer.size_bytes, stop - at))
            reader.read_into(view, at)
            self._file.write_at(target + at - start, [view])


def _pieces(view: memoryview, starts: Int64s, lengths: Int64s, base: int) -> list[memoryview]:
    """The bytes of records, in one piece if they are short, else a slice each; ``view`` begins at
    byte ``base``."""
    segments = Segments(np.arange(len(starts) + 1), starts, lengths, np.zeros(0, np.uint8))
    if not are_short(segments):
        return slices_of(view, segments, base)
    return [gathered({0: view}, np.zeros(len(starts), np.int32), segments, base=base)]
