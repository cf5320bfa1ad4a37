"""Digests of records where the outputs of a job are compared in different ways: each record gets
the digest that fits its output."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from dsort.data.columns import Bools, Int32s, Int64s, UInt64s
from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords
from dsort.moves.input_shard import ShardBytes
from dsort.verification.read import ComparedBytes, ShardRecords


def ways_of(compared: Sequence[ComparedBytes]) -> list[list[ComparedBytes]]:
    """The different ways of comparing, in groups. One reading of a shard serves a whole group."""
    found: dict[tuple[object, ...], list[ComparedBytes]] = {}
    for each in dict.fromkeys(compared):
        found.setdefault((each.converted, each.stripped, each.defaults), []).append(each)
    return list(found.values())


def as_compared(
    shard: ShardBytes, members: MemberTable, records: FormedRecords, way: ComparedBytes
) -> ShardRecords:
    """The records of an input shard, with their digests as ``way`` makes them."""
    digests, offsets = way.digests(shard, members, records.key_bytes), records.member_offsets
    return ShardRecords(
        members=members,
        member_digests=digests,
        member_rows=records.member_rows,
        member_offsets=offsets,
        key_bytes=records.key_bytes,
        keys=records.keys,
        key_hash=records.key_hash,
        digests=way.record_digests(digests[records.member_rows], offsets),
    )


def combined(
    one: ShardRecords,
    other: ShardRecords,
    compared: Sequence[ComparedBytes],
    way: ComparedBytes,
    group: Int32s,
) -> ShardRecords:
    """``one``, with the digests of ``other`` for the records whose output is compared in that
    ``way``. Both have the same members. ``compared``: how each output is compared; ``group``: the
    output of each record."""
    is_other = _compared_so(compared, way, group)
    of_rows = np.repeat(is_other, np.diff(one.member_offsets))
    digests = one.member_digests.copy()
    digests[one.member_rows[of_rows]] = other.member_digests[other.member_rows[of_rows]]
    by_record = np.where(is_other[:, None], other.digests, one.digests)
    return replace(one, member_digests=digests, digests=by_record)


def digests_by_output(
    compared: Sequence[ComparedBytes], digests: UInt64s, bounds: Int64s, group: Int32s
) -> UInt64s:
    """The digest of each record in the way in which its output is compared. The members of record
    ``i`` have ``digests[bounds[i]:bounds[i + 1]]``. ``group``: the output of each record."""
    ways = [*dict.fromkeys(compared)]
    found = ways[0].record_digests(digests, bounds)
    for way in ways[1:]:
        is_other = _compared_so(compared, way, group)
        found = np.where(is_other[:, None], way.record_digests(digests, bounds), found)
    return found


def _compared_so(compared: Sequence[ComparedBytes], way: ComparedBytes, group: Int32s) -> Bools:
    found: Bools = np.array([each == way for each in compared])[np.maximum(group, 0)]
    return found
