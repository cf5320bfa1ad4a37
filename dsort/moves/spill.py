"""Reads the records of one partition's spill: mapped, or through the worker's buffer."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from typing import Final

import numpy as np
from msgspec.structs import replace

from dsort.data.columns import Int32s, Int64s, runs_that_fit
from dsort.data.index import (
    BLOCK_LENGTH,
    BLOCK_ROWS,
    BLOCK_SHARD,
    BLOCK_START,
    BLOCK_WORKER,
    RANGES,
    SHARD,
    STORED_BYTES,
)
from dsort.data.segments import Segments
from dsort.data.table import Table
from dsort.errors import InvariantError
from dsort.moves.base import RowRun, WorkerParts, spans
from dsort.moves.input_shard import SLICES_AT_ONCE_MAX
from dsort.moves.payload_files import PAGE_BYTES, PayloadBuffer, RangeBuffer
from dsort.moves.range_queue import NO_READS, RangeBatch, RangeQueue, RangeRead
from dsort.moves.slices import (
    Gatherer,
    are_short,
    gathered,
    rows_at_once,
    slices_in,
    slices_of,
    small_argsort,
)
from dsort.scratch.directory import Scratch
from dsort.scratch.index import RUN_SHARDS_MAX
from dsort.scratch.nodes import ShardLocations, ordered_rows
from dsort.scratch.spill import SpillExtents, SpillReader
from dsort.scratch.tables import OrderedRows
from dsort.storage.directory.files import LocalStagedObject
from dsort.storage.directory.os_errors import StorageErrors

READ_BYTES_MAX = 2 << 20
"""The bytes that one thread reads at a time."""
SHARDS_TOLD_MAX = 1 << 16
RECORD_BYTES_MIN = 32 << 10
"""Shorter records take less time if all bytes between them are read, too."""
SHARE_MAX = 0.8
"""If more than this share of a partition's bytes is needed, all bytes are read, because they are in
fewer pieces."""
READS_AT_ONCE = 2
"""Sequential reads of one partition. They are few because the disk is also busy with writes."""


_NONE: Final = np.zeros(0, np.int64)


class SpillMove:
    """Payload was spilled by partition. Each partition is read into the worker's buffer."""

    skips_cache = False

    def __init__(self, parts: WorkerParts) -> None:
        self._nodes = parts.nodes
        self._buffer = parts.buffer
        self._movement = parts.movement
        self._queue = RangeQueue(READS_AT_ONCE)

    def payloads(
        self, runs: Sequence[RowRun], nodes: Mapping[int, str], locations: str
    ) -> Generator[SpilledPayload, None, None]:
        """See :class:`~dsort.moves.base.Move`. While one partition is written, the first blocks of
        the next one are read or requested from other nodes."""
        wanted, where = spans(runs), self._nodes.locations(locations)
        ahead: SpilledPayload | None = None
        try:
            for number, span in enumerate(wanted):
                payload = ahead or self._payload(span, nodes[span.partition], where)
                ahead = None
                with closing(payload):
                    payload.load()
                    if number + 1 < len(wanted):
                        following = wanted[number + 1]
                        ahead = self._payload(following, nodes[following.partition], where)
                        ahead.ask_ahead()
                    yield payload
        finally:
            if ahead is not None:
                ahead.close()

    def close(self) -> None:
        """See :class:`~dsort.moves.base.Move`."""
        self._queue.close()

    @cached_property
    def _room(self) -> RangeBuffer:
        return RangeBuffer(self._buffer, PAGE_BYTES)

    def _payload(self, span: RowRun, node: str, where: ShardLocations) -> SpilledPayload:
        ordered = ordered_rows(self._nodes, node, span.partition, where)
        # From a mapped file, the kernel reads only the pages that are used.
        is_read = self._movement.to_disk or not self._nodes.alone
        if is_read and int(ordered.blocks[BLOCK_LENGTH].sum()) <= self._buffer.size_bytes:
            ordered = narrowed(ordered, *ordered.rows_of(span.start, span.stop))
        return SpilledPayload(
            span.partition,
            ordered,
            (span.start, span.stop),
            SpillReader(self._nodes, where, span.partition, ordered.blocks),
            self._buffer,
            self._room,
            self._queue,
            self._nodes.store.scratch,
            forgets=self._movement.to_disk,
            direct=self._movement.past_cache,
        )


