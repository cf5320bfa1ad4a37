"""Assigns records to outputs with exact numbers of records, during extraction.

In the stage ``drawn``, each record draws a lot (a random number) in its class. A survey
(``exact_outputs``) then finds the borders: the first lot of each output in each class. After that,
the lot of a record decides its output.
"""

from __future__ import annotations

import numpy as np

from dsort.data.columns import Int64s
from dsort.data.index import CLASS, GROUP, LOT
from dsort.data.record_table import RecordTable
from dsort.data.table import Table
from dsort.errors import InvariantError
from dsort.pipeline.pipeline import Pipeline
from dsort.scratch.index import IndexStore
from dsort.scratch.lots import borders_of
from dsort.transforms.outputs import positions_of
from dsort.workers.batch import Batch, Operator
from dsort.workers.tasks import ExtractTask


def drawn_lots(
    pipeline: Pipeline, store: IndexStore, task: ExtractTask, records: RecordTable
) -> Table:
    """The lots of ``records``, if a pass needs them and they are not stored on this node; else no
    columns."""
    stage = task.stage
    has_lots = bool(stage.borders) and store.has_shard("drawn", task.shard)
    if stage.name != "drawn" and (not stage.borders or has_lots):
        return Table(len(records))
    classes, lots = pipeline.division.lots(records, are_rows=pipeline.moves_rows).T
    return Table(len(records), {CLASS.text: classes, LOT.text: lots})


class SettleExactOutputs(Operator):
    """Gives records their outputs in place of their lots, once the borders are known, and the
    ordinals of the records in their shard are settled."""

    in_rows = True

    @staticmethod
    def is_needed(pipeline: Pipeline) -> bool:
        """Whether outputs have exact numbers."""
        return pipeline.division.is_counted

    def apply(self, batch: Batch) -> None:
        """Change the facts of ``batch``."""
        task, found, name = batch.task, batch.found, batch.task.stage.borders
        if not name:
            return
        ordinals = batch.ordinals
        drawn = found if LOT in found else self._known(task, ordinals)
        lots = np.column_stack([drawn[CLASS], drawn[LOT]])
        count = len(self.pipeline.division.names)
        borders = borders_of(self.store.columns(name), name, count)
        group = borders.numbers(lots, positions_of(task.shard, ordinals))
        batch.found = found.without(CLASS, LOT).with_(GROUP, group.astype(np.int32))

    def _known(self, task: ExtractTask, ordinals: Int64s) -> Table:
        """The lots that records of the shard drew in the stage ``drawn``, which ran on this
        node."""
        classes, lots, known = self.store.lots("drawn", task.shard)
        at = np.minimum(np.searchsorted(known, ordinals), max(len(known) - 1, 0))
        if len(ordinals) and (not len(known) or (known[at] != ordinals).any()):
            raise InvariantError(f"shard {task.name} has other records than when they were counted")
        return Table(len(at), {CLASS.text: classes[at], LOT.text: lots[at]})
