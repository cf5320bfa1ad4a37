"""Find spill blocks again after a node was lost, and what it had was extracted again.

The same records in the same order are spilled again, by other workers and on other nodes. So the
order of a partition stays, and only the places of blocks are asked for once more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dsort.data.columns import Int64s
from dsort.data.index import BLOCK_LENGTH, BLOCK_ROWS, BLOCK_SHARD
from dsort.data.table import Table
from dsort.errors import InvariantError
from dsort.scratch.index import IndexStore
from dsort.scratch.nodes import ScratchNodes, ShardLocations
from dsort.scratch.ordered import OrderedRows
from dsort.scratch.requests import OrderedRowsOf

STAGE = "index"


@dataclass(frozen=True, slots=True)
class SpillBlocksOf:
    """Where the spill has the rows of one partition from some shards."""

    shards: Int64s
    partition: int

    def answer(self, store: IndexStore) -> list[Table]:
        return [store.spill_blocks(STAGE, each, self.partition) for each in self.shards.tolist()]


def ordered_rows(
    nodes: ScratchNodes, node: str, partition: int, locations: ShardLocations
) -> OrderedRows:
    """A partition that ``node`` has in order, with its spill blocks where they are now.
    ``InvariantError`` if there is more or less in them than there was."""
    ordered: OrderedRows = nodes.ask(node, OrderedRowsOf(partition))
    since = locations.since
    if since is None or ordered.version >= locations.version:
        return ordered
    asks = [
        (there, SpillBlocksOf(shards[since[shards] > ordered.version], partition))
        for there, shards in locations.by_node()
    ]
    answers = nodes.ask_all((there, request) for there, request in asks if len(request.shards))
    blocks = ordered.blocks
    moved = since[blocks[BLOCK_SHARD]] > ordered.version
    before = blocks.take(np.flatnonzero(moved))
    found = [each for some in answers for each in some if len(each)]
    now = Table.concat(found) if found else before.run(0, 0)
    if _totals(before) != _totals(now):
        raise InvariantError(
            f"partition {partition} has other records of the input shards that were extracted again"
        )
    # No shard has blocks in both, and what was one run of shards may be two by now.
    stay = blocks.take(np.flatnonzero(~moved))
    both = Table.concat([each for each in (now, stay) if len(each)] or [blocks])
    in_order = np.argsort(both[BLOCK_SHARD], kind="stable")
    return replace(ordered, blocks=both.take(in_order))


def _totals(blocks: Table) -> tuple[int, int]:
    """Bytes; and rows, if blocks have any."""
    rows = int(blocks[BLOCK_ROWS].sum()) if BLOCK_ROWS in blocks else 0
    return int(blocks[BLOCK_LENGTH].sum()), rows
