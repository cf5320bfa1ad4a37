"""What a join leaves out where inputs have members of one extension: decided before any payload
moves, and done as each shard is extracted."""

from __future__ import annotations

import numpy as np

from dsort.data.columns import Bools
from dsort.data.index import KEYS, ORDINAL
from dsort.data.tally import FLOW_DROPPED
from dsort.naming.names import readable
from dsort.order.joining import LeftOut
from dsort.order.table import RecordTable
from dsort.pipeline.pipeline import Pipeline
from dsort.scratch.index import IndexStore
from dsort.scratch.logs import ReactionLog
from dsort.scratch.positions import NTH
from dsort.workers.batch import Batch
from dsort.workers.join_columns import place_words
from dsort.workers.tasks import ExtractTask, WorkerSetup


class LeaveOut:
    """Leaves out what a join leaves out, and notes the places of the pieces that stay."""

    def __init__(self, setup: WorkerSetup, store: IndexStore) -> None:
        self._store = store

    @staticmethod
    def is_needed(pipeline: Pipeline) -> bool:
        """Where inputs are joined."""
        return pipeline.join is not None

    def apply(self, batch: Batch) -> None:
        """What goes is counted and named in the log."""
        stage, before = batch.task.stage, batch.table
        if stage.left_out:
            batch.records = _left(self._store, batch.task, before, batch.log).records
        if stage.places:
            positions = self._store.positions(stage.places)
            batch.join_places = place_words(positions, batch.task.shard, before, batch.table)


def _left(
    store: IndexStore, task: ExtractTask, table: RecordTable, log: ReactionLog
) -> RecordTable:
    positions = store.positions(task.stage.left_out)
    found = positions.of_shard(task.shard, [NTH, KEYS], records=len(table))
    if not len(found):
        return table
    ordinals, why = found[ORDINAL], found[NTH]
    records = table.records
    kept = np.ones(len(records.member_rows), np.bool_)
    of_whole = np.isin(table.record_of, ordinals[why != LeftOut.MEMBERS])
    kept[of_whole] = False
    for kind, reasons in (
        ("left_out_by_join", (LeftOut.RECORD,)),
        ("duplicate_keys_dropped", (LeftOut.DUPLICATE,)),
    ):
        rows = ordinals[np.isin(why, reasons)].tolist()
        log.add(kind, len(rows), [f"{task.name}: {readable(table.keys[row])}" for row in rows])
    lists = found[KEYS]
    names = []
    for at in np.flatnonzero(why == LeftOut.MEMBERS).tolist():
        wanted = {*lists[at].split(b"\0")}
        names += _without(table, int(ordinals[at]), wanted, kept)
    log.add("conflicts_left_out", len(names), [f"{task.name}: {name}" for name in names])
    left = table.keeping_members(kept)
    log.add(f"{FLOW_DROPPED}join", len(table) - len(left))
    return left


def _without(table: RecordTable, record: int, wanted: set[bytes], kept: Bools) -> list[str]:
    """The names of the members of a record with extensions that are ``wanted`` elsewhere, which are
    no more ``kept``."""
    records, names, found = table.records, table.members.names, []
    first, last = records.member_offsets[record : record + 2].tolist()
    for at in range(first, last):
        row = int(records.member_rows[at])
        name = names[row]
        if name[int(records.key_bytes[row]) :] in wanted:
            kept[at] = False
            found.append(readable(name))
    return found
