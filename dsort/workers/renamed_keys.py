"""``duplicate_keys: rename``: gives records of one shard their new keys."""

from __future__ import annotations

from msgspec.structs import replace

from dsort.data.columns import BytesColumn
from dsort.data.index import KEYS, ORDINAL
from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords
from dsort.naming.names import readable
from dsort.scratch.index import IndexStore
from dsort.workers.batch import Batch, Operator
from dsort.workers.tasks import ExtractTask


class RenameKeys(Operator):
    """Gives records the new keys that a survey has found for them."""

    in_runs = True
    in_rows = True

    def apply(self, batch: Batch) -> None:
        """Rename the records, and log their old and new keys."""
        if not batch.task.stage.renames:
            return
        changes: list[str] = []
        batch.named, batch.records = _renamed(
            self.store, batch.task, batch.named, batch.records, changes
        )
        batch.log.write_names("duplicate_keys_renamed", changes, len(changes))


def _renamed(
    store: IndexStore,
    task: ExtractTask,
    members: MemberTable,
    records: FormedRecords,
    changes: list[str],
) -> tuple[MemberTable, FormedRecords]:
    """The member table with the new names, and the same records with their new keys. Adds a text
    for each new key to ``changes``."""
    found = store.positions(task.stage.renames).of_shard(task.shard, [KEYS], records=len(records))
    if not len(found):
        return members, records
    names = members.names.tolist()
    key_bytes = records.key_bytes.tolist()
    keys_of = dict(zip(found[ORDINAL].tolist(), found[KEYS].tolist(), strict=True))
    for ordinal, new_key in keys_of.items():
        changes.append(f"{task.name}: {readable(records.keys[ordinal])} → {readable(new_key)}")
        first, last = records.member_offsets[ordinal : ordinal + 2].tolist()
        for row in records.member_rows[first:last].tolist():
            names[row] = new_key + names[row][key_bytes[row] :]
    named = replace(members, names=BytesColumn.of(names))
    return named, records.with_keys(keys_of, named)
