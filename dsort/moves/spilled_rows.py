"""Rows of tables, read back from the blocks of a partition's spill, in output order.

The blocks of a partition that fits are read once. The blocks of a larger partition are read again
for each run of rows that fits, so that memory does not depend on the size of the data.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct

from dsort.containers.columnar.blocks import RowBlocks, RowGroup
from dsort.containers.columnar.values import Leaf
from dsort.data.columns import Int64s, offsets_of, places_in, runs_that_fit
from dsort.data.index import BLOCK_LENGTH, BLOCK_ROWS, BLOCK_SHARD, RANGES, STORED_BYTES
from dsort.errors import InvariantError, StorageError
from dsort.moves.base import RowRun, WorkerParts, spans
from dsort.moves.map import MappedInputs
from dsort.scratch.nodes import ordered_rows
from dsort.scratch.spill import SpillReader
from dsort.scratch.tables import OrderedRows

TURN_SHARE = 3
"""The rows of a turn take at most 1 / ``TURN_SHARE`` of a worker's buffer, because their blocks,
the rows in order and a row group are in memory at the same time."""
TURN_BYTES_MAX = 1 << 30
"""Offsets of texts and binaries have 32 bits, so the bytes of a turn have to stay below 2 GiB."""


class RowMove:
    """Rows were spilled in blocks, by partition; long values may have stayed in the inputs."""

    skips_cache = False

    def __init__(self, parts: WorkerParts) -> None:
        self._nodes = parts.nodes
        self._mapped = parts.mapped
        self._inputs = parts.mapped if parts.movement.values_stay else None
        self._turn_bytes = min(parts.movement.buffer_bytes // TURN_SHARE, TURN_BYTES_MAX)
        self._memory = BlockMemory()

    def payloads(
        self, runs: Sequence[RowRun], nodes: Mapping[int, str], locations: str
    ) -> Generator[RowPayload, None, None]:
        """See :class:`~dsort.moves.base.Move`."""
        where = self._nodes.locations(locations)
        for partition, _, _ in spans(runs):
            rows = ordered_rows(self._nodes, nodes[partition], partition, where)
            reader = SpillReader(self._nodes, where, partition, rows.blocks)
            payload = RowPayload(
                partition, rows, reader, self._turn_bytes, self._memory, self._inputs
            )
            with closing(payload):
                yield payload

    def close(self) -> None:
        """See :class:`~dsort.moves.base.Move`."""
        self._mapped.close()


class BlockMemory:
    """Memory into which blocks are read. Its pages are kept, because new pages cost as much as the
    copy."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def view(self, size_bytes: int) -> memoryview:
        """Memory of ``size_bytes``; its earlier content is lost."""
        if size_bytes > len(self._memory):
            # The old memory is freed first, as there may be no room for both.
            self._memory = np.empty(0, np.uint8)
            self._memory = np.empty(size_bytes, np.uint8)
        return self._memory[:size_bytes].data


class _Turn(Struct, frozen=True):
    """Rows ``first:last`` of the output order, without the leaves ``away``. Row ``i`` of the turn
    is row ``rows[i]`` of ``blocks``."""

    first: int
    last: int
    away: tuple[Leaf, ...]
    blocks: RowBlocks
    rows: Int64s


class RowPayload:
    """The rows of one partition, from its blocks."""

    def __init__(
        self,
        partition: int,
        ordered: OrderedRows,
        reader: SpillReader,
        turn_bytes: int,
        memory: BlockMemory,
        inputs: MappedInputs | None,
    ) -> None:
        """``inputs``: the mapped inputs, if the long values of rows stayed in them."""
        blocks = ordered.blocks
        self.partition = partition
        self._ordered = ordered
        self._place: Int64s = ordered.rows[RANGES].start
        self._weight = offsets_of(ordered.rows[STORED_BYTES])
        self._ends = np.cumsum(blocks[BLOCK_LENGTH])
        self._starts = self._ends - blocks[BLOCK_LENGTH]
        self._first = offsets_of(blocks[BLOCK_ROWS])
        self._block_shard = blocks[BLOCK_SHARD]
        self._reader = reader
        self._turn_bytes = turn_bytes
        self._memory = memory
        self._inputs = inputs
        self._turn: _Turn | None = None

    def close(self) -> None:
        """Close the spill files."""
        self._turn = None
        self._reader.close()

    def ordered(self, start: int, stop: int) -> OrderedRows:
        """See :class:`~dsort.moves.base.Payload`."""
        return self._ordered.run(start, stop)

    def gather(self, start: int, stop: int, group: RowGroup) -> None:
        """Add rows ``start:stop`` of the output order to a row group."""
        while start < stop:
            turn = self._turn
            if turn is None or not turn.first <= start < turn.last or turn.away != group.away:
                turn = self._turn = None  # frees the memory before the next turn is read
                turn = self._turn = self._read_turn(start, group.schema, group.away)
            until = min(stop, turn.last)
            group.add(turn.blocks, turn.rows[start - turn.first : until - turn.first])
            start = until

    def _read_turn(self, start: int, schema: Any, away: tuple[Leaf, ...]) -> _Turn:
        """Read the next rows that fit. If all blocks with these rows fit, too, the turn refers to
        the rows in the blocks; else it copies them."""
        limit = self._weight[start] + self._turn_bytes
        last = int(np.searchsorted(self._weight, limit, side="right")) - 1
        # One row at least, even if it is larger than a turn.
        last = max(last, start + 1)
        places = self._place[start:last]
        wanted = np.unique(np.searchsorted(self._first, places, side="right") - 1)
        sizes = (self._ends - self._starts)[wanted]
        if int(sizes.sum()) <= self._turn_bytes:
            blocks = self._opened(wanted, schema, away)
            return _Turn(start, last, away, blocks, self._among(wanted, places))
        by_place = np.argsort(places, kind="stable")
        ordered, group = places[by_place], RowGroup(schema)
        for bounds in pairwise(runs_that_fit(sizes, self._turn_bytes).tolist()):
            some = wanted[slice(*bounds)]
            low, high = np.searchsorted(ordered, [self._first[some[0]], self._first[some[-1] + 1]])
            group.add(self._opened(some, schema, away), self._among(some, ordered[low:high]))
        blocks = RowBlocks.of_batch(group.taken().light, schema, away)
        return _Turn(start, last, away, blocks, places_in(by_place))

    def _among(self, blocks: Int64s, places: Int64s) -> Int64s:
        """The number of each row within ``blocks``. ``places``: the place of each row in the
        partition."""
        counts = (self._first[1:] - self._first[:-1])[blocks]
        before = np.cumsum(counts) - counts
        at = np.searchsorted(self._first[blocks], places, side="right") - 1
        found: Int64s = places - self._first[blocks][at] + before[at]
        return found

    def _opened(self, wanted: Int64s, schema: Any, away: tuple[Leaf, ...]) -> RowBlocks:
        """Read the blocks ``wanted``; neighbours are read together."""
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
            found = RowBlocks(blocks, schema, shard, away)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise StorageError(
                f"a block of rows in scratch cannot be read back: {error}",
                hint="check memory and disks; nothing was published",
            ) from None
        if found.light.num_rows != int((self._first[1:] - self._first[:-1])[wanted].sum()):
            raise InvariantError(f"blocks of partition {self.partition} have a wrong row count")
        return found
