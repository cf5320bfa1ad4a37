"""Finds the output of each record: by the spec's outputs, or by an external key map."""

from __future__ import annotations

import numpy as np

from dsort.data.index import GROUP
from dsort.data.record_table import RecordTable
from dsort.data.table import Table
from dsort.data.tally import FLOW_DROPPED, FLOW_READ, Tally
from dsort.errors import KeyMapError
from dsort.naming.names import readable
from dsort.pipeline.pipeline import Pipeline
from dsort.scratch.index import IndexStore
from dsort.transforms.outputs import Division
from dsort.transforms.strata import MemberClass
from dsort.workers.batch import Batch, Operator, are_placed
from dsort.workers.operators.exact_outputs import ExactPlaces
from dsort.workers.tasks import ExtractTask, WorkerSetup


class Placer:
    """Places the records of one job, in one worker."""

    def __init__(self, setup: WorkerSetup, store: IndexStore) -> None:
        self._pipeline = setup.pipeline
        self._exact = ExactPlaces(setup, store)
        division = setup.pipeline.division if setup.pipeline.moves_rows else Division()
        by = division.classes
        self.column = by.extension if isinstance(by, MemberClass) else ""
        """For rows of tables that stay rows: the column whose values are the classes; "": none."""
        self.asked = division.extensions
        """The columns that expressions of outputs read."""

    def placed(self, task: ExtractTask, records: RecordTable, tally: Tally) -> Table:
        """The outputs of ``records``: ``GROUP``, or none if there is one output. Where outputs have
        exact numbers: ``CLASS`` and ``LOT``."""
        division = self._pipeline.division
        if not division:
            return self._by_key_map(records, tally)
        if not division.is_counted:
            return Table(len(records), {GROUP.text: division.numbers(records)})
        return self._exact.drawn(task, records)

    def _by_key_map(self, records: RecordTable, tally: Tally) -> Table:
        keymap = self._pipeline.keymap
        if keymap is None:
            return Table(len(records))
        shard, formed = records.shard, records.records
        names, offsets = records.members.names.take(formed.member_rows), formed.member_offsets
        if self._pipeline.join:  # the key is the name that all pieces have in common
            names, offsets = formed.keys, np.arange(len(formed) + 1)
        match = keymap.lookup(formed.keys, names, offsets)
        placed = Table(len(records), {GROUP.text: match.groups})
        unplaced = np.flatnonzero(match.missing | match.ambiguous)
        if len(unplaced) == 0:
            return placed
        shown = [f"{shard}: {readable(formed.keys[row])}" for row in unplaced.tolist()]
        if self._pipeline.reading.policies.ekm_missing_key == "abort":
            many = bool(match.ambiguous[unplaced[0]])
            raise KeyMapError(
                f"record {readable(formed.keys[int(unplaced[0])])} of shard {shard} matches "
                f"{'keys of two templates' if many else 'no key'} of the external key map",
                hint="add a key, or set ekm_missing_key: warn (and ekm_default for their place)",
            )
        tally.add("ekm_missing_key", len(unplaced), shown)
        return placed


class PlaceRecords(Operator):
    """Sets the outputs of records, as far as the records alone decide it."""

    in_rows = True

    def __init__(self, setup: WorkerSetup, store: IndexStore) -> None:
        super().__init__(setup, store)
        self._placer = Placer(setup, store)

    @staticmethod
    def is_needed(pipeline: Pipeline) -> bool:
        """Whether there are several outputs, or a key map."""
        return bool(pipeline.division) or pipeline.keymap is not None

    def apply(self, batch: Batch) -> None:
        """See :meth:`Placer.placed`."""
        batch.found = batch.found.beside(self._placer.placed(batch.task, batch.table, batch.log))


class CountPlaced(Operator):
    """Counts the records that go to no output. If records were added or removed, it also counts
    the records that were read."""

    in_runs = True
    in_rows = True

    def apply(self, batch: Batch) -> None:
        """Add the counts to the log."""
        stays = int(are_placed(batch.found).sum())
        batch.log.add(f"{FLOW_DROPPED}no place in an output", len(batch.records) - stays)
        if stays != batch.formed:
            batch.log.add(FLOW_READ, batch.formed)
