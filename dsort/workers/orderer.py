"""The orderer: finds duplicate keys, orders a partition, and cuts it into output shards.

The room ``order`` makes all decisions. The orderer asks nodes for columns, passes them to
``order``, and writes the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from dsort.containers.base import Container
from dsort.data.columns import Bools, BytesColumn, Int32s, Int64s, UInt64s, numbers_at, row_numbers
from dsort.data.index import Origins, Segments, SortKeys
from dsort.data.joins import JoinRule
from dsort.data.tally import SAMPLES_MAX
from dsort.errors import InvariantError
from dsort.naming.names import readable
from dsort.order.base import Algorithm
from dsort.order.cut import cut_partition
from dsort.order.duplicates import find_duplicates, repeated_hashes, words_as_bytes
from dsort.order.joined_places import JoinedPlaces
from dsort.order.mixing_counts import count_part
from dsort.order.sort import order_rows
from dsort.scratch.index import PartitionRows, ShardRows
from dsort.scratch.logs import LineWriter, lines_file, reaction_line
from dsort.scratch.nodes import ScratchNodes
from dsort.scratch.ordered import OrderedRows, RecordColumns
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

    def _ordered(self, task: OrderTask, rows: PartitionRows) -> OrderDone:
        columns = _Columns(rows, spill=self._spill)
        if self._joiner is not None and task.stage == "join":
            done = self._joiner.search(task, rows, columns.sort)
            return OrderDone(task.partition, self._scratch_nodes.node, 0, 0, 0, 0, join=done)
        if self._joiner is not None:
            return self._join(task, rows, columns, self._joiner)
        order = order_rows(columns.sort, decreasing=self._decreasing)
        _check_permutation(order, columns.sort.count)
        dropped = 0
        if task.drop:
            kept = self._kept(task.drop, columns)[order]
            dropped = len(order) - int(kept.sum())
            order = order[kept]
        placement = self._algorithm.placement
        if placement is not None:
            order = placement.arranged(columns.sort, order, self._algorithm.seed_text)
        return self._stored(task, columns.ordered(order), dropped)

    def _join(
        self, task: OrderTask, rows: PartitionRows, columns: _Columns, joiner: Joiner
    ) -> OrderDone:
        joined, done = joiner.join(task, rows, columns.sort)
        if len(np.unique(joined.rows)) != len(joined.rows):
            raise InvariantError("a join has a record twice")
        ordered = replace(columns.ordered(joined.rows), record_offsets=joined.record_offsets)
        return replace(self._stored(task, ordered, 0), join=done)

    def _stored(self, task: OrderTask, ordered: OrderedRows, dropped: int) -> OrderDone:
        version = self._scratch_nodes.locations(task.locations).version
        ordered = replace(ordered, version=version)
        self._store.write_ordered(task.partition, ordered)
        records = ordered.by_record()
        count = len(records.stored_bytes)
        return OrderDone(
            partition=task.partition,
            node=self._scratch_nodes.node,
            records=count,
            dropped=dropped,
            payload_bytes=int(ordered.payload_bytes.sum()),
            stored_bytes=int(ordered.stored_bytes.sum()),
            by_output=_sums_by_group(records) if self._has_outputs and count else (),
        )

    def _partition_rows(self, tasks: Sequence[OrderTask]) -> list[PartitionRows]:
        """The rows of each partition, from all nodes, in shard order."""
        partitions = tuple(task.partition for task in tasks)
        asks = (
            (node, PartitionRowsOf(tasks[0].stage, shards, partitions))
            for node, shards in self._scratch_nodes.locations(tasks[0].locations).by_node()
        )
        found: list[list[tuple[int, ShardRows]]] = [[] for _ in tasks]
        for answer in self._scratch_nodes.ask_all(asks):
            for parts, some in zip(found, answer, strict=True):
                parts += some
        for parts in found:
            parts.sort(key=lambda part: part[0])
        return [
            PartitionRows(tuple(shard for shard, _ in parts), tuple(rows for _, rows in parts))
            for parts in found
        ]

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

    def _kept(self, drop: str, columns: _Columns) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which rows are not among the positions to drop."""
        positions = self._store.positions(drop)
        shards, ordinals = positions.array("shard"), positions.array("ordinal")
        kept = np.ones(columns.sort.count, np.bool_)
        for start, stop, shard in columns.runs():
            low, high = np.searchsorted(shards, [shard, shard + 1]).tolist()
            kept[start:stop] = ~np.isin(columns.ordinal[start:stop], ordinals[low:high])
        return kept

    def cut(self, task: CutTask) -> CutDone:
        """Cut one ordered partition into pieces of output shards."""
        ordered: OrderedRows = self._scratch_nodes.ask(task.node, OrderedRowsOf(task.partition))
        rows = ordered.by_record()
        pieces, state = cut_partition(
            task.rule,
            task.partition,
            groups=rows.group,
            payload_bytes=rows.payload_bytes,
            stored_bytes=rows.stored_bytes,
            members=rows.members,
            entries=rows.entries_bytes,
            state=task.state,
            file_bytes=self._container.file_bytes,
            encoded=task.encoded,
            stored_before=task.stored_before,
            source=rows.shard,
        )
        mixing = count_part(task.mixing, task.state, pieces, rows.shard)
        return CutDone(task.partition, pieces, state, mixing)


def _sums_by_group(rows: RecordColumns) -> tuple[tuple[int, int, int], ...]:
    """(records, payload, stored bytes) of each group, from 0 on."""
    assert rows.group is not None, "records were dealt out to outputs"
    begins = np.searchsorted(rows.group, np.arange(int(rows.group.max(initial=-1)) + 2))
    return tuple(
        (
            stop - start,
            int(rows.payload_bytes[start:stop].sum()),
            int(rows.stored_bytes[start:stop].sum()),
        )
        for start, stop in pairwise(begins.tolist())
    )


