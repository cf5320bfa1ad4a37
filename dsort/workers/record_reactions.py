"""Reactions to oddities in the members and records of one shard: count them, or stop the job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from dsort.containers.base import oddities_in, refusal
from dsort.data.hashes import any_twice
from dsort.data.members import MemberKind, MemberTable
from dsort.data.records import FormedRecords
from dsort.data.tally import Tally
from dsort.errors import DuplicateError, ShardEndError, StrayMemberError
from dsort.moves.input_shard import ShardBytes
from dsort.naming.names import readable
from dsort.pipeline.pipeline import Policies


def refuse_oddities(policies: Policies, shard: ShardBytes, members: MemberTable) -> None:
    """``ShardEndError`` if the policies do not allow the way in which a shard ends."""
    refused = refusal(
        shard.container.oddities,
        members.notes,
        policies.incomplete_shards,
        policies.concatenated_shards,
    )
    if refused:
        raise ShardEndError(f"shard {shard.name} {refused[0]}", hint=refused[1])


def count_oddities(shard: ShardBytes, members: MemberTable, tally: Tally) -> None:
    """Count the oddities that a scan has noted of a shard."""
    notes = members.notes
    if notes.shortfall:
        tally.add("incomplete_shards", 1, [f"{shard.name} ({notes.shortfall})"])
    for oddity, count in oddities_in(shard.container.oddities, notes):
        if oddity.kind:
            rows = getattr(notes, oddity.note)
            is_by_row = isinstance(rows, tuple)
            names = shown_names(shard.name, members, rows) if is_by_row else [shard.name]
            tally.add(oddity.kind, 1 if oddity.by_shard else count, names)


def react(
    policies: Policies,
    shard: str,
    members: MemberTable,
    records: FormedRecords,
    tally: Tally,
) -> None:
    """Count the members that records leave out, and stop the job where the policies require it."""
    if policies.stray_members == "abort" or policies.records_only:
        _refuse_strays(policies, shard, members, records)
    kept = sorted({*records.strays} - {*records.dropped})
    tally.add("stray_members_kept", len(kept), shown_names(shard, members, kept))
    tally.add(
        "stray_members_dropped",
        len(records.dropped),
        shown_names(shard, members, records.dropped),
    )
    tally.add("non_adjacent_records", records.non_adjacent, [shard])
    if policies.duplicated_records == "abort":
        _refuse_repeated(shard, members, records)
    elif records.repeated and policies.duplicated_records is not None:
        names = shown_names(shard, members, records.repeated)
        tally.add("duplicated_records", len(records.repeated), names)


def shown_names(shard: str, members: MemberTable, rows: Iterable[int]) -> Iterator[str]:
    """The names of the members ``rows`` as messages and reactions show them."""
    return (f"{shard}: {readable(members.names[row])}" for row in rows)


def _refuse_strays(
    policies: Policies, shard: str, members: MemberTable, records: FormedRecords
) -> None:
    links = np.flatnonzero(members.kind == MemberKind.SYMLINK).tolist()
    strays = sorted({*records.strays, *links} - {*records.dropped})
    if strays and policies.records_only:
        raise StrayMemberError(
            f"shard {shard} has {len(strays)} members that wids and webdataset do not "
            "count as a sample, so that an index would be wrong; the first is "
            f"{readable(members.names[strays[0]])}",
            hint="stray_members: drop leaves them out; or leave out index: wids",
        )
    if strays:
        raise StrayMemberError(
            f"shard {shard} has {len(strays)} stray members, the first is "
            f"{readable(members.names[strays[0]])}",
            hint="stray_members: keep or drop lets the job go on",
        )


def _refuse_repeated(shard: str, members: MemberTable, records: FormedRecords) -> None:
    """``DuplicateError`` if two members anywhere in the shard have the same name."""
    if members.record_of is not None or not any_twice(records.key_hash):
        return  # members with the same name would be in records with the same key
    seen = set[bytes]()
    for row in np.sort(records.member_rows).tolist():
        name = members.names[row]
        if name in seen:
            raise DuplicateError(
                f"{shard}: {readable(name)} occurs more than once in the shard",
                hint="without duplicated_records each is in a record of its own, and "
                "duplicate_keys: rename gives such records keys of their own",
            )
        seen.add(name)
