"""Renaming: new keys for records whose key an earlier record of the job has.

The job's index is made a second time with the new names in place, so that everything after it
(sort keys, sizes, the plan) sees the shard as if it had had these names all along.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dsort.core.columns import BytesColumn
from dsort.core.members import MemberTable
from dsort.core.records import FormedRecords
from dsort.formats.tar import renamed
from dsort.workers.index_store import IndexStore
from dsort.workers.shard_bytes import ShardBytes
from dsort.workers.tasks import ExtractTask

__all__ = ["rename_records"]


def rename_records(
    store: IndexStore,
    task: ExtractTask,
    shard: ShardBytes,
    members: MemberTable,
    records: FormedRecords,
) -> MemberTable:
    """The member table with the new names, and literals with the headers that say so."""
    positions = store.positions(task.renames)
    start, stop = np.searchsorted(positions.array("shard"), [task.shard, task.shard + 1]).tolist()
    if start == stop:
        return members
    names = members.names.tolist()
    literals = dict(members.literals)
    range_start, range_length = members.range_start.copy(), members.range_length.copy()
    ordinals = positions.array("ordinal", start, stop).tolist()
    new_keys = positions.bytes_column("keys", start, stop).tolist()
    for ordinal, new_key in zip(ordinals, new_keys, strict=True):
        first, last = records.member_offsets[ordinal : ordinal + 2].tolist()
        for row in records.member_rows[first:last].tolist():
            names[row] = new_key + names[row][int(records.key_bytes[row]) :]
            head = _headers(shard, members, row)
            literals[row] = renamed(head, names[row])
            taken = int(members.payload_start[row] - members.range_start[row])
            if row not in members.literals:
                range_start[row] += taken
                range_length[row] -= taken
    return replace(
        members,
        names=BytesColumn.of(names),
        literals=literals,
        range_start=range_start,
        range_length=range_length,
    )


def _headers(shard: ShardBytes, members: MemberTable, row: int) -> bytes:
    """The header blocks of a member as they would be written."""
    literal = members.literals.get(row)
    if literal is not None:
        return literal
    start = int(members.range_start[row])
    return shard.at(start, int(members.payload_start[row]) - start)