def _check_permutation(order: Int64s, count: int) -> None:
    """Every row exactly once, or nothing goes on."""
    seen = np.zeros(count, np.bool_)
    seen[order] = True
    if len(order) != count or not seen.all():
        raise InvariantError("the order of a partition is not a permutation of its records")


def _joined(parts: Sequence[Int32s]) -> Int32s:
    """All parts, one after the other; without room for them where all numbers are one."""
    column = np.concatenate(parts)
    if len(column) and int(column.min()) == int(column.max()):
        return np.broadcast_to(column[:1].copy(), column.shape)
    return column


class _Columns:
    """All rows of one partition, in input order, as one set of columns."""

    def __init__(self, rows: PartitionRows, *, spill: bool) -> None:
        parts = rows.parts
        none, none32 = np.zeros(0, np.int64), np.zeros(0, np.int32)
        counts = [len(part) for part in parts]
        self._rows = rows
        self._spill = spill
        self.sort = SortKeys.concat([part.sort for part in parts])
        self.ordinal = np.concatenate([none, *(part.ordinal for part in parts)])
        self._shard = np.repeat(np.array(rows.shards, np.int32), counts)
        for part, end in zip(parts, np.cumsum(counts), strict=True):
            if part.shard_of is not None:
                self._shard[end - len(part) : end] = part.shard_of
        self._members = _joined([none32, *(part.members for part in parts)])
        self._payload = np.concatenate([none, *(part.payload_bytes for part in parts)])
        self._stored = np.concatenate([none, *(part.stored_bytes for part in parts)])
        hashes = [part.content_hash for part in parts if part.content_hash is not None]
        self._content_hash = np.concatenate(hashes) if hashes else None
        entries = [part.entries for part in parts if part.entries is not None]
        self._entries = BytesColumn.concat(entries) if entries else None
        origins = [part.origins for part in parts if part.origins is not None]
        self._origins = Origins.concat(origins) if origins else None

    def runs(self) -> list[tuple[int, int, int]]:
        """(first row, row after the last, shard) of each shard's rows."""
        bounds = np.flatnonzero(np.diff(self._shard, prepend=-1, append=-1)).tolist()
        return [(start, stop, int(self._shard[start])) for start, stop in pairwise(bounds)]

    def ordered(self, order: Int64s) -> OrderedRows:
        """The rows in output order, with where their bytes are."""
        parts = self._rows.parts
        if any(part.blocks is not None for part in parts):
            return self._ordered_tables(order)
        stored = numbers_at(self._stored, order)
        is_one = self._members.strides == (0,)
        members = self._members[: len(order)] if is_one else self._members[order]
        if self._spill:
            # Blocks of the spill, one a shard, are read one after the other: so the rows lie one
            # after the other in input order.
            starts = np.cumsum(self._stored) - self._stored
            segments = Segments(
                row_numbers(len(order) + 1),
                numbers_at(starts, order),
                stored,
                np.zeros(0, np.uint8),
            )
        else:
            segments = Segments.concat([p.segments for p in parts if p.segments is not None])
            segments = segments.take(order)
        shard = self._shard[order]
        return OrderedRows(
            source=np.broadcast_to(np.int32(0), shard.shape) if self._spill else shard,
            shard=shard,
            ordinal=numbers_at(self.ordinal, order),
            group=None if self.sort.group is None else self.sort.group[order],
            members=members,
            payload_bytes=numbers_at(self._payload, order),
            stored_bytes=stored,
            segments=segments,
            content_hash=None if self._content_hash is None else self._content_hash[order],
            block_shard=np.array(self._rows.shards, np.int64),
            block_worker=np.array([part.worker for part in parts], np.int64),
            block_start=np.array([part.spill_start for part in parts], np.int64),
            block_bytes=np.array([int(part.stored_bytes.sum()) for part in parts], np.int64),
            entries=None if self._entries is None else self._entries.take(order),
            origins=None if self._origins is None else self._origins.take(order),
        )

    def _ordered_tables(self, order: Int64s) -> OrderedRows:
        """The same for rows of tables: a segment is the row's number among all of the partition,
        which lie in the blocks one after the other."""
        found = [(part, part.blocks) for part in self._rows.parts if part.blocks is not None]
        counts = [len(blocks.rows) for _, blocks in found]
        workers = np.array([part.worker for part, _ in found], np.int64)
        segments = Segments(
            np.arange(len(order) + 1, dtype=np.int64),
            order.astype(np.int64),
            self._stored[order],
            np.zeros(0, np.uint8),
        )
        return OrderedRows(
            source=np.zeros(len(order), np.int32),
            shard=self._shard[order],
            ordinal=self.ordinal[order],
            group=None if self.sort.group is None else self.sort.group[order],
            members=self._members[order],
            payload_bytes=self._payload[order],
            stored_bytes=self._stored[order],
            segments=segments,
            content_hash=None if self._content_hash is None else self._content_hash[order],
            block_shard=np.repeat(np.array(self._rows.shards, np.int64), counts),
            block_worker=np.repeat(workers, counts),
            block_start=np.concatenate([blocks.start for _, blocks in found]),
            block_bytes=np.concatenate([blocks.size_bytes for _, blocks in found]),
            block_rows=np.concatenate([blocks.rows for _, blocks in found]),
            origins=None if self._origins is None else self._origins.take(order),
        )
