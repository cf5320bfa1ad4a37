"""The creator where records are rows of tables: rows of a partition's blocks, in output order.

Blocks of a partition that fits are read at once. Of a larger one, blocks are read again for each
run of rows that fits; memory stays the same, whatever the size of the data. Row groups close by
rows and bytes of the output order alone, so that a shard's bytes depend on nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from dsort.containers.columnar.blocks import RowBlocks, RowGroup
from dsort.containers.columnar.container import Columnar
from dsort.containers.columnar.plain_chunks import PlainColumn
from dsort.containers.columnar.schema import plain_schema, schema_of
from dsort.containers.columnar.values import Leaf
from dsort.containers.columnar.writer import GroupLimits, open_writer
from dsort.data.columns import Int64s
from dsort.data.index import (
    BLOCK_LENGTH,
    BLOCK_ROWS,
    BLOCK_SHARD,
    PAYLOAD_BYTES,
    RANGES,
    STORED_BYTES,
)
from dsort.errors import InvariantError, StorageError
from dsort.scratch.logs import CreatedLog
from dsort.scratch.moved_blocks import ordered_rows
from dsort.scratch.nodes import ScratchNodes
from dsort.scratch.ordered import OrderedRows
from dsort.scratch.spill import SpillReader
from dsort.storage.bucket import Bucket
from dsort.storage.output_buckets import bucket_for
from dsort.workers.lineage import LINEAGE, write_lineage
from dsort.workers.mapped_inputs import MappedInputs
from dsort.workers.shard_writer import FinishedShard, StagedFile, Writeback
from dsort.workers.table_check import RowCheck
from dsort.workers.tasks import (
    LONG_COLUMNS_FILE,
    SCHEMA_FILE,
    CreateDone,
    CreateTask,
    OutputPiece,
    WorkerSetup,
)

INPUTS_OPEN_MAX = 4096
TURN_SHARE = 3
"""A turn over a partition takes this part of a worker's buffer: its blocks, and its rows in order,
are in memory at once, and a row group besides."""
TURN_BYTES_MAX = 1 << 30
"""Offsets of texts and binaries are 32 bits wide: what is taken at once has to stay below 2 GiB."""


class BlockMemory:
    """What blocks are read into. Its pages stay: fresh ones cost as much as the copy does."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def view(self, size_bytes: int) -> memoryview:
        """Room for so many bytes; what was there before is gone."""
        if size_bytes > len(self._memory):
            self._memory = np.empty(0, np.uint8)
            self._memory = np.empty(size_bytes, np.uint8)
        return self._memory[:size_bytes].data


