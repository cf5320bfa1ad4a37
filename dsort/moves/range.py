"""``range``: reads records by range from their input shards while output shards are written.
Payload is read once, and never spilled."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from dsort.data.columns import Int64s, runs_that_fit
from dsort.data.index import ORDINAL, RANGES, SHARD
from dsort.data.segments import Segments
from dsort.data.table import Table
from dsort.errors import (
    ChangedInputError,
    DsortError,
    InvariantError,
    ObjectNotFoundError,
    StorageAccessError,
    StorageError,
)
from dsort.moves.base import RowRun, WorkerParts, spans
from dsort.moves.input_shard import InputShard, open_input, read_inputs
from dsort.moves.payload_files import PayloadBuffer, RangeBuffer
from dsort.moves.range_queue import RangeBatch, RangeQueue, RangeRead
from dsort.scratch.index import IndexStore
from dsort.scratch.nodes import ScratchNodes
from dsort.scratch.requests import OrderedRowsOf
from dsort.scratch.tables import OrderedRows
from dsort.storage.bucket import Bucket, RandomReads, ReadObject
from dsort.storage.process_limits import files_that_fit

FAR_READ_BYTES_MAX = 16 << 20
TURNS_A_BUFFER = 4
"""The buffer has room for this many turns (see ``RangedRecords``): one is written while the others
are read."""
ROWS_READ_MAX = 1 << 16
"""The most rows of neighbouring runs that are read from the index together. Reading the rows of
each output shard of 100 KB separately took a third of the time of creating the shard."""
FILES_A_SHARD = 2
READS_AT_ONCE = 32
"""From 1.1 GB in 16 cold files, direct reads of 100 KB in any order gave 347 MB/s with 8 threads,
1050 with 32; ``cat`` of the files gave 530."""
_KINDS = (ChangedInputError, ObjectNotFoundError, StorageAccessError, StorageError)


class ReadLimits(NamedTuple):
    """Sizes of reads, in bytes. Reads begin and end at multiples of ``alignment``. A range that is
    longer than ``read_max`` is divided into several reads. A turn has at most ``turn_max``."""

    alignment: int
    read_max: int
    turn_max: int


# One large record keeps the disk busy. Four turns of this size keep the queue full. Turns of 17 MB
# were no faster, and took 60 MB more memory.
NEAR: Final = ReadLimits(4096, 1 << 20, 8 << 20)
# In a store, each read is a request that costs money.
FAR: Final = ReadLimits(1, FAR_READ_BYTES_MAX, 64 << 20)


class RangeMove:
    """Payload is read from the input shards while it is written."""

    skips_cache = True

    def __init__(self, parts: WorkerParts) -> None:
        self._nodes = parts.nodes
        self._buffer = parts.buffer
        open_max = parts.mapped.open_max
        self._inputs = RangedInputs(parts.inputs, parts.nodes.store, open_max=open_max)
        self._queue = RangeQueue(READS_AT_ONCE, by_kernel=True)

    def payloads(
        self, runs: Sequence[RowRun], nodes: Mapping[int, str], locations: str
    ) -> Generator[RangedPayload, None, None]:
        """See :class:`~dsort.moves.base.Move`."""
        with_rows = [run for run in runs if run.stop > run.start]
        records = RangedRecords(
            with_rows, nodes, self._nodes, self._inputs, self._queue, self._buffer
        )
        with closing(records):  # shared: the next partition is read while one is written
            for span in spans(runs):
                yield RangedPayload(span.partition, records)

    def close(self) -> None:
        """See :class:`~dsort.moves.base.Move`."""
        self._queue.close()
        self._inputs.close()


class RangedPayload:
    """Records of one partition, read by range from their input shards."""

    def __init__(self, partition: int, records: RangedRecords) -> None:
        self.partition = partition
        self._records = records

    def ordered(self, start: int, stop: int) -> OrderedRows:
        """See :class:`~dsort.moves.base.Payload`."""
        return self._records.ordered(self.partition, start, stop)

    def slices(self, start: int, stop: int) -> Iterator[Sequence[memoryview]]:
        """See :class:`~dsort.moves.base.RecordPayload`."""
        return self._records.slices(RowRun(self.partition, start, stop))


class PinnedReads:
    """An object in a store, as a source for :class:`~dsort.moves.range_queue.RangeQueue`."""

    direct_fd = -1

    def __init__(self, pinned: ReadObject) -> None:
        self._pinned = pinned

    def read(self, buffer: memoryview, offset: int, least_bytes: int) -> None:
        """Fill ``buffer`` from byte ``offset``, with one request."""
        self._pinned.read_into(buffer, offset)

    def close(self) -> None:
        """Close the object."""
        self._pinned.close()


class RangedInputs:
    """Input shards by ordinal, open for reads in any order; the least recently used are closed.
    Either all of them are files, or all are in stores, where each read is a request."""

    def __init__(self, bucket: Bucket, store: IndexStore, *, open_max: int) -> None:
        # A shard takes a descriptor for cached and one for direct reads.
        self.open_max = max(files_that_fit(open_max * FILES_A_SHARD) // FILES_A_SHARD, 1)
        self._bucket = bucket
        self._store = store
        self._open: OrderedDict[int, RandomReads | PinnedReads] = OrderedDict()

    @cached_property
    def _inputs(self) -> list[InputShard]:
        return read_inputs(self._store)

    @cached_property
    def are_far(self) -> bool:
        """Whether inputs are in stores, where each read is a request."""
        return bool(self._inputs) and self._bucket.pinned(self._inputs[0]) is not None

    @property
    def limits(self) -> ReadLimits:
        """The sizes of reads from these inputs."""
        return FAR if self.are_far else NEAR

    def name(self, shard: int) -> str:
        """The name of the input shard with this ordinal."""
        return self._inputs[shard].name

    def reads(self, shard: int) -> RandomReads | PinnedReads:
        """Open one input shard. ``ChangedInputError`` if it has changed since the job resolved it;
        for an object in a store, only the first read raises this error."""
        if shard in self._open:
            self._open.move_to_end(shard)
            return self._open[shard]
        expected = self._inputs[shard]
        found: RandomReads | PinnedReads | None
        if self.are_far:
            pinned = self._bucket.pinned(expected)
            found = PinnedReads(pinned) if pinned else None
        else:
            of = (expected.name, expected.size_bytes, expected.etag)
            with open_input(self._bucket, *of) as source:
                found = source.random_reads()
        if not found:
            raise StorageError(
                f"input shard {expected.name} cannot be read by range here",
                hint="use --move spill",
            )
        self._open[shard] = found
        return found

    @property
    def are_too_many(self) -> bool:
        """Whether more shards are open than ``open_max``."""
        return len(self._open) > self.open_max

    def close_all_but(self, used: Iterable[int]) -> None:
        """Close the least recently used shards beyond ``open_max``, except those in ``used``."""
        kept = set(used)
        for shard in list(self._open)[: max(len(self._open) - self.open_max, 0)]:
            if shard not in kept:
                self._open.pop(shard).close()

    def close(self) -> None:
        """Close all shards."""
        for reads in self._open.values():
            reads.close()
        self._open.clear()


class _Turn(Struct, frozen=True):
    """Segments of one run of rows, in output order, that are read together.

    ``read_start``, ``read_end``: the aligned bytes of the shard ``source`` that hold each segment;
    -1 for literals. ``ordinal``: the ordinal of each segment's record in its shard.
    """

    literals: memoryview
    source: Int64s
    ordinal: Int64s
    start: Int64s
    length: Int64s
    read_start: Int64s
    read_end: Int64s

    @property
    def buffer_bytes(self) -> int:
        """The room that the turn needs in the buffer."""
        return int((self.read_end - self.read_start).sum())


class _Reading(Struct):
    """A turn whose reads have begun. ``slices``: the slices of its segments, which are filled once
    ``batch`` has ended."""

    run: int
    turn: _Turn
    slices: list[memoryview]
    batch: RangeBatch
    shards: frozenset[int]
    holds_room: bool


# The rows of one output shard after the other are divided into turns. A turn is a run of rows whose
# bytes fit in a part of the buffer. The reads of a turn begin in the order of the disk, many at a
# time, as soon as the buffer has room for them. So the next turns are read while one is written,
# whatever shard and partition they belong to.
class RangedRecords:
    """Reads the records of ``runs``, in their order, by range."""

    def __init__(
        self,
        runs: Sequence[RowRun],
        task_nodes: Mapping[int, str],
        scratch_nodes: ScratchNodes,
        inputs: RangedInputs,
        queue: RangeQueue,
        buffer: PayloadBuffer,
    ) -> None:
        self._runs = runs
        self._task_nodes = task_nodes
        self._scratch_nodes = scratch_nodes
        self._inputs = inputs
        self._queue = queue
        self._limits = inputs.limits
        most_bytes = TURNS_A_BUFFER * self._limits.turn_max
        self._room = RangeBuffer(buffer, self._limits.alignment, most_bytes)
        self._turn_bytes = self._room.size_bytes // TURNS_A_BUFFER
        self._turns = self._planned()
        self._next: tuple[int, _Turn] | None = None
        self._reading: deque[_Reading] = deque()
        self._run = -1

    def slices(self, run: RowRun) -> Iterator[Sequence[memoryview]]:
        """Yield the slices of the next run, several at a time. Slices are valid until the next ones
        are requested."""
        self._run += 1
        if self._runs[self._run] != run:
            raise InvariantError("records by range are asked for in another order than planned")
        self._read_ahead()
        while self._reading and self._reading[0].run == self._run:
            reading = self._reading[0]
            try:
                reading.batch.wait()
            except (StorageError, ChangedInputError) as error:
                raise self._named(error, reading) from error
            yield reading.slices
            self._reading.popleft()
            if reading.holds_room:
                self._room.give_back()
            self._read_ahead()

    def ordered(self, partition: int, start: int, stop: int) -> OrderedRows:
        """Records ``start:stop`` of a partition."""
        request = OrderedRowsOf(partition, start, stop)
        return self._scratch_nodes.ask(self._task_nodes[partition], request)

    def close(self) -> None:
        """Wait for reads that have begun, because the buffer gets other bytes afterwards."""
        for turn in self._reading:
            turn.batch.settle()
        self._reading.clear()

    def _read_ahead(self) -> None:
        """Begin the reads of as many turns as the buffer has room for."""
        while following := self._next or next(self._turns, None):
            self._next, (run, turn) = following, following
            size_bytes = turn.buffer_bytes
            if not self._room.has_room(size_bytes):
                return
            self._next = None
            self._reading.append(self._begin(run, turn, self._room.take(size_bytes)))

    def _begin(self, run: int, turn: _Turn, room: memoryview) -> _Reading:
        # Neighbours in an input become neighbours in the buffer, so that one read fills both.
        order = np.lexsort((turn.read_start, turn.source))
        sizes = turn.read_end - turn.read_start
        places = np.empty(len(sizes), np.int64)
        places[order] = np.cumsum(sizes[order]) - sizes[order]
        shards = frozenset(turn.source[turn.read_start >= 0].tolist())
        if self._inputs.are_too_many:  # checked first: there may be hundreds of turns to visit
            used = set(shards).union(*(each.shards for each in self._reading))
            self._inputs.close_all_but(used)
        files = {shard: self._inputs.reads(shard) for shard in shards}
        reads, step = [], self._limits.read_max
        for rows in _adjacent(turn, order):
            first, last = int(turn.read_start[rows[0]]), int(turn.read_end[rows[-1]])
            # The aligned end may lie behind the end of the file: only bytes up to ``end`` must
            # come.
            end = int(turn.start[rows[-1]]) + int(turn.length[rows[-1]])
            at, shard = int(places[rows[0]]), int(turn.source[rows[0]])
            for begin in range(first, last, step):
                size = min(step, last - begin)
                view = room[at + begin - first : at + begin - first + size]
                least = min(end - begin, size)
                reads.append(RangeRead(files[shard], view, begin, least, shard))
        slices = []
        for place, first, start, length in zip(
            places.tolist(),
            turn.read_start.tolist(),
            turn.start.tolist(),
            turn.length.tolist(),
            strict=True,
        ):
            if first < 0:
                slices.append(turn.literals[-1 - start : -1 - start + length])
            else:
                slices.append(room[place + start - first : place + start - first + length])
        batch = self._queue.begin(reads)
        return _Reading(run, turn, slices, batch, shards, holds_room=bool(len(room)))

    def _named(self, error: DsortError, reading: _Reading) -> DsortError:
        """``error`` with the name of the unreadable record in its message."""
        failed, turn = reading.batch.failed, reading.turn
        holds = (turn.source == failed.shard) & (turn.read_start >= 0)
        holds &= (turn.read_end > failed.offset) & (
            turn.read_start < failed.offset + len(failed.buffer)
        )
        record = int(turn.ordinal[holds].min())
        name = self._inputs.name(failed.shard)
        # The class of the error stays, because it decides about retries and exit codes.
        kind = next(each for each in _KINDS if isinstance(error, each))
        return kind(
            f"cannot read record {record} of input shard {name}: {error.message}", hint=error.hint
        )

    def _planned(self) -> Iterator[tuple[int, _Turn]]:
        for numbers in _neighbours(self._runs):
            runs = [self._runs[number] for number in numbers]
            first = runs[0].start
            whole = self.ordered(runs[0].partition, first, runs[-1].stop)
            for number, run in zip(numbers, runs, strict=True):
                own = whole.run(run.start - first, run.stop - first)
                for turn in _turns(own.rows, self._turn_bytes, self._limits.alignment):
                    yield number, turn


def _neighbours(runs: Sequence[RowRun]) -> Iterator[range]:
    """Yield the numbers of runs whose rows are requested together: neighbours in one partition with
    at most ``ROWS_READ_MAX`` rows from the first to the last, or a single run."""
    begin = 0
    for number, run in enumerate(runs):
        first, last = runs[begin], runs[max(number - 1, 0)]
        follows = run.partition == first.partition and run.start >= last.stop
        if number > begin and not (follows and run.stop - first.start <= ROWS_READ_MAX):
            yield range(begin, number)
            begin = number
    if runs:
        yield range(begin, len(runs))


def _adjacent(turn: _Turn, order: Int64s) -> Iterator[Int64s]:
    """Yield the rows of ``turn`` that have to be read, in ``order``, in runs of neighbours."""
    order = order[turn.read_start[order] >= 0]
    if not len(order):
        return
    source, start, end = turn.source[order], turn.read_start[order], turn.read_end[order]
    follows = (source[1:] == source[:-1]) & (start[1:] == end[:-1])
    yield from np.split(order, np.flatnonzero(~follows) + 1)


def _turns(rows: Table, turn_bytes: int, alignment: int) -> Iterator[_Turn]:
    """Yield the segments of ``rows`` in turns whose aligned bytes are at most ``turn_bytes``."""
    segments = rows[RANGES]
    if len(segments.names):
        raise InvariantError("records that are read by range have new names outside literals")
    literals = np.ascontiguousarray(segments.literals).data
    # Alignment can add a block at each end of a part.
    row, start, length = _in_parts(segments, turn_bytes - 2 * alignment)
    source, ordinal = rows[SHARD][row].astype(np.int64), rows[ORDINAL][row]
    is_literal = start < 0
    read_start = np.where(is_literal, -1, start - start % alignment)
    end = start + length
    read_end = np.where(is_literal, -1, end + -end % alignment)
    columns: tuple[Int64s, ...] = (source, ordinal, start, length, read_start, read_end)
    for bounds in pairwise(runs_that_fit(read_end - read_start, turn_bytes).tolist()):
        yield _Turn(literals, *(column[slice(*bounds)] for column in columns))


def _in_parts(segments: Segments, part_bytes: int) -> tuple[Int64s, Int64s, Int64s]:
    """(row, start, length) of the segments. Segments longer than ``part_bytes`` are divided."""
    start, length = segments.start, segments.length
    row = np.repeat(np.arange(len(segments.offsets) - 1), np.diff(segments.offsets))
    counts = np.maximum(-(-length // part_bytes), 1)
    if len(counts) == 0 or int(counts.max()) == 1:
        return row, start, length
    of_segment = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(of_segment)) - np.repeat(np.cumsum(counts) - counts, counts)
    shift = number * part_bytes
    begun = start[of_segment]
    begun = np.where(begun < 0, begun - shift, begun + shift)
    return row[of_segment], begun, np.minimum(part_bytes, length[of_segment] - shift)
