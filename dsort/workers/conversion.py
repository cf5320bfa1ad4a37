"""Conversion of one input shard to the container of the outputs, during extraction.

Payload stays ranges of the input shard; the bytes around it in an output shard become literals and
tails (see ``MemberTable``). If records are converted only at creation, and their container needs
the same members in each, they get one schema from the extensions that all shards report.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
from msgspec.structs import replace

from dsort.containers.base import Container
from dsort.data.columns import BytesColumn, Int64s, UInt32s
from dsort.data.index import GROUP
from dsort.data.members import MemberKind, MemberTable
from dsort.data.record_table import RecordTable
from dsort.data.records import FormedRecords
from dsort.data.row_bytes import distinct_rows
from dsort.data.table import Table
from dsort.errors import StorageError, StrayMemberError
from dsort.moves.bare import BARE, payload_table
from dsort.moves.input_shard import ShardBytes
from dsort.naming.names import readable
from dsort.pipeline.pipeline import Pipeline
from dsort.scratch.index import IndexStore
from dsort.workers.batch import Batch, Operator
from dsort.workers.tasks import WorkerSetup


class _Readable(Protocol):
    """A shard whose payloads can be read. ``whole``: all its bytes, if ``is_whole``."""

    @property
    def whole(self) -> memoryview: ...

    @property
    def is_whole(self) -> bool: ...

    def range(self, start: int, length: int) -> Iterator[memoryview]: ...


class ShardPayloads:
    """The payloads of the members of a bare table (see ``containers.base.Payloads``)."""

    def __init__(
        self,
        shard: _Readable,
        members: MemberTable,
        *,
        are_sealed_later: bool = False,
        shard_bytes: int = 0,
    ) -> None:
        self.are_sealed_later, self.shard_bytes = are_sealed_later, shard_bytes
        self._shard = shard
        self._members = members

    def pieces(self, row: int) -> Iterator[memoryview | bytes]:
        """The payload of a row, in order, in pieces of bounded size."""
        start = int(self._members.payload_start[row])
        if start < 0:
            yield self._members.literals.get(row, b"")
        else:
            yield from self._shard.range(start, int(self._members.payload_bytes[row]))

    def each(self, rows: Int64s) -> Iterator[Iterable[memoryview | bytes]]:
        """The payloads of ``rows``, each in pieces: 0.2 µs a row where the shard is in memory."""
        whole, literals = self._shard.whole, self._members.literals
        if not self._shard.is_whole:
            yield from map(self.pieces, rows.tolist())
            return
        starts = self._members.payload_start[rows]
        stops = starts + self._members.payload_bytes[rows]
        for row, start, stop in zip(rows.tolist(), starts.tolist(), stops.tolist(), strict=True):
            yield (whole[start:stop] if start >= 0 else literals.get(row, b""),)

    def checksums(
        self, rows: Int64s, update: Callable[[memoryview | bytes, int], int], begun: UInt32s
    ) -> UInt32s:
        """The checksum of each of ``rows``, continued from the one in ``begun``: 0.3 µs a row plus
        ``update`` itself, where the shard is in memory."""
        whole, starts = self._shard.whole, self._members.payload_start[rows]
        if self._shard.is_whole and bool((starts >= 0).all()):
            stops = (starts + self._members.payload_bytes[rows]).tolist()
            payloads = map(whole.__getitem__, map(slice, starts.tolist(), stops))
            return np.fromiter(map(update, payloads, begun.tolist()), np.uint32, len(rows))
        found = begun.tolist()
        for place, pieces in enumerate(self.each(rows)):
            for piece in pieces:
                found[place] = update(piece, found[place])
        return np.array(found, np.uint32)


def bare_members(shard: ShardBytes, members: MemberTable, stray_members: str) -> MemberTable:
    """The members of a scanned shard as payloads alone; afterwards ``shard`` has no headers.

    ``StrayMemberError`` for links, which no other container can hold, unless the job drops strays
    anyway."""
    links = np.flatnonzero(
        (members.kind == MemberKind.SYMLINK) | (members.kind == MemberKind.HARDLINK)
    )
    if len(links) and stray_members != "drop":
        raise StrayMemberError(
            f"shard {shard.name} has {len(links)} links, the first is "
            f"{readable(members.names[int(links[0])])}; a job that converts shards cannot keep "
            "them",
            hint="stray_members: drop leaves them out",
        )
    bare = payload_table(shard, members)
    shard.container = BARE
    return bare


def bared_records(
    shard: ShardBytes, members: MemberTable, records: FormedRecords
) -> tuple[MemberTable, FormedRecords]:
    """The bare members of a shard that steps have made, for another container or the next step."""
    bare = bare_members(shard, members, "keep")
    return bare, records.stored_as(bare)


def without_final_newlines(
    shard: ShardBytes, members: MemberTable
) -> tuple[MemberTable, list[int]]:
    """A bare table with one line feed removed from the end of payloads, and the changed rows."""
    starts, sizes = members.payload_start.tolist(), members.payload_bytes.tolist()
    literals = dict(members.literals)
    rows = []
    for row in np.flatnonzero(members.payload_bytes > 0).tolist():
        if starts[row] < 0:
            if literals[row].endswith(b"\n"):
                literals[row] = literals[row][:-1]
                rows.append(row)
        elif shard.at(starts[row] + sizes[row] - 1, 1) == b"\n":
            rows.append(row)
    payload_bytes, lengths = members.payload_bytes.copy(), members.range_length.copy()
    payload_bytes[rows] -= 1
    ranges = [row for row in rows if starts[row] >= 0]
    lengths[ranges] -= 1
    shorter = replace(members, payload_bytes=payload_bytes, range_length=lengths, literals=literals)
    return shorter, rows


def shown_names(shard: str, members: MemberTable, rows: Iterable[int]) -> Iterator[str]:
    """The names of the members ``rows`` as messages and reactions show them."""
    return (f"{shard}: {readable(members.names[row])}" for row in rows)


class AddMemberDefaults(Operator):
    """Adds the members that the container of the outputs needs and that records lack."""

    def __init__(self, setup: WorkerSetup, store: IndexStore) -> None:
        super().__init__(setup, store)
        self._defaults = setup.pipeline.member_defaults

    def apply(self, batch: Batch) -> None:
        """Add the members to the records of a batch that is converted, and count them."""
        if batch.shard.container is not BARE:
            return
        named, records, made = _with_member_defaults(batch.named, batch.records, self._defaults)
        batch.named, batch.records = named, records
        names = shown_names(batch.shard.name, named, made)
        batch.log.add("members_defaulted", len(made), names)


def _with_member_defaults(
    members: MemberTable, records: FormedRecords, defaults: Sequence[tuple[str, bytes]]
) -> tuple[MemberTable, FormedRecords, list[int]]:
    """Add a member, behind all others, for each of ``defaults`` (extension, payload) that a record
    lacks. Return the bare table, the records with the new members, and the new rows."""
    table = RecordTable("", members, records, lambda members, row: b"")
    of_record, names, payloads = [], [], []
    for extension, payload in defaults:
        has = np.zeros(len(records), np.bool_)
        has[table.record_of[table.members_with(f".{extension}")]] = True
        for record in np.flatnonzero(~has).tolist():
            of_record.append(record)
            names.append(records.keys[record] + f".{extension}".encode())
            payloads.append(payload)
    made = range(len(members), len(members) + len(names))
    if not made:
        return members, records, []
    sizes = np.array([len(payload) for payload in payloads], np.int64)
    nowhere = np.full(len(made), -1, np.int64)
    longer = replace(
        members,
        names=BytesColumn.concat([members.names, BytesColumn.of(names)]),
        kind=np.append(members.kind, np.full(len(made), MemberKind.FILE, np.uint8)),
        payload_start=np.append(members.payload_start, nowhere),
        payload_bytes=np.append(members.payload_bytes, sizes),
        range_start=np.append(members.range_start, nowhere),
        range_length=np.append(members.range_length, np.zeros_like(sizes)),
        literals={**members.literals, **dict(zip(made, payloads, strict=True))},
        own=members.own.with_rows_behind(records.keys.lengths[of_record]),
    )
    return longer, records.with_members(np.array(of_record, np.int64), longer), [*made]


def packed_records(
    shard: ShardBytes,
    members: MemberTable,
    records: FormedRecords,
    container: Container,
    *,
    are_sealed_later: bool,
) -> tuple[MemberTable, FormedRecords]:
    """The members of a bare table as ``container`` stores them, and the matching records."""
    payloads = ShardPayloads(
        shard, members, are_sealed_later=are_sealed_later, shard_bytes=shard.size_bytes
    )
    assert container.packed is not None
    packed = container.packed(members, records, payloads)
    return packed, records.stored_as(packed)


def reported_extensions(pipeline: Pipeline, table: RecordTable, found: Table) -> str:
    """As JSON, for each output that needs them, the extensions in a shard's records; "" if no
    output needs them."""
    wanted = [each.is_late and each.container.schemas is not None for each in pipeline.outputs]
    if not any(wanted):
        return ""
    names, rows = table.members.names, table.records.member_rows
    key_bytes = table.records.key_bytes[rows]
    of_rows = np.zeros(len(rows), np.int32)
    if len(wanted) > 1 and GROUP in found:
        of_rows = found[GROUP][table.record_of]
    extensions: list[list[str]] = []
    for output, is_wanted in enumerate(wanted):
        own = np.flatnonzero(of_rows == output) if is_wanted else rows[:0]
        starts = names.offsets[:-1][rows[own]] + key_bytes[own]
        _, first = distinct_rows(names.blob, starts, names.lengths[rows[own]] - key_bytes[own])
        texts = (names[int(rows[own[at]])][int(key_bytes[own[at]]) :] for at in first.tolist())
        extensions.append(sorted(text[1:].decode("utf-8", "replace") for text in texts if text))
    return json.dumps(extensions)


def extensions_by_output(schema: str) -> list[list[str]]:
    """Read the text that :func:`reported_extensions` made. ``StorageError`` if it is damaged:
    others may write to the place that it comes from."""
    try:
        found = json.loads(schema or "[]")
    except (ValueError, RecursionError):
        found = None
    lists = isinstance(found, list) and all(isinstance(each, list) for each in found)
    if not lists or not all(isinstance(name, str) for each in found for name in each):
        raise StorageError("the journal is damaged: it has no valid lists of extensions")
    return [[*map(str, each)] for each in found]