class TableCreator:
    """Writes output shards of rows for one job, in one worker."""

    def __init__(
        self,
        setup: WorkerSetup,
        worker: int,
        inputs: Bucket,
        outputs: Bucket,
        nodes: ScratchNodes,
    ) -> None:
        self._containers = [each.container for each in setup.pipeline.outputs]
        self._turn_bytes = min(setup.movement.buffer_bytes // TURN_SHARE, TURN_BYTES_MAX)
        self._outputs = outputs
        self._scratch_nodes = nodes
        self._memory = BlockMemory()
        self._group: RowGroup | None = None
        self._log = CreatedLog(nodes.store.scratch, worker)
        self._writeback = Writeback()
        self._inputs: MappedInputs | None = None
        if setup.movement.values_stay:
            self._inputs = MappedInputs(inputs, nodes.store, open_max=INPUTS_OPEN_MAX)

    def close(self) -> None:
        """Wait for what is on its way to the disk, and let go of mapped inputs."""
        self._writeback.close()
        if self._inputs is not None:
            self._inputs.close()

    def create(self, task: CreateTask) -> CreateDone:
        """Write the pieces of a task, all of a shard's through one open output."""
        schema = schema_of(self._scratch_nodes.store.file_bytes(SCHEMA_FILE))
        long = json.loads(self._scratch_nodes.store.file_bytes(LONG_COLUMNS_FILE))
        finished: list[FinishedShard] = []
        payload: _SpilledTable | None = None
        out: _TableShardWriter | None = None
        try:
            for piece in task.pieces:
                if out is None or out.ordinal != piece.ordinal:
                    staged = self._outputs.stage(piece.token, name=piece.name)
                    file = StagedFile(
                        staged,
                        self._writeback,
                        want_md5=task.want_md5,
                        seals_on_finish=bucket_for(self._outputs, piece.name).seals_on_finish,
                    )
                    check = RowCheck(piece.ordinal) if task.check_content else None
                    container = self._containers[piece.output]
                    assert isinstance(container, Columnar)
                    out = _TableShardWriter(
                        file, piece.ordinal, container, schema, long, check, self._group
                    )
                    self._group = out.group
                if piece.partition >= 0:
                    if payload is None or not payload.is_of(piece.partition, out.away):
                        if payload is not None:
                            payload.close()
                        payload = self._payload(task, piece.partition, schema, out.away)
                    out.write_rows(payload, piece)
                if piece.last:
                    if LINEAGE in task.sidecars:
                        write_lineage(self._outputs, self._scratch_nodes, task, piece.ordinal)
                    finished.append(FinishedShard(out.ordinal, out.file, out.finish(), self._log))
                    finished[-1].receipt.add_done_callback(finished[-1].record)
                    out = None
            shards = tuple(shard.done() for shard in finished)
            self._writeback.close_small()
        finally:
            if out is not None:
                out.abandon()
                self._group = None
            if payload is not None:
                payload.close()
            self._log.flush()
        return CreateDone(
            shards=shards,
            records=sum(piece.row_stop - piece.row_start for piece in task.pieces),
            bytes_written=sum(piece.stored_bytes for piece in task.pieces),
        )

    def _payload(
        self, task: CreateTask, partition: int, schema: Any, away: Sequence[Leaf]
    ) -> _SpilledTable:
        node = dict(task.nodes)[partition]
        locations = self._scratch_nodes.locations(task.locations)
        rows = ordered_rows(self._scratch_nodes, node, partition, locations)
        reader = SpillReader(self._scratch_nodes, locations, partition, rows.blocks)
        plain = plain_schema("of the job", schema)
        return _SpilledTable(
            partition, rows, reader, plain, self._turn_bytes, self._memory, self._inputs, away
        )


@dataclass(frozen=True, slots=True)
class _Turn:
    """Rows ``first:last`` of the output order: row ``i`` of them is row ``rows[i]`` of
    ``blocks``."""

    first: int
    last: int
    blocks: RowBlocks
    rows: Int64s


class _SpilledTable:
    """The rows of one partition, from its blocks."""

    def __init__(
        self,
        partition: int,
        ordered: OrderedRows,
        reader: SpillReader,
        schema: Any,
        turn_bytes: int,
        memory: BlockMemory,
        inputs: MappedInputs | None,
        away: Sequence[Leaf],
    ) -> None:
        """``away``: what shards are written without; of such rows, the bytes stay slices."""
        blocks = ordered.blocks
        self.partition = partition
        self.rows = ordered.rows
        self.payload_bytes: Int64s = self.rows[PAYLOAD_BYTES]
        self._place: Int64s = self.rows[RANGES].start
        self._weight = np.zeros(len(self.rows) + 1, np.int64)
        np.cumsum(self.rows[STORED_BYTES], out=self._weight[1:])
        self._ends = np.cumsum(blocks[BLOCK_LENGTH])
        self._starts = self._ends - blocks[BLOCK_LENGTH]
        self._first = np.concatenate([[0], np.cumsum(blocks[BLOCK_ROWS])])
        self._block_shard = blocks[BLOCK_SHARD]
        self._reader = reader
        self._schema = schema
        self._turn_bytes = turn_bytes
        self._memory = memory
        self._inputs = inputs
        self._away = away
        self._turn: _Turn | None = None

    def is_of(self, partition: int, away: Sequence[Leaf]) -> bool:
        """Whether these are the rows of that partition, as a shard without ``away`` takes them."""
        return self.partition == partition and tuple(self._away) == tuple(away)

    def close(self) -> None:
        """Close the spill files."""
        self._turn = None
        self._reader.close()

    def gather(self, start: int, stop: int, group: RowGroup) -> None:
        """Add rows ``start:stop`` of the output order to a row group."""
        while start < stop:
            if self._turn is None or not self._turn.first <= start < self._turn.last:
                self._turn = None  # before the next one is made: only one at a time
                self._turn = self._read_turn(start)
            turn = self._turn
            until = min(stop, turn.last)
            group.add(turn.blocks, turn.rows[start - turn.first : until - turn.first])
            start = until

    def _read_turn(self, start: int) -> _Turn:
        """The next rows that fit. Where their blocks fit, too, they stay where they are."""
        limit = self._weight[start] + self._turn_bytes
        last = int(np.searchsorted(self._weight, limit, side="right")) - 1
        last = max(last, start + 1)
        places = self._place[start:last]
        wanted = np.unique(np.searchsorted(self._first, places, side="right") - 1)
        sizes = (self._ends - self._starts)[wanted]
        if int(sizes.sum()) <= self._turn_bytes:
            return _Turn(start, last, self._opened(wanted), self._among(wanted, places))
        by_place = np.argsort(places, kind="stable")
        rows = np.empty(len(by_place), np.int64)
        rows[by_place] = np.arange(len(by_place))
        ordered, group = places[by_place], RowGroup(self._schema)
        reached, first = np.cumsum(sizes), 0
        while first < len(wanted):
            limit = int(reached[first] - sizes[first]) + self._turn_bytes
            stop = max(int(np.searchsorted(reached, limit, side="right")), first + 1)
            some = wanted[first:stop]
            low, high = np.searchsorted(ordered, [self._first[some[0]], self._first[some[-1] + 1]])
            group.add(self._opened(some), self._among(some, ordered[low:high]))
            first = stop
        blocks = RowBlocks.of_batch(group.taken().light, self._schema, self._away)
        return _Turn(start, last, blocks, rows)

    def _among(self, blocks: Int64s, places: Int64s) -> Int64s:
        """The numbers of rows among those of some blocks, by their places in the partition."""
        counts = (self._first[1:] - self._first[:-1])[blocks]
        before = np.cumsum(counts) - counts
        at = np.searchsorted(self._first[blocks], places, side="right") - 1
        found: Int64s = places - self._first[blocks][at] + before[at]
        return found

    def _opened(self, wanted: Int64s) -> RowBlocks:
        """The blocks with these numbers; those that lie one behind the other are read at once."""
        import pyarrow as pa

        sizes = (self._ends - self._starts)[wanted]
        view = self._memory.view(int(sizes.sum()))
        ends = np.cumsum(sizes)
        breaks = np.flatnonzero(np.diff(wanted) != 1) + 1
        asked = []
        for first, last in pairwise([0, *breaks.tolist(), len(wanted)]):
            here = view[int(ends[first] - sizes[first]) : int(ends[last - 1])]
            asked.append((here, int(self._starts[wanted[first]])))
        self._reader.read_many(asked)
        bounds = zip((ends - sizes).tolist(), ends.tolist(), strict=True)
        shards = self._block_shard[wanted].tolist()
        views = self._inputs.views(sorted(set(shards))) if self._inputs is not None else {}

        def shard(block: int) -> memoryview:
            if not views:
                raise ValueError("its values are in an input that is not mapped")
            return views[shards[block]]

        try:
            blocks = [view[start:end] for start, end in bounds]
            found = RowBlocks(blocks, self._schema, shard, self._away)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise StorageError(
                f"a block of rows in scratch does not read back: {error}",
                hint="check memory and disks; nothing was published",
            ) from None
        if found.light.num_rows != int((self._first[1:] - self._first[:-1])[wanted].sum()):
            raise InvariantError(f"blocks of partition {self.partition} have other rows")
        return found


class _TableShardWriter:
    """Writes one output shard, row group by row group."""

    def __init__(
        self,
        file: StagedFile,
        ordinal: int,
        container: Columnar,
        schema: Any,
        long: Collection[str],
        check: RowCheck | None,
        group: RowGroup | None,
    ) -> None:
        """``long``: columns of long values; ``group``: an empty one of an earlier shard, whose
        memory is used again."""
        self.ordinal = ordinal
        self._check = check
        self.file = file
        self._is_abandoned = False
        self._plain = plain_schema("of the job", schema)
        self._limits = GroupLimits.of(schema, container.options)
        self._rows = self._bytes = 0
        self._table = open_writer(
            container.suffixes[0], schema, container.options, self._write, long=long
        )
        columns: tuple[PlainColumn, ...] = ()  # what is checked is whole
        if check is None:
            columns = self._table.columns
        self.away = tuple(column.leaf for column in columns)
        if group is None or group.columns != columns:
            group = RowGroup(self._plain, columns)
        self.group = group

    def write_rows(self, payload: _SpilledTable, piece: OutputPiece) -> None:
        """The rows of one piece; those of the row group that is open at its end wait."""
        row, stop = piece.row_start, piece.row_stop
        if self._check is not None:
            self._check.expect(payload.rows.run(row, stop))
        running = np.zeros(stop - row + 1, np.int64)
        np.cumsum(payload.payload_bytes[row:stop], out=running[1:])
        first = row
        while row < stop:
            until = self._limits.end(running, row - first, stop - first, self._rows, self._bytes)
            closes, until = until <= stop - first, min(until, stop - first)
            payload.gather(row, first + until, self.group)
            self._rows += first + until - row
            self._bytes += int(running[until] - running[row - first])
            row = first + until
            if closes:
                self._write_group()

    def _write_group(self) -> None:
        if self._rows:
            rows = self.group.taken()
            if self._check is not None:
                self._check.feed(rows.light)
            self._table.write(rows)
            self._rows = self._bytes = 0

    def finish(self) -> Future[str]:
        """Nothing more comes: end the shard, and let the store take the rest; the receipt."""
        self._write_group()
        self._table.close()
        if not self.file.written_bytes:
            raise InvariantError(f"nothing was written of output shard {self.ordinal}")
        return self.file.finish()

    def abandon(self) -> None:
        """It will not be finished: let go of it."""
        self._is_abandoned = True
        self.file.abandon()

    def _write(self, slices: Sequence[memoryview]) -> None:
        if not self._is_abandoned:  # pyarrow ends what it is let go of
            self.file.write(slices)