# If scratch stays in the page cache, the spill is mapped: payload is not copied before it is
# written. Otherwise a partition that fits is read whole into a part of the buffer, so that threads
# read the next one into another part while this one is written. A partition that is larger than the
# buffer is spilled once more if its records are small; else it is read in several turns.
class SpilledPayload:
    """The records of one partition's spill."""

    def __init__(
        self,
        partition: int,
        rows: OrderedRows,
        span: tuple[int, int],
        reader: SpillReader,
        buffer: PayloadBuffer,
        room: RangeBuffer,
        queue: RangeQueue,
        scratch: Scratch,
        *,
        forgets: bool,
        direct: bool,
    ) -> None:
        """``rows``: all rows of the partition. ``span``: the records that will be requested.
        ``room``: the buffer, in parts; partitions have to be closed in the order in which they
        began. ``direct``: read files of this node past the page cache. ``forgets``: remove the
        spill from the page cache after reading."""
        self.partition = partition
        self._ordered, self._rows, self._ranges = rows, rows.rows, rows.rows[RANGES]
        self._span = rows.rows_of(*span)
        self._reader = reader
        self._buffer = buffer
        self._room = room
        self._queue = queue
        self._scratch = scratch
        self._forgets = forgets
        self._direct = direct
        self._maps = not forgets and not are_short(self._ranges)
        self._split: SplitSpill | None = None
        self._views: dict[int, memoryview] = {}  # mapped files by worker; or the buffer, as 0
        self._shift = _NONE  # by block; empty: blocks follow one another
        self._block_of_shard = _NONE  # makes a look-up take 1 ns a row, not 30
        self._batch: RangeBatch = NO_READS
        self._holds_room = False
        self._gatherer = Gatherer()

    def ask_ahead(self) -> None:
        """Begin to read the partition, or to request its first blocks, for later."""
        # This partition needs the whole buffer, which still has the partition before it.
        if self._reader.size_bytes > self._room.size_bytes and not self._maps:
            return
        extents = self._reader.extents()
        if extents is None:
            self._reader.ask_ahead()
        else:
            self._begin(extents)

    def load(self) -> None:
        """Read the partition, if it fits in the buffer. If it does not, and has small records,
        spill it once more."""
        fits = self._maps or self._reader.size_bytes <= self._room.size_bytes
        if not self._views and fits:
            extents = self._reader.extents()
            if extents is not None:
                self._begin(extents)
        self._batch.wait()
        if not self._views:
            self._load_otherwise()
        if self._forgets:
            self._reader.forget()

    def close(self) -> None:
        """Close the spill files, and return the room in the buffer."""
        # First, because reads that are under way still write into the buffer.
        self._batch.settle()
        if self._holds_room:
            self._room.give_back()
            self._holds_room = False
        self._views = {}
        self._reader.close()
        if self._split is not None:
            self._split.close()

    def ordered(self, start: int, stop: int) -> OrderedRows:
        """Records ``start:stop``."""
        return self._ordered.run(start, stop)

    def slices(self, start: int, stop: int) -> Iterator[Sequence[memoryview]]:
        """Yield the slices of records ``start:stop``, some at a time; valid until the next
        step."""
        start, stop = self._ordered.rows_of(start, stop)
        if start < stop and not self._span[0] <= start <= stop <= self._span[1]:
            raise InvariantError(f"rows of partition {self.partition} are outside its span")
        if self._views:
            all_of_it = self._ranges.run(start, stop)
            step = rows_at_once(all_of_it) if are_short(all_of_it) else SLICES_AT_ONCE_MAX
            gatherer = self._gatherer
            for at in range(start, stop, step):
                rows = slice(at, min(at + step, stop))
                view, segments = self._placed(rows)
                if are_short(segments):
                    yield [gatherer.gathered(self._views, view, segments)]
                elif len(self._views) == 1:
                    (only,) = self._views.values()
                    yield slices_of(only, segments)
                else:
                    yield slices_in(self._views, view, segments.start, segments.length)
            return
        if self._split is not None:
            yield from self._split.slices(start, stop)
            return
        stored = self._rows[STORED_BYTES]
        row = start
        while row < stop:
            span = np.cumsum(stored[row : min(row + SLICES_AT_ONCE_MAX, stop)])
            run = int(np.searchsorted(span, self._buffer.size_bytes, side="right"))
            if run == 0:
                yield from self._streamed(row)
            else:
                yield self._packed(slice(row, row + run))
            row += max(run, 1)

    def _begin(self, extents: SpillExtents) -> None:
        """Map the partition, or begin to read it if the buffer has room."""
        if self._maps:
            views, self._shift = self._reader.mapped()
            # A partition without bytes counts as loaded, too.
            self._views = views or {0: memoryview(b"")}
        elif not self._begin_to_read(extents):
            return
        shards = self._ordered.blocks[BLOCK_SHARD]
        if len(shards) and int(shards[-1]) < SHARDS_TOLD_MAX and bool((np.diff(shards) > 0).all()):
            # A block has the records of its shard, or of a run of shards that begins with it.
            every = np.arange(int(shards[-1]) + RUN_SHARDS_MAX)
            self._block_of_shard = np.searchsorted(shards, every, side="right") - 1

    def _begin_to_read(self, extents: SpillExtents) -> bool:
        if not self._room.has_room(extents.size_bytes):
            return False
        view = self._room.take(extents.size_bytes)
        self._holds_room = bool(len(view))
        reads = []
        for worker, offset, at, size, least in extents.reads(READ_BYTES_MAX):
            file = self._reader.file(worker, direct=self._direct)
            reads.append(RangeRead(file, view[at : at + size], offset, least))
        self._batch, self._views = self._queue.begin(reads), {0: view}
        self._shift = extents.shift
        return True

    def _load_otherwise(self) -> None:
        """Read or split the partition with the whole buffer."""
        self._holds_room = bool(len(self._room.take(self._room.size_bytes)))
        if self._reader.size_bytes <= self._buffer.size_bytes:
            whole = self._buffer.view(self._reader.size_bytes)
            self._reader.read_into(whole, 0)
            self._views = {0: whole}
        elif self._reader.size_bytes <= SPLIT_BYTES_MAX * len(self._rows):
            self._split = SplitSpill(
                self._reader, self._rows, self._span, self._buffer, self._scratch
            )

    def _placed(self, rows: slice) -> tuple[Int32s, Segments]:
        """For each segment of ``rows``, the number of its view; and the segments, with their places
        in the views instead of their places in the blocks."""
        segments = self._ranges.run(rows.start, rows.stop)
        if not len(self._shift):
            return np.zeros(len(segments.start), np.int32), segments
        if len(self._block_of_shard) and len(segments.start) == rows.stop - rows.start:
            block = self._block_of_shard[self._rows[SHARD][rows]]
        else:
            block = np.searchsorted(self._reader.offsets[1:], segments.start, side="right")
            # Only empty records can be behind the last block.
            block = np.minimum(block, len(self._shift) - 1)
        placed = replace(segments, start=segments.start + self._shift[block])
        if len(self._views) == 1:
            return np.broadcast_to(np.int32(0), (len(segments.start),)), placed
        return self._ordered.blocks[BLOCK_WORKER][block].astype(np.int32), placed

    def _packed(self, rows: slice) -> list[memoryview]:
        """Read a run of records into the buffer, in their order in the spill."""
        starts: Int64s = self._ranges.start[rows]
        lengths: Int64s = self._ranges.length[rows]
        slices: list[memoryview] = [memoryview(b"")] * len(starts)
        view, at = self._buffer.view(self._buffer.size_bytes), 0
        wanted = []
        for row in np.argsort(starts, kind="stable").tolist():
            size = int(lengths[row])
            slices[row] = view[at : at + size]
            wanted.append((slices[row], int(starts[row])))
            at += size
        self._reader.read_many(wanted)
        return slices

    def _streamed(self, row: int) -> Iterator[Sequence[memoryview]]:
        """Yield a record that is larger than the buffer, a buffer at a time."""
        start, length = int(self._ranges.start[row]), int(self._ranges.length[row])
        for view in self._buffer.windows(self._reader, start, length):
            yield [view]


