"""Records as readers of shards see them: neighbours with one key, in the order of the shard.

A job groups the members of one key wherever they are in a shard (``records``). A reader that reads
a shard once, from its first byte to its last, cannot do that: for webdataset, and here, another key
begins another record, and so does a repeated name.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from dsort.data.columns import Int64s, are_all_rows, row_numbers
from dsort.data.members import MemberKind, MemberTable
from dsort.data.records import split_names, starts_record
from dsort.data.repeated_names import names_come_again, repeated_names


class AdjacentRecords(Struct, frozen=True, eq=False):
    """The records of a shard, in its order. ``rows``: the rows of the member table that are files,
    shape ``(m,)``. Record ``i`` has ``rows[offsets[i]:offsets[i + 1]]``; the first ``key_bytes[i]``
    bytes of the name of its first member are the key. ``offsets``: shape ``(n + 1,)``."""

    rows: Int64s
    offsets: Int64s
    key_bytes: Int64s


def adjacent_records(members: MemberTable) -> AdjacentRecords:
    """The records of ``members``. Directories, links and devices have no content and are left out;
    a file without an extension is a separate record."""
    count, of_each = len(members), members.record_of
    is_each_one = of_each is not None and are_all_rows(of_each, count)  # like the lines of a text
    if (
        is_each_one
        and members.key_bytes is not None
        and bool((members.kind == MemberKind.FILE).all())
    ):
        return AdjacentRecords(row_numbers(count), row_numbers(count + 1), members.key_bytes)
    rows = np.flatnonzero(members.kind == MemberKind.FILE)
    if members.key_bytes is not None and members.record_of is not None:
        key_bytes, record_of = members.key_bytes[rows], members.record_of[rows]
        starts = np.diff(record_of, prepend=-1) != 0
    else:
        names = members.names.take(rows)
        split = split_names(names)
        key_bytes = np.where(split.stray, names.lengths, split.key_bytes)
        every = np.arange(len(rows))
        starts = starts_record(names, every, key_bytes, split.stray)
        record_of = np.cumsum(starts) - 1
        repeated = repeated_names(names, every, record_of, key_bytes)
        if len(repeated):
            starts[names_come_again(names, every, record_of, repeated)] = True
    first = np.flatnonzero(starts)
    return AdjacentRecords(rows, np.append(first, len(rows)).astype(np.int64), key_bytes[first])
