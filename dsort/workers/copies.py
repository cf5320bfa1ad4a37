"""Records that come out several times, or not at all, as the inputs of a job are weighed."""

from __future__ import annotations

from dsort.containers.base import Container
from dsort.data.columns import Int64s
from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords
from dsort.moves.bare import BARE
from dsort.moves.source import ShardBytes
from dsort.order.table import RecordTable


def copied(
    shard: ShardBytes,
    members: MemberTable,
    named: MemberTable,
    records: FormedRecords,
    counts: Int64s,
) -> tuple[MemberTable, MemberTable, FormedRecords]:
    """(``members``; ``named``, which is ``members`` with the names that they will have; records),
    with each record ``counts`` times. Copies are named ``key~1`` where the container has names for
    records: then both tables have rows of their own for them."""
    if (counts == 1).all():
        return members, named, records
    table = RecordTable(shard.name, named, records, shard.content)
    table, again = table.with_copies(counts, named=_has_names(shard.container))
    if shard.container is not BARE:  # else nobody asks for the headers of members
        unchanged = members is named and table.members is named
        members = table.members if unchanged else members.with_rows_again(again)
    return members, table.members, table.records


def _has_names(container: Container) -> bool:
    return container is BARE or container.can_rename