SPLIT_BYTES_MAX = 32 << 10
"""If records are longer than this on average, reading them one by one takes less time than reading
them twice in order."""
WINDOW_BYTES = 8 << 20
ROWS_AT_ONCE = 4096
"""Rows that are copied at a time: at most 2 MiB of short records."""


class SplitSpill:
    """The rows ``span`` (first, end) of one partition, copied to a file in runs that fit in the
    buffer. ``rows``: all rows of the partition, in output order, with their places in the spill."""

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
        self._loaded = -1  # the run that is in the buffer
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
        """Yield the slices of rows ``start:stop`` of the partition, some at a time; valid until the
        next step."""
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
        # The run that was loaded is overwritten.
        self._loaded = -1
        start, length = int(self._starts[row]), int(self._stored[row])
        for view in self._buffer.windows(self._file, start, length):
            yield [view]

    def _split(self, reader: SpillReader, places: Int64s) -> Int64s:
        """Copy all records to the file, run by run. ``places``: the place of each record in the
        spill. Return the place of each row in the file."""
        order = np.argsort(places, kind="stable")  # the order of the records in the spill
        run_of = np.searchsorted(self._bounds, order, side="right") - 1
        by_run = small_argsort(run_of)
        lengths = self._stored[order[by_run]]
        starts = np.empty(len(places), np.int64)
        starts[order[by_run]] = np.cumsum(lengths) - lengths
        window_bytes = min(self._buffer.size_bytes, WINDOW_BYTES)
        # Records do not overlap, so their ends ascend, too.
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
        """Copy ``rows``, sorted by run and then by place in the spill, so that each run is one
        piece of the file."""
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
        for view in self._buffer.windows(reader, start, stop - start):
            self._file.write_at(target, [view])
            target += len(view)


