"""Output shards of rows: row groups close by rows and bytes of the output order alone, so that a
shard's bytes depend on nothing else."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

import numpy as np

from dsort.containers.columnar.blocks import GroupRows, RowGroup
from dsort.containers.columnar.container import Columnar
from dsort.containers.columnar.plain_chunks import PlainColumn
from dsort.containers.columnar.schema import plain_schema, schema_of
from dsort.containers.columnar.writer import GroupLimits, RowGroups, open_writer
from dsort.data.index import PAYLOAD_BYTES
from dsort.errors import InvariantError
from dsort.moves.rows import RowPayload
from dsort.scratch.index import IndexStore
from dsort.workers.staged_file import StagedFile
from dsort.workers.table_check import RowCheck
from dsort.workers.tasks import LONG_COLUMNS_FILE, SCHEMA_FILE, OutputPiece


class RowsForm:
    """What all output shards of a job have in common. ``group``: an empty row group that the last
    one left, whose memory is used again."""

    def __init__(self, store: IndexStore) -> None:
        self._store = store
        self.group: RowGroup | None = None

    @cached_property
    def schema(self) -> Any:
        """Of all rows."""
        return schema_of(self._store.file_bytes(SCHEMA_FILE))

    @cached_property
    def long(self) -> list[str]:
        """The columns of long values."""
        found: list[str] = json.loads(self._store.file_bytes(LONG_COLUMNS_FILE))
        return found

    def group_of(self, columns: tuple[PlainColumn, ...]) -> RowGroup:
        """An empty row group; it is the caller's until it is left here again."""
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
        group = form.group_of(() if checks else table.columns)  # what is checked is whole
        limits = GroupLimits.of(form.schema, options)
        self._groups = RowGroups(table, limits, group, self._look if checks else None)

    def write_piece(self, piece: OutputPiece, payload: RowPayload) -> None:
        """See :class:`~dsort.workers.sinks.Sink`."""
        start, stop = piece.row_start, piece.row_stop
        if stop > start:
            rows = payload.ordered(start, stop).rows
            if self._check is not None:
                self._check.expect(rows)
            running = np.append(0, np.cumsum(rows[PAYLOAD_BYTES]))
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
