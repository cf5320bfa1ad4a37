"""The orderer: finds duplicate keys, orders a partition, and cuts it into output shards.

The room ``order`` makes all decisions. The orderer asks nodes for columns, passes them to
``order``, and writes the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from dsort.containers.base import Container
from dsort.data.columns import Bools, BytesColumn, Int32s, Int64s, UInt64s, row_numbers
from dsort.data.index import (
    BLOCK_ROWS,
    ENTRIES_BYTES,
    GROUP,
    MEMBERS,
    ORDINAL,
    PAYLOAD_BYTES,
    RANGES,
    SHARD,
    STORED_BYTES,
    SortKeys,
    sort_keys_of,
)
from dsort.data.joins import JoinRule
from dsort.data.segments import Segments
from dsort.data.table import Table
from dsort.data.tally import SAMPLES_MAX
from dsort.errors import InvariantError
from dsort.naming.names import readable
from dsort.order.base import Algorithm
from dsort.order.cut import cut_partition
from dsort.order.duplicates import find_duplicates, repeated_hashes, words_as_bytes
from dsort.order.joined_places import JoinedPlaces
from dsort.order.mixing_counts import count_part
from dsort.order.sort import order_rows
from dsort.scratch.index import PartitionRows
from dsort.scratch.logs import LineWriter, lines_file, reaction_line
from dsort.scratch.nodes import ScratchNodes
from dsort.scratch.ordered import ORDERED, OrderedRows
from dsort.scratch.requests import (
    KeyHashes,
    KeyRows,
    KnownKeys,
    KnownKeysOf,
    OrderedRowsOf,
    PartitionRowsOf,
    SameHashes,
)
from dsort.workers.joiner import Joiner, keys_of
from dsort.workers.source import read_inputs
from dsort.workers.tasks import (
    CutDone,
    CutTask,
    DuplicatesDone,
    DuplicatesTask,
    OrderDone,
    OrderRunTask,
    OrderTask,
    RunOrdered,
)

__all__ = ["Orderer"]


class Orderer:
    """Plans for one job, in one worker."""

    def __init__(
        self,
        nodes: ScratchNodes,
        algorithm: Algorithm,
        container: Container,
        *,
        spill: bool,
        has_outputs: bool = False,
        join: JoinRule | None = None,
    ) -> None:
        """``has_outputs``: there are several outputs, and it is counted what each gets."""
        self._joiner = None
        if join is not None:
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
        """Find the records of one range of hashes that are the same as an earlier record."""
        locations = self._scratch_nodes.locations(task.locations)
        request = SameHashes if task.by_content else KeyHashes
        asks = (
            (node, request(task.stage, shards, task.low, task.high))
            for node, shards in locations.by_node()
        )
        parts: list[KeyRows] = list(self._scratch_nodes.ask_all(asks))
        key_hash = np.concatenate([np.zeros(0, np.uint64), *(part.key_hash for part in parts)])
        known = self._known(task, key_hash)
        twice = repeated_hashes(key_hash)
        if len(known.key_hash):
            twice = np.union1d(twice, known.key_hash)
        if len(twice) == 0:
            return DuplicatesDone(task.part, self._scratch_nodes.node, 0, ())
        at = np.minimum(np.searchsorted(twice, key_hash), len(twice) - 1)
        chosen = np.flatnonzero(twice[at] == key_hash)
        shards = np.concatenate([part.shard for part in parts])[chosen]
        ordinals = np.concatenate([part.ordinal for part in parts])[chosen]
        rows = np.concatenate([part.row for part in parts])[chosen]
        key_hash, by_position = key_hash[chosen], np.lexsort((ordinals, shards))
        if task.drop:
            by_position = by_position[self._counting(task.drop, shards, ordinals)[by_position]]
            if not len(by_position):  # an earlier search left all of them out
                return DuplicatesDone(task.part, self._scratch_nodes.node, 0, ())
        shards, ordinals = shards[by_position], ordinals[by_position]
        rows, key_hash = rows[by_position], key_hash[by_position]
        keys = keys_of(self._scratch_nodes, locations, task.stage, shards, rows)
        compared = keys
        if task.by_content:
            halves = [part.more for part in parts if part.more is not None]
            compared = words_as_bytes(np.concatenate(halves)[chosen][by_position])
        found = find_duplicates(compared, key_hash, keep_last=task.keep_last)
        found = found.with_known(compared, key_hash, known.keys, known.key_hash)
        if task.want_rows:
            self._store.write_positions(
                f"{task.name}-{task.part}.col",
                shards[found.rows],
                ordinals[found.rows],
                found.nth,
                keys.take(found.rows),
            )
        if task.reaction:
            by_hash = np.lexsort(
                (found.rows, key_hash[found.rows])
            )  # as the parts follow each other
            self._tell(task, shards, keys, found.rows[by_hash])
        first = found.rows[:SAMPLES_MAX].tolist()
        samples = tuple((int(shards[at]), int(ordinals[at]), keys[at]) for at in first)
        return DuplicatesDone(task.part, self._scratch_nodes.node, len(found), samples)

    def _known(self, task: DuplicatesTask, key_hash: UInt64s) -> KnownKeys:
        """The keys of these hashes that the result has by now."""
        hashes = np.unique(key_hash) if task.known else key_hash[:0]
        asks = ((node, KnownKeysOf(numbers, hashes)) for node, numbers in task.known)
        found: list[KnownKeys] = list(self._scratch_nodes.ask_all(asks))
        empty = np.zeros(0, np.uint64)
        return KnownKeys(
            np.concatenate([empty, *(each.key_hash for each in found)]),
            BytesColumn.concat([each.keys for each in found]),
        )

    def _tell(self, task: DuplicatesTask, shards: Int64s, keys: BytesColumn, rows: Int64s) -> None:
        names = [shard.name for shard in read_inputs(self._store)]
        writer = LineWriter(self._store.scratch, lines_file(task.name, task.part))
        writer.write(
            reaction_line(
                task.reaction,
                shard=names[int(shards[row])],
                name=readable(keys[row]),
            )
            for row in rows.tolist()
        )
        writer.close()

    def order(self, task: OrderTask) -> OrderDone:
        """Put one partition in output order and store it."""
        (rows,) = self._partition_rows([task])
        return self._ordered(task, rows)

    def order_run(self, run: OrderRunTask) -> RunOrdered:
        """The same of some, which all fit in memory."""
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
        _check_permutation(order, len(rows))
        dropped = 0
        if task.drop:
            kept = self._kept(task.drop, rows)[order]
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
        """The rows in output order, with where their bytes are."""
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
            parts.sort(key=lambda part: part[0])
        return [PartitionRows.concat([rows for _, rows in parts]) for parts in found]

    def _counting(self, drop: str, shards: Int64s, ordinals: Int64s) -> Bools:
        """Which records are not among the positions in the file ``drop``."""
        positions = self._store.positions(drop)
        low, ordinal = positions.array("shard"), positions.array("ordinal")
        counting = np.ones(len(shards), np.bool_)
        for shard in np.unique(shards).tolist():
            start, stop = np.searchsorted(low, [shard, shard + 1]).tolist()
            mine = np.flatnonzero(shards == shard)
            counting[mine] = ~np.isin(ordinals[mine], ordinal[start:stop])
        return counting

    def _kept(self, drop: str, rows: Table) -> Bools:
        """Which rows are not among the positions to drop."""
        positions = self._store.positions(drop)
        shards, ordinals = positions.array("shard"), positions.array("ordinal")
        kept = np.ones(len(rows), np.bool_)
        for start, stop, shard in _runs(rows[SHARD]):
            low, high = np.searchsorted(shards, [shard, shard + 1]).tolist()
            kept[start:stop] = ~np.isin(rows[ORDINAL][start:stop], ordinals[low:high])
        return kept

    def cut(self, task: CutTask) -> CutDone:
        """Cut one ordered partition into pieces of output shards."""
        ordered: OrderedRows = self._scratch_nodes.ask(task.node, OrderedRowsOf(task.partition))
        rows = ordered.by_record()
        pieces, state = cut_partition(
            task.rule,
            task.partition,
            groups=rows.get(GROUP),
            payload_bytes=rows[PAYLOAD_BYTES],
            stored_bytes=rows[STORED_BYTES],
            members=rows[MEMBERS],
            entries=rows.get(ENTRIES_BYTES),
            state=task.state,
            file_bytes=self._container.file_bytes,
            encoded=task.encoded,
            stored_before=task.stored_before,
            source=rows[SHARD],
        )
        mixing = count_part(task.mixing, task.state, pieces, rows[SHARD])
        return CutDone(task.partition, pieces, state, mixing)


def _sums_by_group(rows: Table) -> tuple[tuple[int, int, int], ...]:
    """(records, payload, stored bytes) of each group, from 0 on."""
    group = rows[GROUP]
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
    """Every row exactly once, or nothing goes on."""
    seen = np.zeros(count, np.bool_)
    seen[order] = True
    if len(order) != count or not seen.all():
        raise InvariantError("the order of a partition is not a permutation of its records")


def _runs(shard: Int32s) -> list[tuple[int, int, int]]:
    """(first row, row after the last, shard) of each shard's rows."""
    bounds = np.flatnonzero(np.diff(shard, prepend=-1, append=-1)).tolist()
    return [(start, stop, int(shard[start])) for start, stop in pairwise(bounds)]


def _ranges_in_blocks(rows: Table, *, are_rows: bool) -> Segments:
    """Where the bytes of ``rows``, in input order, are in the blocks of the spill, which are read
    one after the other. ``are_rows``: of tables, the number of each row in the blocks."""
    stored, numbers = rows[STORED_BYTES], row_numbers(len(rows) + 1)
    starts = numbers[:-1] if are_rows else np.cumsum(stored) - stored
    return Segments(numbers, starts, stored, np.zeros(0, np.uint8))
