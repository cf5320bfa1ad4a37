"""Output shards of rows. The rows and bytes of the output order alone decide where row groups end,
so that a shard's bytes depend on nothing else. For ``verify: content``, rows are compared with the
hashes that were computed when they were extracted."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np

from dsort.containers.columnar.blocks import GroupRows, RowGroup
from dsort.containers.columnar.cells import row_hashes
from dsort.containers.columnar.container import Columnar
from dsort.containers.columnar.plain_chunks import PlainColumn
from dsort.containers.columnar.reader import open_table, plain_batches
from dsort.containers.columnar.schema import plain_schema, schema_of
from dsort.containers.columnar.writer import GroupLimits, RowGroups, open_writer
from dsort.data.columns import offsets_of
from dsort.data.index import CONTENT_HASH, PAYLOAD_BYTES
from dsort.data.table import Table
from dsort.errors import CorruptShardError, InvariantError, StorageError
from dsort.moves.spilled_rows import RowPayload
from dsort.scratch.index import IndexStore
from dsort.storage.bucket import StagedObject
from dsort.workers.sinks import StagedFile, hashes_in, other_content
from dsort.workers.tasks import LONG_COLUMNS_FILE, SCHEMA_FILE, OutputPiece

BATCH_SHARE = 8


class RowsForm:
    """The values that all output shards of a job share. ``group``: the empty row group of the last
    shard, so that its memory is used again."""

    def __init__(self, store: IndexStore) -> None:
        self._store = store
        self.group: RowGroup | None = None

    @cached_property
    def schema(self) -> Any:
        """The schema of all rows."""
        return schema_of(self._store.file_bytes(SCHEMA_FILE))

    @cached_property
    def long(self) -> list[str]:
        """The columns with long values."""
        found: list[str] = json.loads(self._store.file_bytes(LONG_COLUMNS_FILE))
        return found

    def group_of(self, columns: tuple[PlainColumn, ...]) -> RowGroup:
        """An empty row group. The caller owns it until it is stored in ``group`` again."""
        group, self.group = self.group, None
        if group is None or group.columns != columns:
            group = RowGroup(plain_schema("of the job", self.schema), columns)
        return group


class RowSink:
    """Writes one output shard of rows."""

    def __init__(
        self, file: StagedFile, ordinal: int, container: Columnar, form: RowsForm, *, checks: bool
    ) -> None:
        self.file = file
        self._form = form
        self._check = RowCheck(ordinal) if checks else None
        options = container.options
        table = open_writer(container.suffixes[0], form.schema, options, file.write, long=form.long)
        group = form.group_of(() if checks else table.columns)  # checks need whole rows
        limits = GroupLimits.of(form.schema, options)
        self._groups = RowGroups(table, limits, group, self._look if checks else None)

    def write_piece(self, piece: OutputPiece, payload: RowPayload) -> None:
        """See :class:`~dsort.workers.sinks.Sink`."""
        start, stop = piece.row_start, piece.row_stop
        if stop > start:
            rows = payload.ordered(start, stop).rows
            if self._check is not None:
                self._check.expect(rows)
            running = offsets_of(rows[PAYLOAD_BYTES])
            group = self._groups.group
            self._groups.add(
                running, lambda first, last: payload.gather(start + first, start + last, group)
            )
        if piece.last:
            self._groups.close()
            if not self.file.written_bytes:
                raise InvariantError(f"nothing was written of output shard {piece.ordinal}")
            self._form.group = self._groups.group

    def abandon(self) -> None:
        """See :class:`~dsort.workers.sinks.Sink`."""
        self.file.abandon()

    def _look(self, rows: GroupRows) -> None:
        assert self._check is not None
        self._check.feed(rows.light)


class RowCheck:
    """Receives the rows of one output shard in order, and compares each with its hash."""

    def __init__(self, output_ordinal: int) -> None:
        self._output = output_ordinal
        self._expected: deque[Table] = deque()
        self.missing = 0
        """How many expected rows have not come yet."""

    def expect(self, rows: Table) -> None:
        """Expect these rows next."""
        if len(hashes_in(rows)):
            self._expected.append(rows)
            self.missing += len(rows)

    def feed(self, batch: Any) -> None:
        """Compare the next rows; ``StorageError`` for a row that differs from its hash."""
        found, at = row_hashes(batch), 0
        while at < len(found):
            if not self._expected:
                raise self._other(len(found) - at)
            rows = self._expected.popleft()
            count = min(len(rows), len(found) - at)
            wrong = np.flatnonzero(rows[CONTENT_HASH][:count] != found[at : at + count])
            if len(wrong):
                raise other_content(rows, int(wrong[0]), self._output)
            if count < len(rows):
                self._expected.appendleft(rows.run(count, len(rows)))
            at += count
        self.missing -= len(found)

    def end(self) -> None:
        """End the shard; ``StorageError`` if rows are missing."""
        if self.missing:
            raise self._other(-self.missing)

    def _other(self, more: int) -> StorageError:
        return StorageError(
            f"output shard number {self._output} reads back with {abs(more)} rows "
            f"{'more' if more > 0 else 'less'} than were written",
            hint="check memory and disks; nothing was published",
        )


class _Staged:
    """A staged shard as a :class:`~dsort.containers.columnar.ranges.Source`."""

    def __init__(self, staged: StagedObject) -> None:
        self._staged = staged
        self.size_bytes = staged.size_bytes()

    def whole(self) -> memoryview | None:
        """None: the shard is read in parts."""
        return None

    def held(self, offset: int, length: int) -> memoryview | None:
        """None: no range is held in memory."""
        return None

    def read(self, offset: int, length: int) -> bytes:
        """Read one range."""
        data = bytearray(length)
        self._staged.read_into(memoryview(data), offset)
        return bytes(data)


def check_staged_rows(
    ordinal: int, staged: StagedObject, rows: Iterable[Table], buffer_bytes: int
) -> None:
    """Read an output shard back and compare it with ``rows``; ``StorageError`` if it differs."""
    check = RowCheck(ordinal)
    for each in rows:
        check.expect(each)
    try:
        table = open_table(f"number {ordinal}", _Staged(staged))
        plain = plain_schema(f"number {ordinal}", table.schema)
        batches = plain_batches(f"number {ordinal}", table, plain, buffer_bytes // BATCH_SHARE)
        for batch in batches:
            check.feed(batch)
    except CorruptShardError as error:
        raise StorageError(
            f"output shard {error.message} when it is read back",
            hint="check the disk and its file system; nothing was published",
        ) from None
    check.end()
