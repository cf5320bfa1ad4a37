"""Records read from their input shards by range, as they are written: ``range``.

What is to be read for one output shard after the other is parted into *turns*: runs of pieces that
fit in a part of the worker's buffer. The reads of a turn begin in the order of the disk, many at a
time, as soon as there is room for them; so the next turns come while one is written, whatever
shard and partition they are of. Payload is read once, and spilled nowhere.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dsort.data.columns import Int64s
from dsort.data.index import Segments
from dsort.errors import InvariantError, StorageError
from dsort.scratch.index import IndexStore
from dsort.scratch.nodes import ScratchNodes
from dsort.scratch.ordered import OrderedRows
from dsort.scratch.requests import OrderedRowsOf
from dsort.storage.bucket import Bucket, RandomReads
from dsort.workers.payload_files import PayloadBuffer
from dsort.workers.range_buffer import RangeBuffer
from dsort.workers.range_queue import RangeBatch, RangeQueue, RangeRead
from dsort.workers.source import InputShard, files_that_fit, open_input, read_inputs
from dsort.workers.tasks import OutputPiece

__all__ = ["ALIGNMENT_BYTES", "RangedInputs", "RangedRecords"]

ALIGNMENT_BYTES = 4096
READ_BYTES_MAX = 1 << 20
"""A longer range is several reads, so that one large record keeps the disk busy, too."""
TURNS_A_BUFFER = 4
"""A turn takes one part of the buffer in so many: one is written while others are read."""
TURN_BYTES_MAX = 64 << 20
FILES_A_SHARD = 2


class RangedInputs:
    """Input shards by ordinal, open for reads in any order; the least recently used are closed."""

    def __init__(self, bucket: Bucket, store: IndexStore, *, open_max: int) -> None:
        self.open_max = max(files_that_fit(open_max * FILES_A_SHARD) // FILES_A_SHARD, 1)
        self._bucket = bucket
        self._store = store
        self._inputs: list[InputShard] = []
        self._open: OrderedDict[int, RandomReads] = OrderedDict()

    def reads(self, shard: int) -> RandomReads:
        """One of them. ``ChangedInputError`` unless it is what the job resolved."""
        if shard in self._open:
            self._open.move_to_end(shard)
            return self._open[shard]
        if not self._inputs:
            self._inputs = read_inputs(self._store)
        expected = self._inputs[shard]
        with open_input(self._bucket, expected.name, expected.size_bytes, expected.etag) as source:
            found = source.random_reads()
        if found is None:
            raise StorageError(
                f"input shard {expected.name} cannot be read by range here",
                hint="use --move spill",
            )
        self._open[shard] = found
        return found

    def close_all_but(self, used: Iterable[int]) -> None:
        """Close the least recently used of too many, but for those that are ``used``."""
        if len(self._open) <= self.open_max:
            return
        kept = set(used)
        for shard in list(self._open)[: len(self._open) - self.open_max]:
            if shard not in kept:
                self._open.pop(shard).close()

    def close(self) -> None:
        """Close all of them."""
        for reads in self._open.values():
            reads.close()
        self._open.clear()


@dataclass(frozen=True, slots=True)
class _Turn:
    """Segments of one piece, in output order, that are read together.

    ``read_start``, ``read_end``: the aligned bytes of the shard ``source`` that hold each segment;
    -1 for literals.
    """

    source: Int64s
    start: Int64s
    length: Int64s
    read_start: Int64s
    read_end: Int64s
    literals: memoryview

    @property
    def buffer_bytes(self) -> int:
        """What it takes of the buffer."""
        return int((self.read_end - self.read_start).sum())


@dataclass(slots=True)
class _Reading:
    """A turn whose reads have begun. ``slices``: of its segments; filled once ``batch`` is over."""

    piece: int
    slices: list[memoryview]
    batch: RangeBatch
    shards: frozenset[int]
    holds_room: bool


class RangedRecords:
    """The records of a task's pieces, in their order, by range."""

    def __init__(
        self,
        pieces: Sequence[OutputPiece],
        task_nodes: dict[int, str],
        scratch_nodes: ScratchNodes,
        inputs: RangedInputs,
        queue: RangeQueue,
        buffer: PayloadBuffer,
    ) -> None:
        self._pieces = pieces
        self._task_nodes = task_nodes
        self._scratch_nodes = scratch_nodes
        self._inputs = inputs
        self._queue = queue
        self._room = RangeBuffer(buffer, ALIGNMENT_BYTES)
        self._turn_bytes = min(self._room.size_bytes // TURNS_A_BUFFER, TURN_BYTES_MAX)
        self._turns = self._planned()
        self._next: tuple[int, _Turn] | None = None
        self._reading: deque[_Reading] = deque()
        self._piece = -1

    def slices(self, partition: int, start: int, stop: int) -> Iterator[Sequence[memoryview]]:
        """The slices of records ``start:stop`` of a partition, which is the next piece that has
        any; some at a time, valid until the next step."""
        self._piece += 1
        wanted = self._pieces[self._piece]
        if (wanted.partition, wanted.row_start, wanted.row_stop) != (partition, start, stop):
            raise InvariantError("records by range are asked for in another order than planned")
        self._read_ahead()
        while self._reading and self._reading[0].piece == self._piece:
            turn = self._reading[0]
            turn.batch.wait()
            yield turn.slices
            self._reading.popleft()
            if turn.holds_room:
                self._room.give_back()
            self._read_ahead()

    def rows(self, partition: int, start: int, stop: int) -> OrderedRows:
        """The columns of records ``start:stop`` of a partition."""
        rows: OrderedRows = self._scratch_nodes.ask(
            self._task_nodes[partition], OrderedRowsOf(partition, start, stop)
        )
        return rows

    def close(self) -> None:
        """Wait for what was begun: the buffer is for something else now."""
        for turn in self._reading:
            turn.batch.settle()
        self._reading.clear()

    def _read_ahead(self) -> None:
        """Begin the reads of as many turns as there is room for."""
        while True:
            following = self._next or next(self._turns, None)
            self._next = following
            if following is None:
                return
            piece, turn = following
            room, size_bytes = memoryview(b""), turn.buffer_bytes
            if size_bytes:
                taken = self._room.take(size_bytes)
                if taken is None:
                    return
                room = taken
            self._next = None
            self._reading.append(self._begin(piece, turn, room))

    def _begin(self, piece: int, turn: _Turn, room: memoryview) -> _Reading:
        sizes = turn.read_end - turn.read_start
        places = np.cumsum(sizes) - sizes
        shards = frozenset(turn.source[turn.read_start >= 0].tolist())
        used = set(shards).union(*(each.shards for each in self._reading))
        self._inputs.close_all_but(used)
        files = {shard: self._inputs.reads(shard) for shard in shards}
        reads = []
        for row in np.lexsort((turn.read_start, turn.source)).tolist():
            first, last = int(turn.read_start[row]), int(turn.read_end[row])
            if first < 0:
                continue
            end = int(turn.start[row]) + int(turn.length[row])
            at, source = int(places[row]), files[int(turn.source[row])]
            for begin in range(first, last, READ_BYTES_MAX):
                size = min(READ_BYTES_MAX, last - begin)
                view = room[at + begin - first : at + begin - first + size]
                reads.append(RangeRead(source, view, begin, min(end - begin, size)))
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
        return _Reading(piece, slices, self._queue.begin(reads), shards, holds_room=bool(len(room)))

    def _planned(self) -> Iterator[tuple[int, _Turn]]:
        for number, piece in enumerate(self._pieces):
            rows = self.rows(piece.partition, piece.row_start, piece.row_stop)
            for turn in _turns(rows, self._turn_bytes):
                yield number, turn


def _turns(rows: OrderedRows, turn_bytes: int) -> Iterator[_Turn]:
    """The segments of ``rows`` in runs whose aligned bytes take at most ``turn_bytes``."""
    segments = rows.segments
    if segments.names is not None and len(segments.names.at):
        raise InvariantError("records that are read by range have their names in literals")
    source = np.repeat(rows.source.astype(np.int64), np.diff(segments.offsets))
    literals = np.ascontiguousarray(segments.literals).data
    source, start, length = _in_parts(source, segments, turn_bytes - 2 * ALIGNMENT_BYTES)
    is_literal = start < 0
    read_start = np.where(is_literal, -1, start - start % ALIGNMENT_BYTES)
    end = start + length
    read_end = np.where(is_literal, -1, end + -end % ALIGNMENT_BYTES)
    ends = np.cumsum(read_end - read_start)
    at = done = 0
    while at < len(start):
        stop = max(int(np.searchsorted(ends, done + turn_bytes, side="right")), at + 1)
        some = slice(at, stop)
        yield _Turn(
            source[some], start[some], length[some], read_start[some], read_end[some], literals
        )
        at, done = stop, int(ends[stop - 1])


def _in_parts(source: Int64s, segments: Segments, part_bytes: int) -> tuple[Int64s, Int64s, Int64s]:
    """(source, start, length) of the segments, those that are longer than ``part_bytes`` cut."""
    start, length = segments.start, segments.length
    counts = np.maximum(-(-length // part_bytes), 1)
    if len(counts) == 0 or int(counts.max()) == 1:
        return source, start, length
    of_segment = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(of_segment)) - np.repeat(np.cumsum(counts) - counts, counts)
    shift = number * part_bytes
    begun = start[of_segment]
    begun = np.where(begun < 0, begun - shift, begun + shift)
    return source[of_segment], begun, np.minimum(part_bytes, length[of_segment] - shift)
