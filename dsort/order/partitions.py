"""Partitions of records: ranges of sort keys, each of which fits in a worker's memory.

Hashed sort keys are split evenly by their top bits, so the splits are known before a byte is read.
All other keys are split at values that are picked from a survey of them.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from dsort.data.columns import Int32s, Int64s, UInt64s
from dsort.data.index import SortKeys
from dsort.order.sort import order_rows


class Splitters(Struct, frozen=True, eq=False):
    """Records at which partitions begin: their sort keys, and their input positions to break ties.

    Rows are in output order. ``shard`` and ``ordinal``: the position, shapes ``(count - 1,)``.
    """

    keys: SortKeys
    shard: Int64s
    ordinal: Int64s


class Partitioning(Struct, frozen=True, eq=False):
    """The partition of a record: a monotone function of its place in the output order.

    The number of a record's partition is the number of splitters that do not come after it. Without
    splitters, the sort keys are hashes, which are split evenly by their top bits.

    ``weights``: for several outputs, which are one after the other in the order: the share of all
    records that each output may have, and about the share of partitions that it gets. The sum is 1.
    """

    count: int
    decreasing: bool = False
    splitters: Splitters | None = None
    weights: tuple[float, ...] = ()

    def assign(self, keys: SortKeys, shard: int | Int32s, ordinal: Int64s) -> Int32s:
        """The partition of each record, shape ``(n,)``. ``shard``: the shard of all records, or of
        each."""
        if self.count == 1:
            return np.zeros(keys.count, np.int32)
        if self.splitters is None:
            assert keys.words is not None, "only hashed keys split evenly"
            if self.weights:
                return self._within_outputs(keys, keys.words >> np.uint64(32))
            return self._even(keys.words >> np.uint64(32), np.uint64(self.count))
        splitters = self.splitters
        both = SortKeys.concat([splitters.keys, keys])
        position = np.concatenate([splitters.ordinal, ordinal])
        shards = np.concatenate([splitters.shard, np.broadcast_to(shard, (keys.count,))])
        by_position = np.lexsort((position, shards))  # stable: a splitter before its own record
        merged = by_position[order_rows(both.take(by_position), decreasing=self.decreasing)]
        partitions = np.empty(len(merged), np.int32)
        partitions[merged] = np.cumsum(merged < splitters.keys.count)
        return partitions[splitters.keys.count :]

    def _even(self, high: UInt64s, counts: UInt64s | np.uint64) -> Int32s:
        """The partition of each record among ``counts``, by the top half of its hash."""
        partitions = ((high * counts) >> np.uint64(32)).astype(np.int32)
        return (counts.astype(np.int32) - 1 - partitions) if self.decreasing else partitions

    def _within_outputs(self, keys: SortKeys, high: UInt64s) -> Int32s:
        """As ``_even``, where each output has separate partitions."""
        assert keys.group is not None, "records were dealt out to outputs"
        left = max(self.count - len(self.weights), 0)
        counts = np.array([1 + int(left * weight) for weight in self.weights], np.uint64)
        firsts = np.cumsum(counts) - counts
        group = np.maximum(keys.group, 0)
        found = firsts[group].astype(np.int32) + self._even(high, counts[group])
        partitions: Int32s = np.minimum(found, np.int32(self.count - 1))
        return partitions


def pick_splitters(
    sample: SortKeys,
    shard: Int64s,
    ordinal: Int64s,
    weights_bytes: Int64s,
    count: int,
    *,
    decreasing: bool,
    between_keys: bool = False,
) -> Splitters:
    """The splitters that divide a sample's total weight into ``count`` about equal partitions.

    The sample's rows are in input order; ``shard`` and ``ordinal`` are their positions.
    ``between_keys``: rows with equal sort keys go to the same partition.
    """
    order = order_rows(sample, decreasing=decreasing)
    reached = np.cumsum(weights_bytes[order])
    total = int(reached[-1]) if len(reached) else 0
    targets = np.array([total * part // count for part in range(1, count)], np.int64)
    places = np.unique(np.searchsorted(reached, targets, side="right"))
    rows = order[places[places < len(order)]]
    if between_keys:  # position 0 is before all records with the sort key, wherever these are
        none = np.zeros(len(rows), np.int64)
        return Splitters(sample.take(rows), none, none)
    return Splitters(sample.take(rows), shard[rows], ordinal[rows])
