"""Writes output shards whose container is not the carrier: converts records while it writes them.

Some records at a time form a shard of the carrier, which is read like any input shard and packed by
the container of the output. The length of the output shard is known only when it is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import ClassVar, Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dsort.containers.base import Container
from dsort.data.columns import Int64s, offsets_of, runs_that_fit
from dsort.data.index import STORED_BYTES
from dsort.data.members import (
    MemberKind,
    MemberTable,
    PlacedEntries,
    bare_table,
    placed_entries,
)
from dsort.data.records import FormedRecords, form_records, split_names
from dsort.errors import ConversionError, InvariantError, StrayMemberError
from dsort.moves.base import RecordPayload
from dsort.moves.payload_files import NamelessFile
from dsort.moves.slices import slices_of
from dsort.naming.names import readable
from dsort.scratch.directory import Scratch
from dsort.scratch.index import IndexStore
from dsort.sizes import format_bytes
from dsort.workers.conversion import ShardPayloads
from dsort.workers.sinks import ContentCheck, StagedFile
from dsort.workers.tasks import SCHEMA_FILE, OutputPiece, WorkerSetup

BATCH_BYTES = 8 << 20
"""The bytes that are converted at a time; a longer record is converted alone."""
COPY_BYTES = 1 << 20
END_BYTES = 1024
"""Zeros behind a run of records, so that it ends like a tar."""


class _Held(Struct, frozen=True):
    """Bytes in memory that ``ShardPayloads`` can read like a shard."""

    whole: memoryview

    is_whole: ClassVar[bool] = True

    def range(self, start: int, length: int) -> Iterator[memoryview]:
        """Yield the bytes of one range."""
        yield self.whole[start : start + length]


class _Carried(Struct, frozen=True):
    """Some records: bare members, whose payloads are ranges of ``held``."""

    held: _Held
    members: MemberTable
    records: FormedRecords

    def contents(self) -> Iterator[list[tuple[bytes, bytes]]]:
        """(extension with its dot, content) of the members of each record."""
        records, members = self.records, self.members
        offsets, rows = records.member_offsets.tolist(), records.member_rows.tolist()
        for first, stop in pairwise(offsets):
            found = []
            for row in rows[first:stop]:
                start = int(members.payload_start[row])
                content = bytes(self.held.whole[start : start + int(members.payload_bytes[row])])
                found.append((members.names[row][int(records.key_bytes[row]) :], content))
            yield found


class _Body(Protocol):
    """Converts the records of an output shard and writes them between its first byte and its
    last."""

    def add(self, carried: _Carried) -> None:
        """Convert and write the next records."""

    def finish(self) -> None:
        """Write the rest, once all records were added."""

    def close(self) -> None:
        """Close files."""


class ConvertedSink:
    """Converts the records of one output shard, some at a time, and writes them."""

    def __init__(
        self,
        file: StagedFile,
        piece: OutputPiece,
        setup: WorkerSetup,
        schema: str,
        store: IndexStore,
    ) -> None:
        """``piece``: the first piece of the shard. ``schema``: the schema of its records, if the
        container has schemas; the schema of rows is in ``store``."""
        pipeline = setup.pipeline
        self.file = file
        self._name = piece.name
        self._carrier = pipeline.carrier
        self._container = pipeline.outputs[piece.output].container
        # Records are checked before they are converted: converted bytes have no hashes.
        self._checks = pipeline.result.checks_content
        self._record_bytes_max = max(setup.movement.buffer_bytes, BATCH_BYTES)
        self._offset, head = 0, self._container.head
        self._shard_bytes_max = math.inf if head is None else head.shard_bytes_max
        self._body: _Body
        if self._container.is_columnar:
            of_rows, read = store.file_bytes(SCHEMA_FILE), pipeline.reading.container
            self._body = _Rows(piece.name, self._container, of_rows, read, self._write)
        else:
            self._body = _Records(piece.name, self._container, schema, self._write, store.scratch)

    def write_piece(self, piece: OutputPiece, payload: RecordPayload) -> None:
        """See :class:`~dsort.workers.sinks.Sink`."""
        if piece.row_stop > piece.row_start:
            ordered = payload.ordered(piece.row_start, piece.row_stop)
            check = ContentCheck(ordered.rows, piece.ordinal) if self._checks else None
            sizes = ordered.by_record()[STORED_BYTES]
            for at, stop in pairwise(runs_that_fit(sizes, BATCH_BYTES).tolist()):
                slices = payload.slices(piece.row_start + at, piece.row_start + stop)
                self._body.add(self._carried(slices, sizes[at:stop], check))
        if piece.last:
            self._body.finish()

    def _carried(
        self, slices: Iterator[Sequence[memoryview]], sizes: Int64s, check: ContentCheck | None
    ) -> _Carried:
        """Read the records that are in ``slices``. ``sizes``: the stored bytes of each."""
        total, at = int(sizes.sum()), 0
        if len(sizes) == 1 and total > self._record_bytes_max:
            raise ConversionError(
                f"a record of {format_bytes(total)} of output shard {self._name} is larger than "
                f"what a worker may hold to convert it ({format_bytes(self._record_bytes_max)})",
                hint="give the job more memory, or write .tar and convert that",
            )
        data = bytearray(total + END_BYTES)
        for each in slices:
            for part in each:
                if check is not None:
                    check.feed(part)
                data[at : at + len(part)] = part
                at += len(part)
        if at != total:
            raise InvariantError(
                f"output shard {self._name} got {at} bytes of records, not {total}"
            )
        members = self._carrier.scan(self._name, memoryview(data))
        _refuse_links(self._name, members)
        record_of = np.searchsorted(np.cumsum(sizes), members.range_start, side="right")
        if not np.array_equal(np.unique(record_of), np.arange(len(sizes))):
            raise InvariantError(f"records of output shard {self._name} are not as they were read")
        split = split_names(members.names)
        key_bytes = np.where(split.stray, members.names.lengths, split.key_bytes)
        own = replace(members.own, key_bytes=key_bytes, record_of=record_of)
        bare = bare_table(replace(members, own=own))
        return _Carried(_Held(memoryview(data)), bare, form_records(bare, "keep"))

    def abandon(self) -> None:
        """See :class:`~dsort.workers.sinks.Sink`."""
        self._body.close()
        self.file.abandon()

    def _write(self, slices: Sequence[memoryview]) -> None:
        self._offset += self.file.write(slices)
        limit = self._shard_bytes_max
        if self._offset > limit:
            raise ConversionError(
                f"output shard {self._name} gets longer than a "
                f"{self._container.suffixes[0]} shard may be, {limit:,} bytes",
                hint="choose a smaller output_shard_size, or a larger output_shard_count",
            )


def _refuse_links(shard: str, members: MemberTable) -> None:
    links = np.flatnonzero(
        (members.kind == MemberKind.SYMLINK) | (members.kind == MemberKind.HARDLINK)
    )
    if len(links):
        raise StrayMemberError(
            f"the link {readable(members.names[int(links[0])])} cannot be in output shard {shard}: "
            "its records are converted",
            hint="stray_members: drop leaves links out",
        )


_Write = Callable[[Sequence[memoryview]], None]


class _Records:
    """Records of a raw container. If the head of the shard lists the length of each record, records
    wait in a file without a name until all are there."""

    def __init__(
        self, name: str, container: Container, schema: str, write: _Write, scratch: Scratch
    ) -> None:
        self._name = name
        self._container = container.with_schema(schema) if schema else container
        assert self._container.packed is not None
        self._packed = self._container.packed
        self._schema = schema
        self._write = write
        self._head = self._container.head
        self._waiting = None if self._head is None else NamelessFile(name, scratch)
        self._sizes: list[Int64s] = []
        self._entries: list[PlacedEntries] = []
        self._stored = 0

    def add(self, carried: _Carried) -> None:
        """See :class:`_Body`."""
        members, held = carried.members, carried.held
        packed = self._packed(members, carried.records, ShardPayloads(held, members))
        schemas, known = self._container.schemas, self._schema
        if schemas is not None and known and packed.own.schema and packed.own.schema != known:
            difference = schemas.difference(known, packed.own.schema)
            raise ConversionError(
                f"output shard {self._name} {difference}, unlike others: all its records need "
                "members of the same extensions",
                hint="the step require leaves out records that lack one; the step fields drops "
                "members that others lack",
            )
        records = carried.records.stored_as(packed)
        entries = records.entries(packed)
        if entries is not None:
            counts = np.diff(records.member_offsets).astype(np.int32)
            placed = placed_entries(entries, counts, records.stored_bytes, self._stored)
            self._entries.append(placed)
        self._stored += int(records.stored_bytes.sum())
        slices = slices_of(held.whole, records.segments(packed))
        if self._waiting is None:
            self._write(slices)
            return
        self._sizes.append(records.stored_bytes)
        self._waiting.append(b"".join(slices))

    def finish(self) -> None:
        """See :class:`_Body`."""
        if self._waiting is not None and self._head is not None:
            sizes = np.concatenate([np.zeros(0, np.int64), *self._sizes])
            self._write([memoryview(self._head.of(sizes))])
            for at in range(0, self._stored, COPY_BYTES):
                window = memoryview(bytearray(min(COPY_BYTES, self._stored - at)))
                self._waiting.read_into(window, at)
                self._write([window])
        end = self._container.end(PlacedEntries.concat(self._entries), self._stored)
        self._write([memoryview(end)])
        self.close()

    def close(self) -> None:
        """See :class:`_Body`."""
        if self._waiting is not None:
            self._waiting.close()
            self._waiting = None


class _Rows:
    """Records as rows of a table. A row group is limited by the number of its rows and by their
    payload."""

    def __init__(
        self, name: str, container: Container, schema: bytes, read: Container, write: _Write
    ) -> None:
        """``schema``: of the rows. ``read``: the container that records were read from."""
        # Imported only where rows are written, so that other jobs start faster.
        from dsort.containers.columnar.blocks import RowGroup
        from dsort.containers.columnar.container import Columnar
        from dsort.containers.columnar.schema import plain_schema, schema_of
        from dsort.containers.columnar.writer import GroupLimits, RowGroups, open_writer

        assert isinstance(container, Columnar)
        stored, options = schema_of(schema), container.options
        self._name = name
        self._key_column = read.options.key_field if isinstance(read, Columnar) else None
        self._schema = plain_schema("of the job", stored)
        table = open_writer(container.suffixes[0], stored, options, write)
        group = RowGroup(self._schema, table.columns)
        self._groups = RowGroups(table, GroupLimits.of(stored, options), group)

    def add(self, carried: _Carried) -> None:
        """See :class:`_Body`."""
        from dsort.containers.columnar.blocks import RowBlocks
        from dsort.containers.columnar.columns import batch_of_records, row_contents

        records, group = carried.records, self._groups.group
        keys = records.keys.tolist()
        contents = [
            row_contents(key, cells, self._key_column)
            for key, cells in zip(keys, carried.contents(), strict=True)
        ]
        made = batch_of_records(self._name, self._schema, keys, contents)
        blocks = RowBlocks.of_batch(made, self._schema, group.away)
        running = offsets_of(records.payload_bytes)
        self._groups.add(running, lambda first, stop: group.add(blocks, np.arange(first, stop)))

    def finish(self) -> None:
        """See :class:`_Body`."""
        self._groups.close()

    def close(self) -> None:
        """See :class:`_Body`: there are no files."""
