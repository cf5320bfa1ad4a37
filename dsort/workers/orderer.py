"""The planning verbs of a worker: find duplicate keys, order a bucket, cut it.

All decisions are ``core``'s; this reads columns from scratch, hands them over, and writes what
comes back.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from dsort.core.columns import BytesColumn, Int64s
from dsort.core.duplicates import find_duplicates, repeated_hashes
from dsort.core.order import order_rows
from dsort.core.plan import cut_bucket
from dsort.core.record_index import Segments, SortKeys
from dsort.core.sort_rule import SortRule
from dsort.core.tally import SAMPLES_MAX
from dsort.errors import InvariantError
from dsort.workers.index_store import BucketRows, IndexStore, OrderedRows
from dsort.workers.tasks import (
    CutDone,
    CutTask,
    DuplicatesDone,
    DuplicatesTask,
    OrderDone,
    OrderTask,
)

__all__ = ["Orderer"]


class Orderer:
    """Plans for one job, in one worker."""

    def __init__(self, store: IndexStore, rule: SortRule, *, spill: bool) -> None:
        self._store = store
        self._rule = rule
        self._spill = spill

    def duplicates(self, task: DuplicatesTask) -> DuplicatesDone:
        """Find the records of one range of key hashes whose key an earlier record has."""
        hashes, shard, ordinal, row = [], [], [], []
        for number in task.shards:
            key_hash, ordinals = self._store.key_hashes(task.stage, number)
            mine = key_hash >= np.uint64(task.low)
            if task.high:
                mine &= key_hash < np.uint64(task.high)
            rows = np.flatnonzero(mine)
            hashes.append(key_hash[rows])
            ordinal.append(ordinals[rows])
            shard.append(np.full(len(rows), number, np.int64))
            row.append(rows)
        key_hash = np.concatenate([np.zeros(0, np.uint64), *hashes])
        twice = repeated_hashes(key_hash)
        if len(twice) == 0:
            return DuplicatesDone(task.part, 0, ())
        at = np.minimum(np.searchsorted(twice, key_hash), len(twice) - 1)
        chosen = np.flatnonzero(twice[at] == key_hash)
        shards, ordinals = np.concatenate(shard)[chosen], np.concatenate(ordinal)[chosen]
        rows, key_hash = np.concatenate(row)[chosen], key_hash[chosen]
        by_position = np.lexsort((ordinals, shards))
        shards, ordinals = shards[by_position], ordinals[by_position]
        rows, key_hash = rows[by_position], key_hash[by_position]
        keys = self._keys(task.stage, shards, rows)
        found = find_duplicates(keys, key_hash)
        if task.want_rows:
            self._store.write_positions(
                f"duplicates-{task.part}.col",
                shards[found.rows],
                ordinals[found.rows],
                found.nth,
                keys.take(found.rows),
            )
        first = found.rows[:SAMPLES_MAX].tolist()
        samples = tuple((int(shards[at]), int(ordinals[at]), keys[at]) for at in first)
        return DuplicatesDone(task.part, len(found), samples)

    def _keys(self, stage: str, shards: Int64s, rows: Int64s) -> BytesColumn:
        """The keys of rows that are sorted by shard."""
        bounds = [*np.flatnonzero(np.diff(shards, prepend=-1)).tolist(), len(shards)]
        return BytesColumn.concat(
            self._store.keys(stage, int(shards[a]), rows[a:b]) for a, b in pairwise(bounds)
        )

    def order(self, task: OrderTask) -> OrderDone:
        """Put one bucket in output order and store it."""
        rows = self._store.bucket_rows("index", task.shards, task.bucket)
        columns = _Columns(rows, spill=self._spill)
        order = order_rows(columns.sort, decreasing=self._rule.decreasing)
        _check_permutation(order, columns.sort.count)
        dropped = 0
        if task.drop:
            kept = self._kept(task.drop, columns)[order]
            dropped = len(order) - int(kept.sum())
            order = order[kept]
        ordered = columns.ordered(order)
        self._store.write_ordered(task.bucket, ordered)
        return OrderDone(
            bucket=task.bucket,
            records=len(order),
            dropped=dropped,
            payload_bytes=int(ordered.payload_bytes.sum()),
            stored_bytes=int(ordered.stored_bytes.sum()),
        )

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
        """Cut one ordered bucket into pieces of output shards."""
        rows = self._store.ordered(task.bucket)
        pieces, state = cut_bucket(
            task.rule,
            task.bucket,
            groups=rows.group,
            payload_bytes=rows.payload_bytes,
            stored_bytes=rows.stored_bytes,
            members=rows.members,
            state=task.state,
        )
        return CutDone(task.bucket, pieces, state)


def _check_permutation(order: Int64s, count: int) -> None:
    """Every row exactly once, or nothing goes on."""
    seen = np.zeros(count, np.bool_)
    seen[order] = True
    if len(order) != count or not seen.all():
        raise InvariantError("the order of a bucket is not a permutation of its records")


class _Columns:
    """All rows of one bucket, in input order, as one set of columns."""

    def __init__(self, rows: BucketRows, *, spill: bool) -> None:
        parts = rows.parts
        none, none32 = np.zeros(0, np.int64), np.zeros(0, np.int32)
        counts = [len(part) for part in parts]
        self._rows = rows
        self._counts = counts
        self._spill = spill
        self.sort = SortKeys.concat([part.sort for part in parts])
        self.ordinal = np.concatenate([none, *(part.ordinal for part in parts)])
        self._shard = np.repeat(np.array(rows.shards, np.int32), counts)
        self._members = np.concatenate([none32, *(part.members for part in parts)])
        self._payload = np.concatenate([none, *(part.payload_bytes for part in parts)])
        self._stored = np.concatenate([none, *(part.stored_bytes for part in parts)])
        hashes = [part.content_hash for part in parts if part.content_hash is not None]
        self._content_hash = np.concatenate(hashes) if hashes else None

    def runs(self) -> list[tuple[int, int, int]]:
        """(first row, row after the last, shard) of each shard's rows."""
        ends = np.cumsum(self._counts).tolist()
        return [
            (end - count, end, shard)
            for end, count, shard in zip(ends, self._counts, self._rows.shards, strict=True)
        ]

    def ordered(self, order: Int64s) -> OrderedRows:
        """The rows in output order, with where their bytes are."""
        parts = self._rows.parts
        if self._spill:
            # Blocks of the spill, one a shard, are read one after the other: so the rows lie one
            # after the other in input order.
            starts = np.cumsum(self._stored) - self._stored
            segments = Segments(
                np.arange(len(order) + 1, dtype=np.int64),
                starts[order],
                self._stored[order],
                np.zeros(0, np.uint8),
            )
        else:
            segments = Segments.concat([p.segments for p in parts if p.segments is not None])
            segments = segments.take(order)
        source = np.zeros(len(order), np.int32) if self._spill else self._shard[order]
        return OrderedRows(
            source=source,
            shard=self._shard[order],
            ordinal=self.ordinal[order],
            group=None if self.sort.group is None else self.sort.group[order],
            members=self._members[order],
            payload_bytes=self._payload[order],
            stored_bytes=self._stored[order],
            segments=segments,
            content_hash=None if self._content_hash is None else self._content_hash[order],
            block_worker=np.array([part.worker for part in parts], np.int64),
            block_start=np.array([part.spill_start for part in parts], np.int64),
            block_bytes=np.array([int(part.stored_bytes.sum()) for part in parts], np.int64),
        )
