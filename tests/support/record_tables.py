"""Tables of records as a worker holds them while it extracts a shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsort.containers.registry import container_of
from tests.support.datasets import Member, Shard
from tests.support.internals import RecordTable, form_records


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
