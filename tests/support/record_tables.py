"""Tables of records as a worker holds them while it extracts a shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dsort.containers.registry import container_of
from tests.support.datasets import Member, Shard
from tests.support.internals import (
    ENTRIES_BYTES,
    GROUP,
    MEMBERS,
    PAYLOAD_BYTES,
    SHARD,
    STORED_BYTES,
    RecordTable,
    Table,
    form_records,
)


def table_of(
    records: Sequence[tuple[str, Mapping[str, bytes]]], shard: str = "in-0.tar"
) -> RecordTable:
    """The table of a tar with these records: keys, and payloads by extension."""
    members = [
        Member(f"{key}.{name}", data)
        for key, payloads in records
        for name, data in payloads.items()
    ]
    data = Shard(tuple(members)).data
    table = container_of(shard).scan(shard, memoryview(data))

    def read(members: object, row: int) -> bytes:
        start = int(table.payload_start[row])
        return data[start : start + int(table.payload_bytes[row])]

    return RecordTable(shard, table, form_records(table, "keep"), read)


def rows_to_cut(
    payload_bytes: Sequence[int],
    stored_bytes: Sequence[int],
    members: Sequence[int],
    *,
    groups: Sequence[int] | None = None,
    shards: Sequence[int] | None = None,
    entries_bytes: Sequence[int] | None = None,
) -> Table:
    """The rows of ordered records, with the columns that the cut reads."""
    columns = {
        PAYLOAD_BYTES: payload_bytes,
        STORED_BYTES: stored_bytes,
        MEMBERS: members,
        GROUP: groups,
        SHARD: shards,
        ENTRIES_BYTES: entries_bytes,
    }
    return Table(
        len(payload_bytes),
        {
            name.text: np.array(values, name.dtype)
            for name, values in columns.items()
            if values is not None
        },
    )


def stored_only(records: int, members: int, entries: int, stored: int) -> int:
    """The stored bytes: the size of a file that has no head and no end."""
    return stored
