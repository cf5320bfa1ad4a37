"""Writes the record index of extracted shards to scratch, by partition, and their payload to the
spill."""

from __future__ import annotations

import numpy as np

from dsort.data.columns import Int64s
from dsort.data.index import ORDINAL, RANGES, SHARD, sort_keys_of
from dsort.data.table import Table
from dsort.moves.input_shard import ShardBytes
from dsort.moves.payload_spill import PayloadSpill
from dsort.moves.short_records import small_argsort
from dsort.order.sort import Partitioning
from dsort.scratch.index import IndexStore
from dsort.workers.tasks import Stage, WorkerSetup


class IndexWriter:
    """Writes index and spill of one worker."""

    def __init__(self, setup: WorkerSetup, worker: int, store: IndexStore) -> None:
        self._pipeline, self.worker, self._store = setup.pipeline, worker, store
        self.spill = PayloadSpill(setup.movement, worker, store.scratch)

    def partitioning(self, stage: Stage) -> Partitioning:
        """The rule that assigns records to partitions."""
        splitters = self._store.splitters(stage.splitters) if stage.splitters else None
        weights = self._pipeline.division.weights
        decreasing = self._pipeline.algorithm.decreasing
        return Partitioning(stage.partitions, decreasing, splitters, weights)

    def write(
        self, stage: Stage, shard: int, index: Table, source: ShardBytes, *, in_memory: bool
    ) -> None:
        """Write the records of a shard, or of a run of shards that begins with ``shard``; then
        ``index`` has a column of shards. ``source``: the payload. ``in_memory``: the payload can be
        moved in the order of partitions; else it is read once more, in its own order."""
        spill: dict[str, Int64s] = {}
        if stage.partitions == 1:
            offsets = np.array([0, len(index)], np.int64)
            if stage.spill:
                spill["spill_starts"] = self.spill.move(source, index)
        else:
            own = index.get(SHARD)
            shards = shard if own is None else own
            partition = self.partitioning(stage).assign(sort_keys_of(index), shards, index[ORDINAL])
            by_partition = small_argsort(partition)
            counts = np.bincount(partition, minlength=stage.partitions)
            offsets = np.append(0, np.cumsum(counts)).astype(np.int64)
            if stage.spill and not in_memory:
                spill["spill_starts"] = self.spill.move(source, index, partition)
                index = index.without(RANGES)
            index = index.take(by_partition)
            if stage.spill and in_memory:
                spill["spill_starts"] = self.spill.move(source, index, partition[by_partition])
        self._store.write_shard(stage.name, shard, index, offsets, worker=self.worker, spill=spill)

    def close(self) -> None:
        """Close the spill files."""
        self.spill.close()
