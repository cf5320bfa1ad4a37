"""Renaming: new keys for records whose key an earlier record of the job has.

The job's index is made a second time with the new names in place, so that everything after it
(sort keys, sizes, the plan) sees the shard as if it had had these names all along.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dsort.containers.tar.header import renamed
from dsort.data.columns import BytesColumn
from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords
from dsort.errors import StorageError
from dsort.scratch.index import IndexStore
from dsort.workers.safe_names import with_new_headers
from dsort.workers.shard_bytes import ShardBytes
from dsort.workers.tasks import ExtractTask

__all__ = ["rename_records"]


def rename_records(
    store: IndexStore,
    task: ExtractTask,
    shard: ShardBytes,
    members: MemberTable,
    records: FormedRecords,
    told: list[str],
) -> tuple[MemberTable, FormedRecords]:
    """The member table with the new names, and literals with the headers that say so; and the same
    records with their new keys. ``told`` gets a text for each of these."""
    positions = store.positions(task.renames)
    start, stop = np.searchsorted(positions.array("shard"), [task.shard, task.shard + 1]).tolist()
    if start == stop:
        return members, records
    names = members.names.tolist()
    new_headers: dict[int, bytes] = {}
    key_bytes = records.key_bytes.tolist()
    ordinals = positions.array("ordinal", start, stop).tolist()
    if max(ordinals) >= len(records.member_offsets) - 1:
        raise StorageError(f"{task.renames} has new keys for records that {task.name} has not")
    new_keys = positions.bytes_column("keys", start, stop).tolist()
    keys_of = dict(zip(ordinals, new_keys, strict=True))
    for ordinal, new_key in keys_of.items():
        told.append(f"{task.name}: {_shown(records.keys[ordinal])} → {_shown(new_key)}")
        first, last = records.member_offsets[ordinal : ordinal + 2].tolist()
        for row in records.member_rows[first:last].tolist():
            names[row] = new_key + names[row][key_bytes[row] :]
            headers_bytes = int(members.payload_start[row] - members.range_start[row])
            headers = shard.at(int(members.range_start[row]), headers_bytes)
            new_headers[row] = renamed(members.literals.get(row, b"") + headers, names[row])
    named = with_new_headers(replace(members, names=BytesColumn.of(names)), new_headers)
    return named, records.with_keys(keys_of, named)


def _shown(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")
