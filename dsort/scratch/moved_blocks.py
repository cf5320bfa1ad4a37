"""Partitions in order whose spill is elsewhere by now: a node was lost, and what it had was
extracted again.

The same records in the same order are spilled again, by other workers and on other nodes. So the
order of a partition stays, and only the places of blocks are asked for once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dsort.data.columns import Bools, Int64s
from dsort.errors import InvariantError
from dsort.scratch.index import IndexStore, SpillBlocks
from dsort.scratch.nodes import ScratchNodes, ShardLocations
from dsort.scratch.ordered import OrderedRows
from dsort.scratch.requests import OrderedRowsOf

__all__ = ["SpillBlocksOf", "ordered_rows"]

STAGE = "index"


@dataclass(frozen=True, slots=True)
class SpillBlocksOf:
    """Where the spill has the rows of one partition from some shards; those without any are left
    out."""

    shards: Int64s
    partition: int

    def answer(self, store: IndexStore) -> list[tuple[int, SpillBlocks]]:
        found = (
            (shard, store.spill_blocks(STAGE, shard, self.partition))
            for shard in self.shards.tolist()
        )
        return [(shard, blocks) for shard, blocks in found if blocks is not None]


def ordered_rows(
    nodes: ScratchNodes, node: str, partition: int, locations: ShardLocations
) -> OrderedRows:
    """A partition that ``node`` has in order, with its spill blocks where they are now.
    ``InvariantError`` if there is more or less in them than there was."""
    rows: OrderedRows = nodes.ask(node, OrderedRowsOf(partition))
    since = locations.since
    if since is None or rows.version >= locations.version:
        return rows
    asks = [
        (there, SpillBlocksOf(shards[since[shards] > rows.version], partition))
        for there, shards in locations.by_node()
    ]
    answers = nodes.ask_all((there, request) for there, request in asks if len(request.shards))
    moved = since[rows.block_shard] > rows.version
    before, now = _Blocks.of(rows), _Blocks.found([each for answer in answers for each in answer])
    if before.taken(moved).totals(rows) != now.totals(rows):
        raise InvariantError(
            f"partition {partition} has other records of the input shards that were extracted again"
        )
    return now.beside(before.taken(~moved)).put_into(rows)


@dataclass(frozen=True, slots=True, eq=False)
class _Blocks:
    """Columns, a row a block. ``counts``: how many rows each has, where that is known."""

    shard: Int64s
    worker: Int64s
    start: Int64s
    size_bytes: Int64s
    counts: Int64s

    @staticmethod
    def of(rows: OrderedRows) -> _Blocks:
        counts = np.zeros_like(rows.block_shard) if rows.block_rows is None else rows.block_rows
        columns = (rows.block_shard, rows.block_worker, rows.block_start, rows.block_bytes)
        return _Blocks(*columns, counts)

    @staticmethod
    def found(found: Sequence[tuple[int, SpillBlocks]]) -> _Blocks:
        none = np.zeros(0, np.int64)
        each = [blocks for _, blocks in found]
        lengths = [len(one.blocks.start) for one in each]
        return _Blocks(
            np.repeat(np.array([shard for shard, _ in found], np.int64), lengths),
            np.repeat(np.array([one.worker for one in each], np.int64), lengths),
            np.concatenate([none, *(one.blocks.start for one in each)]),
            np.concatenate([none, *(one.blocks.size_bytes for one in each)]),
            np.concatenate([none, *(one.blocks.rows for one in each)]),
        )

    def taken(self, chosen: Bools | Int64s) -> _Blocks:
        return _Blocks(*(column[chosen] for column in _columns(self)))

    def totals(self, rows: OrderedRows) -> tuple[int, int]:
        """Bytes; and rows, if they are counted."""
        counts = 0 if rows.block_rows is None else int(self.counts.sum())
        return int(self.size_bytes.sum()), counts

    def beside(self, other: _Blocks) -> _Blocks:
        """Both, in the order of their shards: no shard has blocks in both, and what was one run of
        shards may be two by now."""
        pairs = zip(_columns(self), _columns(other), strict=True)
        both = _Blocks(*(np.concatenate(pair) for pair in pairs))
        return both.taken(np.argsort(both.shard, kind="stable"))

    def put_into(self, rows: OrderedRows) -> OrderedRows:
        return replace(
            rows,
            block_shard=self.shard,
            block_worker=self.worker,
            block_start=self.start,
            block_bytes=self.size_bytes,
            block_rows=None if rows.block_rows is None else self.counts,
        )


def _columns(blocks: _Blocks) -> tuple[Int64s, ...]:
    return blocks.shard, blocks.worker, blocks.start, blocks.size_bytes, blocks.counts
