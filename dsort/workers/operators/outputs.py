"""Finds the output of each record: by the spec's outputs, or by places that are given.

Outputs may have exact numbers of records. Then each record draws a lot (a random number) in its
class, in the stage ``drawn``. A survey (``exact_outputs``) finds the *borders*: the first lot of
each output in each class. After that, lots decide.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsort.data.columns import Int64s
from dsort.data.index import CLASS, GROUP, LOT
from dsort.data.record_table import RecordTable
from dsort.data.table import Table
from dsort.data.tally import Tally
from dsort.errors import InvariantError, KeyMapError
from dsort.naming.names import readable
from dsort.pipeline.pipeline import Pipeline
from dsort.scratch.index import IndexStore
from dsort.scratch.requests import borders_of
from dsort.transforms.outputs import Division, MemberClass, positions_of
from dsort.workers.batch import CLASSES, Batch, Operator
from dsort.workers.tasks import ExtractTask, WorkerSetup


def drawn_lots(
    pipeline: Pipeline, store: IndexStore, task: ExtractTask, records: RecordTable
) -> Table:
    """The lots of ``records``, if a pass needs them and they are not stored on this node; else no
    columns."""
    stage = task.stage
    # A table that is damaged at its end had no records when they were counted. Its rows get lots
    # all the same, and are left out once the damage is found.
    has_lots = (
        bool(stage.borders)
        and store.has_shard("drawn", task.shard)
        and len(store.lots("drawn", task.shard)[0]) > 0
    )
    if stage.name != "drawn" and (not stage.borders or has_lots):
        return Table(len(records))
    classes, lots = pipeline.division.lots(records, are_rows=pipeline.moves_rows).T
    return Table(len(records), {CLASS.text: classes, LOT.text: lots})


class SettleExactOutputs(Operator):
    """Gives records their outputs in place of their lots, once the borders are known. No later
    operator changes the ordinals of records."""

    in_rows = True

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
            raise InvariantError(f"the records of shard {task.name} differ from the count")
        return Table(len(at), {CLASS.text: classes[at], LOT.text: lots[at]})


def columns_to_place(pipeline: Pipeline) -> tuple[Sequence[str], Sequence[str]]:
    """For rows of tables that stay rows, as extensions: (the column that has the classes, the
    columns that expressions of outputs read)."""
    division = pipeline.division if pipeline.moves_rows else Division()
    by = division.classes
    column = [f".{by.extension}"] if isinstance(by, MemberClass) else []
    return column, [f".{name}" for name in division.extensions]


class PlaceRecords(Operator):
    """Sets ``GROUP``, the output of each record. Where outputs have exact numbers, it sets
    ``CLASS`` and ``LOT``, because a record alone does not decide its output."""

    in_rows = True

    def __init__(self, setup: WorkerSetup, store: IndexStore) -> None:
        super().__init__(setup, store)
        self._columns = columns_to_place(setup.pipeline)

    def apply(self, batch: Batch) -> None:
        """Add the outputs of records to the facts."""
        # The column of classes is not optional, because a job without this column must fail.
        column, asked = self._columns
        records, division = batch.cells(column, CLASSES, asked), self.pipeline.division
        if not division:
            placed = self._by_keys(records, batch.log)
        elif division.is_counted:
            placed = drawn_lots(self.pipeline, self.store, batch.task, records)
        else:
            placed = Table(len(records), {GROUP.text: division.numbers(records)})
        batch.found = batch.found.beside(placed)

    def _by_keys(self, records: RecordTable, tally: Tally) -> Table:
        given, keys = self.pipeline.placed_by, records.records.keys
        match = given.match(records.records, records.members, are_joined=bool(self.pipeline.join))
        placed = Table(len(records), {GROUP.text: match.groups})
        unplaced = np.flatnonzero(match.missing | match.ambiguous)
        if len(unplaced) == 0:
            return placed
        if self.pipeline.reading.policies.ekm_missing_key == "abort":
            found = "keys of two templates" if match.ambiguous[unplaced[0]] else "no key"
            raise KeyMapError(
                f"record {readable(keys[int(unplaced[0])])} of shard {records.shard} matches "
                f"{found} of {given.words}",
                hint=given.missing_hint,
            )
        shown = [f"{records.shard}: {readable(keys[row])}" for row in unplaced.tolist()]
        tally.add("ekm_missing_key", len(unplaced), shown)
        return placed
