"""Copies and leaves out records where a job mixes inputs by weights; before that, leaves out
records that are equal to others."""

from __future__ import annotations

import numpy as np

from dsort.data.columns import Int64s
from dsort.data.index import ORDINAL
from dsort.data.members import MemberTable
from dsort.data.record_table import RecordTable
from dsort.data.records import FormedRecords
from dsort.data.tally import FLOW_ADDED, FLOW_DROPPED, Tally
from dsort.moves.bare import BARE
from dsort.moves.input_shard import ShardBytes
from dsort.naming.names import readable
from dsort.workers.batch import Batch, Operator


class LeaveOutEqual(Operator):
    """Removes the records that a survey has found equal to others."""

    in_runs = True

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


class CopyRecords(Operator):
    """Repeats each record as often as the weight or the exact number of its input requires."""

    in_runs = True
    in_rows = True

    def apply(self, batch: Batch) -> None:
        """Copy and leave out the records of a batch; count both."""
        if batch.task.copies is None:  # a pass before the numbers of copies are known
            return
        counts = batch.task.copies.counts(batch.records.key_hash)
        _count(batch.shard.name, counts, batch.log)
        batch.members, batch.named, batch.records = _copied(
            batch.shard, batch.members, batch.named, batch.records, counts
        )
        batch.found = batch.found.take(np.repeat(np.arange(len(counts)), counts))


def _count(shard: str, counts: Int64s, tally: Tally) -> None:
    left_out, more = int((counts == 0).sum()), int(np.maximum(counts - 1, 0).sum())
    tally.add("left_out_by_mix", left_out, [f"{left_out:,} in {shard}"])
    tally.add("copied_by_mix", more, [f"{more:,} in {shard}"])
    tally.add(f"{FLOW_DROPPED}mix", left_out)
    tally.add(f"{FLOW_ADDED}mix", more)


def _copied(
    shard: ShardBytes,
    members: MemberTable,
    named: MemberTable,
    records: FormedRecords,
    counts: Int64s,
) -> tuple[MemberTable, MemberTable, FormedRecords]:
    """Repeat each record ``counts`` times: return (``members``, ``named``, the records). ``named``
    is ``members`` with new names. If the container has names for records, copies are named
    ``key~1``, and both tables have rows of their own for each copy."""
    if (counts == 1).all():
        return members, named, records
    table = RecordTable(shard.name, named, records, shard.content)
    container = shard.container
    table, again = table.with_copies(counts, named=container.names is not None)
    if container is not BARE:  # the headers of bare members are never read
        unchanged = members is named and table.members is named
        members = table.members if unchanged else members.with_rows_again(again)
    return members, table.members, table.records
