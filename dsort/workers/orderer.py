"""The orderer: finds duplicate keys, orders a partition, and cuts it into output shards.

The folder ``order`` makes all decisions. The orderer requests columns from nodes, passes them to
``order``, and writes the result."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from dsort.containers.base import Container
from dsort.data.columns import BytesColumn, Int64s, UInt64s, row_numbers
from dsort.data.index import (
    BLOCK_ROWS,
    GROUP,
    KEY_HASH,
    KEYS,
    ORDINAL,
    PAYLOAD_BYTES,
    RANGES,
    ROW,
    SAME_MORE,
    SHARD,
    STORED_BYTES,
    SortKeys,
    sort_keys_of,
)
from dsort.data.segments import Segments
from dsort.data.table import Table
from dsort.data.tally import SAMPLES_MAX
from dsort.errors import InvariantError
from dsort.moves.input_shard import read_inputs
from dsort.naming.names import readable
from dsort.order.base import Algorithm
from dsort.order.cut import cut_partition
from dsort.order.equal_keys import (
    JoinedPlaces,
    JoinRule,
    find_duplicates,
    repeated_hashes,
    words_as_bytes,
)
from dsort.order.mixing_counts import count_part
from dsort.order.sort import order_rows
from dsort.scratch.index import PartitionRows
from dsort.scratch.logs import LineWriter, lines_file, reaction_line
from dsort.scratch.nodes import ScratchNodes
from dsort.scratch.requests import (
    FOUND,
    HashesOf,
    KnownKeysOf,
    OrderedRowsOf,
    PartitionRowsOf,
)
from dsort.scratch.tables import NTH, ORDERED, POSITION_SHARD, OrderedRows, by_position
from dsort.workers.tasks import (
    CutDone,
    CutTask,
    DuplicatesDone,
    DuplicatesTask,
    OrderDone,
    OrderRunTask,
    OrderTask,
    RunOrdered,
    Search,
)

if TYPE_CHECKING:
    from dsort.workers.joiner import Joiner


class Orderer:
    """Plans the output shards of one job, in one worker."""

    def __init__(
        self,
        nodes: ScratchNodes,
        algorithm: Algorithm,
        container: Container,
        *,
        spill: bool,
        has_outputs: bool = False,
        join: JoinRule = JoinRule(),
    ) -> None:
        """``has_outputs``: the job has several outputs, and counts records and bytes of each."""
        self._joiner = None
        if join:
            from dsort.workers.joiner import Joiner  # few jobs join

            places = algorithm if isinstance(algorithm, JoinedPlaces) else None
            self._joiner = Joiner(nodes, join, decreasing=algorithm.decreasing, places=places)
        self._has_outputs = has_outputs
        self._scratch_nodes = nodes
        self._container = container  # of the outputs
        self._store = nodes.store
        self._algorithm = algorithm
        self._decreasing = algorithm.decreasing
        self._spill = spill

    def duplicates(self, task: DuplicatesTask) -> DuplicatesDone:
        """Find the duplicates of earlier records in one range of hashes."""
        locations, search = self._scratch_nodes.locations(task.locations), task.search
        asks = (
            (node, HashesOf(task.stage, shards, task.low, task.high, search.by_content))
            for node, shards in locations.by_node()
        )
        nothing = DuplicatesDone(task.part, self._scratch_nodes.node, 0, ())
        hashed = Table.concat(list(self._scratch_nodes.ask_all(asks)), FOUND)
        known = self._known(search, hashed[KEY_HASH])
        twice = repeated_hashes(hashed[KEY_HASH])
        # If the result already has a key, a single record with this key is a duplicate.
        if len(known):
            twice = np.union1d(twice, known[KEY_HASH])
        if len(twice) == 0:
            return nothing
        at = np.minimum(np.searchsorted(twice, hashed[KEY_HASH]), len(twice) - 1)
        rows = by_position(hashed.take(np.flatnonzero(twice[at] == hashed[KEY_HASH])))
        if search.without:
            dropped = self._store.positions(search.without)
            rows = rows.take(np.flatnonzero(~dropped.contains(rows[POSITION_SHARD], rows[ORDINAL])))
            if not len(rows):  # an earlier search already leaves out all of them
                return nothing
        shards, key_hash = rows[POSITION_SHARD], rows[KEY_HASH]
        from dsort.workers.joiner import keys_of  # most jobs have no equal hashes

        keys = keys_of(self._scratch_nodes, locations, task.stage, shards, rows[ROW])
        # Records with equal hashes are only candidates: the keys, or the rest of the digest,
        # decide.
        compared = words_as_bytes(rows[SAME_MORE]) if search.by_content else keys
        found = find_duplicates(compared, key_hash, keep_last=search.keep_last)
        found = found.with_known(compared, key_hash, known[KEYS], known[KEY_HASH])
        if search.want_rows:
            own = rows.only((POSITION_SHARD, ORDINAL)).with_(KEYS, keys).take(found.rows)
            self._store.write_table(f"{search.name}-{task.part}.col", own.with_(NTH, found.nth))
        if search.reaction:
            # In the order of hashes, so that the lines of consecutive parts are in order, too.
            by_hash = np.lexsort((found.rows, key_hash[found.rows]))
            self._tell(task, shards, keys, found.rows[by_hash])
        first = found.rows[:SAMPLES_MAX].tolist()
        samples = tuple((int(shards[at]), int(rows[ORDINAL][at]), keys[at]) for at in first)
        return DuplicatesDone(task.part, self._scratch_nodes.node, len(found), samples)

    def _known(self, search: Search, key_hash: UInt64s) -> Table:
        """The keys with these hashes that the result has already."""
        hashes = np.unique(key_hash) if search.known else key_hash[:0]
        asks = ((node, KnownKeysOf(numbers, hashes)) for node, numbers in search.known)
        return Table.concat(list(self._scratch_nodes.ask_all(asks)), (KEY_HASH, KEYS))

    def _tell(self, task: DuplicatesTask, shards: Int64s, keys: BytesColumn, rows: Int64s) -> None:
        names = [shard.name for shard in read_inputs(self._store)]
        writer = LineWriter(self._store.scratch, lines_file(task.search.name, task.part))
        writer.write(
            reaction_line(
                task.search.reaction,
                shard=names[int(shards[row])],
                name=readable(keys[row]),
            )
            for row in rows.tolist()
        )
        writer.close()

    def order(self, task: OrderTask) -> OrderDone:
        """Put one partition in output order, and store it."""
        (rows,) = self._partition_rows([task])
        return self._ordered(task, rows)

    def order_run(self, run: OrderRunTask) -> RunOrdered:
        """Put several partitions, which fit in memory together, in output order."""
        found = self._partition_rows(run.partitions)
        parts = zip(run.partitions, found, strict=True)
        return RunOrdered(tuple(self._ordered(task, rows) for task, rows in parts))

    def _ordered(self, task: OrderTask, partition: PartitionRows) -> OrderDone:
        rows = partition.rows
        sort = sort_keys_of(rows)
        if self._joiner is not None and task.stage == "join":
            done = self._joiner.search(task, rows, sort)
            return OrderDone(task.partition, self._scratch_nodes.node, 0, 0, 0, 0, join=done)
        if self._joiner is not None:
            return self._join(task, partition, sort, self._joiner)
        order = order_rows(sort, decreasing=self._decreasing)
        # Promise 1 of ARCHITECTURE.md is checked here: no record is lost, and no record is there
        # twice.
        _check_permutation(order, len(rows))
        dropped = 0
        if task.drop:
            kept = ~self._store.positions(task.drop).contains(rows[SHARD], rows[ORDINAL])[order]
            dropped = len(order) - int(kept.sum())
            order = order[kept]
        placement = self._algorithm.placement
        if placement is not None:
            order = placement.arranged(sort, order, self._algorithm.seed_text)
        return self._stored(task, self._in_order(partition, order), dropped)

    def _join(
        self, task: OrderTask, partition: PartitionRows, sort: SortKeys, joiner: Joiner
    ) -> OrderDone:
        joined, done = joiner.join(task, partition.rows, sort)
        if len(np.unique(joined.rows)) != len(joined.rows):
            raise InvariantError("a join has a record twice")
        ordered = self._in_order(partition, joined.rows)
        ordered = replace(ordered, record_offsets=joined.record_offsets)
        return replace(self._stored(task, ordered, 0), join=done)

    def _in_order(self, partition: PartitionRows, order: Int64s) -> OrderedRows:
        """The rows in output order, with the places of their bytes."""
        rows, blocks = partition.rows.only(ORDERED), partition.blocks
        if self._spill or BLOCK_ROWS in blocks:
            rows = rows.with_(RANGES, _ranges_in_blocks(rows, are_rows=BLOCK_ROWS in blocks))
        ordered = rows.take(order)
        return OrderedRows(ordered.with_(RANGES, ordered[RANGES].trimmed()), blocks)

    def _stored(self, task: OrderTask, ordered: OrderedRows, dropped: int) -> OrderDone:
        version = self._scratch_nodes.locations(task.locations).version
        ordered = replace(ordered, version=version)
        self._store.write_ordered(task.partition, ordered)
        records = ordered.by_record()
        return OrderDone(
            partition=task.partition,
            node=self._scratch_nodes.node,
            records=len(records),
            dropped=dropped,
            payload_bytes=int(records[PAYLOAD_BYTES].sum()),
            stored_bytes=int(records[STORED_BYTES].sum()),
            by_output=_sums_by_group(records) if self._has_outputs and len(records) else (),
        )

    def _partition_rows(self, tasks: Sequence[OrderTask]) -> list[PartitionRows]:
        """The rows of each partition, from all nodes, in shard order."""
        partitions = tuple(task.partition for task in tasks)
        asks = (
            (node, PartitionRowsOf(tasks[0].stage, shards, partitions))
            for node, shards in self._scratch_nodes.locations(tasks[0].locations).by_node()
        )
        found: list[list[tuple[int, PartitionRows]]] = [[] for _ in tasks]
        for answer in self._scratch_nodes.ask_all(asks):
            for parts, some in zip(found, answer, strict=True):
                parts += some
        for parts in found:
            # Nodes answer in any order, but rows with equal sort keys keep the order of the inputs.
            parts.sort(key=lambda part: part[0])
        return [PartitionRows.concat([rows for _, rows in parts]) for parts in found]

    def cut(self, task: CutTask) -> CutDone:
        """Cut one ordered partition into pieces of output shards."""
        rows = self._scratch_nodes.ask(task.node, OrderedRowsOf(task.partition)).by_record()
        pieces, state = cut_partition(
            task.rule,
            task.partition,
            rows,
            task.state,
            self._container.file_bytes,
            task.encoded,
            task.stored_before,
        )
        mixing = count_part(task.mixing, task.state, pieces, rows[SHARD])
        return CutDone(task.partition, pieces, state, mixing)


def _sums_by_group(rows: Table) -> tuple[tuple[int, int, int], ...]:
    """For each group, from 0 on: (records, payload bytes, stored bytes)."""
    group = rows[GROUP]
    # In output order, the groups follow one another.
    begins = np.searchsorted(group, np.arange(int(group.max(initial=-1)) + 2))
    return tuple(
        (
            stop - start,
            int(rows[PAYLOAD_BYTES][start:stop].sum()),
            int(rows[STORED_BYTES][start:stop].sum()),
        )
        for start, stop in pairwise(begins.tolist())
    )


def _check_permutation(order: Int64s, count: int) -> None:
    """``InvariantError`` unless ``order`` has every row exactly once."""
    seen = np.zeros(count, np.bool_)
    seen[order] = True
    if len(order) != count or not seen.all():
        raise InvariantError("the order of a partition is not a permutation of its records")


def _ranges_in_blocks(rows: Table, *, are_rows: bool) -> Segments:
    """The ranges of ``rows``, in input order, within the blocks of the spill, as if the blocks
    followed one another. ``are_rows``: for tables, the number of each row in the blocks instead of
    bytes."""
    stored, numbers = rows[STORED_BYTES], row_numbers(len(rows) + 1)
    starts = numbers[:-1] if are_rows else np.cumsum(stored) - stored
    return Segments(numbers, starts, stored, np.zeros(0, np.uint8))
