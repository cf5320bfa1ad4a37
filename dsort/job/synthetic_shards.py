"""Test shards of containers that make their shards of records: all but tars and zips, whose members
are written one by one. One shard is in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from dsort.containers.base import Container, ContainerOptions
from dsort.data.columns import BytesColumn, Int64s, UInt32s
from dsort.data.entries import PlacedEntries
from dsort.data.members import MemberKind, MemberTable
from dsort.data.records import form_records
from dsort.naming.names import archive_extension


@dataclass(frozen=True, slots=True)
class SyntheticMember:
    """A member of a record; ``extension`` with its dot."""

    key: bytes
    extension: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class _Payloads:
    """See ``containers.base.Payloads``."""

    are_sealed_later, shard_bytes = False, 0
    payloads: Sequence[bytes]

    def pieces(self, row: int) -> Iterator[memoryview | bytes]:
        yield self.payloads[row]

    def each(self, rows: Int64s) -> Iterator[Iterable[memoryview | bytes]]:
        for row in rows.tolist():
            yield (self.payloads[row],)

    def checksums(
        self, rows: Int64s, update: Callable[[memoryview | bytes, int], int], begun: UInt32s
    ) -> UInt32s:
        found = map(update, map(self.payloads.__getitem__, rows.tolist()), begun.tolist())
        return np.fromiter(found, np.uint32, len(rows))


def packed_pieces(
    container: Container, members: Sequence[SyntheticMember]
) -> tuple[str, Iterator[bytes]]:
    """(the schema of the records, the bytes of a shard of them). ``ConversionError`` for what the
    container cannot hold."""
    payloads = [each.payload for each in members]
    count, nowhere = len(members), np.full(len(members), -1, np.int64)
    bare = MemberTable(
        names=BytesColumn.of([each.key + each.extension for each in members]),
        kind=np.full(count, MemberKind.FILE, np.uint8),
        payload_start=nowhere,
        payload_bytes=np.fromiter(map(len, payloads), np.int64, count),
        range_start=nowhere,
        range_length=np.zeros(count, np.int64),
        literals=dict(enumerate(payloads)),
    )
    records = form_records(bare, "keep")
    packed = container.packed(bare, records, _Payloads(payloads))
    stored_bytes = records.stored_as(packed).stored_bytes
    made = container.with_schema(packed.schema)

    def pieces() -> Iterator[bytes]:
        if made.has_head:
            yield made.head(stored_bytes)
        for row in records.member_rows.tolist():
            yield packed.literals.get(row, b"")
            yield packed.tails.get(row, b"")
        yield made.end(PlacedEntries.of([]), int(stored_bytes.sum()))

    return packed.schema, pieces()


def table_pieces(name: str, members: Sequence[SyntheticMember]) -> Iterator[bytes]:
    """The bytes of the Parquet or Arrow shard ``name``: a row for each record."""
    from dsort.containers.columnar.blocks import GroupRows
    from dsort.containers.columnar.columns import ColumnKinds, batch_of_records, schema_of_kinds
    from dsort.containers.columnar.writer import open_writer

    kinds = ColumnKinds()
    for each in members:
        kinds.add(each.extension.decode().removeprefix("."), each.payload)
    schema = schema_of_kinds(kinds.kinds)
    by_key = [(key, list(own)) for key, own in groupby(members, lambda each: each.key)]
    rows = [[(each.extension, each.payload) for each in own] for _, own in by_key]
    made: list[bytes] = []
    writer = open_writer(
        archive_extension(name) or "",
        schema,
        ContainerOptions(),
        lambda slices: made.extend(map(bytes, slices)),
    )
    batch = batch_of_records(name, schema, [key for key, _ in by_key], rows)
    writer.write(GroupRows(batch))
    writer.close()
    yield from made