def _pieces(view: memoryview, starts: Int64s, lengths: Int64s, base: int) -> list[memoryview]:
    """The bytes of records: in one piece if they are short, else one slice each. ``view`` begins at
    byte ``base``."""
    segments = Segments(np.arange(len(starts) + 1), starts, lengths, np.zeros(0, np.uint8))
    if not are_short(segments):
        return slices_of(view, segments, base)
    return [gathered({0: view}, np.zeros(len(starts), np.int32), segments, base=base)]


def narrowed(ordered: OrderedRows, first: int, stop: int) -> OrderedRows:
    """``ordered`` with blocks that hold only rows ``first:stop``: one block per row, in the order
    of the spill. Return ``ordered`` itself if that gains nothing. In the result, other rows have no
    place."""
    blocks, ranges = ordered.blocks, ordered.rows[RANGES]
    lengths, block_bytes = ranges.length[first:stop], blocks[BLOCK_LENGTH]
    size_bytes, total_bytes = int(lengths.sum()), int(block_bytes.sum())
    are_long = size_bytes >= RECORD_BYTES_MIN * len(lengths)
    if BLOCK_ROWS in blocks or not are_long or size_bytes > SHARE_MAX * total_bytes:
        return ordered
    starts = ranges.start[first:stop]
    order = np.argsort(starts, kind="stable")
    begins = np.cumsum(block_bytes) - block_bytes
    block = np.searchsorted(begins, starts[order], side="right") - 1
    sizes = lengths[order]
    places = np.full_like(ranges.start, -1)
    places[first + order] = np.cumsum(sizes) - sizes
    own = blocks.take(block)
    own = own.with_(BLOCK_START, own[BLOCK_START] + starts[order] - begins[block])
    return replace(
        ordered,
        rows=ordered.rows.with_(RANGES, replace(ranges, start=places)),
        blocks=own.with_(BLOCK_LENGTH, sizes),
    )
