"""Leaves out equal records before a mix weighs the others."""

from __future__ import annotations

import numpy as np

from dsort.data.index import ORDINAL
from dsort.naming.names import readable
from dsort.pipeline.pipeline import Pipeline
from dsort.workers.batch import Batch, Operator


class LeaveOutEqual(Operator):
    """Removes the records that a survey has found equal to others."""

    in_runs = True

    @staticmethod
    def is_needed(pipeline: Pipeline) -> bool:
        """Whether equal records are left out of weighed inputs."""
        return pipeline.deduplicates_first

    def apply(self, batch: Batch) -> None:
        """Change the records of ``batch``; count what is removed, and log its names."""
        task, records = batch.task, batch.records
        if not task.stage.left_out:
            return
        positions = self.store.positions(task.stage.left_out)
        rows = positions.of_shard(task.shard, (), records=len(records))[ORDINAL]
        names = [f"{task.name}: {readable(records.keys[row])}" for row in rows.tolist()]
        batch.log.add("deduplicated", len(names), names)
        kept = np.ones(len(records), np.bool_)
        kept[rows] = False
        batch.keep(kept)
