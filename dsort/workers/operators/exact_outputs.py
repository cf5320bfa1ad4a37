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
from dsort.workers.tasks import ExtractTask, WorkerSetup


class ExactPlaces:
    """Finds the outputs of records where outputs have exact numbers, in one worker."""

    def __init__(self, setup: WorkerSetup, store: IndexStore) -> None:
        self._division, self._store = setup.pipeline.division, store
        self._are_rows = setup.pipeline.moves_rows

    def drawn(self, task: ExtractTask, records: RecordTable) -> Table:
        """The lots of ``records``, if a pass needs them and they are not stored on this node; else
        no columns."""
        division, stage = self._division, task.stage
        has_lots = bool(stage.borders) and self._store.has_shard("drawn", task.shard)
        if not division or (stage.name != "drawn" and (not stage.borders or has_lots)):
            return Table(len(records))
        classes, lots = division.lots(records, are_rows=self._are_rows).T
        return Table(len(records), {CLASS.text: classes, LOT.text: lots})

    def settled(self, task: ExtractTask, found: Table, ordinal: Int64s) -> Table:
        """``found`` with the outputs of records in place of their lots, once the borders are known.
        ``ordinal``: the ordinals of the records in their shard, shape ``(n,)``."""
        division, name = self._division, task.stage.borders
        if not division or not name:
            return found
        drawn = found if LOT in found else self._known(task, ordinal)
        lots = np.column_stack([drawn[CLASS], drawn[LOT]])
        borders = borders_of(self._store.columns(name), name, len(division.names))
        group = borders.numbers(lots, positions_of(task.shard, ordinal))
        return found.without(CLASS, LOT).with_(GROUP, group.astype(np.int32))

    def _known(self, task: ExtractTask, ordinal: Int64s) -> Table:
        """The lots that records of the shard drew in the stage ``drawn``, which ran on this
        node."""
        classes, lots, known = self._store.lots("drawn", task.shard)
        at = np.minimum(np.searchsorted(known, ordinal), max(len(known) - 1, 0))
        if len(ordinal) and (not len(known) or (known[at] != ordinal).any()):
            raise InvariantError(f"shard {task.name} has other records than when they were counted")
        return Table(len(at), {CLASS.text: classes[at], LOT.text: lots[at]})


class SettleExactOutputs(Operator):
    """Gives records their outputs, once the ordinals of the records in their shard are settled."""

    in_rows = True

    def __init__(self, setup: WorkerSetup, store: IndexStore) -> None:
        super().__init__(setup, store)
        self._places = ExactPlaces(setup, store)

    @staticmethod
    def is_needed(pipeline: Pipeline) -> bool:
        """Whether outputs have exact numbers."""
        return pipeline.division.is_counted

    def apply(self, batch: Batch) -> None:
        """See :meth:`ExactPlaces.settled`."""
        ordinals = np.arange(len(batch.records), dtype=np.int64)
        batch.found = self._places.settled(batch.task, batch.found, ordinals)
