"""The move and the sink of a view: write which ranges of input shards an output shard has."""

from __future__ import annotations

import numpy as np

from dsort.containers.base import Container
from dsort.containers.view import ViewRows, ViewWriter
from dsort.data.index import KEYS, RANGES, SHARD
from dsort.moves.base import RecordPayload
from dsort.moves.map import MapMove, MappedPayload
from dsort.scratch.requests import OrderedRowsOf
from dsort.scratch.tables import OrderedRows
from dsort.workers.sinks import ContentCheck, RawSink, StagedFile
from dsort.workers.tasks import OutputPiece


class KeyedRows(MappedPayload):
    """The rows of one partition, with the keys of records."""

    def _asked(self, start: int, stop: int) -> OrderedRows:
        request = OrderedRowsOf(self.partition, start, stop, with_keys=True)
        return self._nodes.ask(self._node, request)


class ViewMove(MapMove):
    """Payload stays in the input shards. A view lists its places, and creators get no payload."""

    payload = KeyedRows


class ViewSink(RawSink):
    """Lists the bytes that a :class:`RawSink` would write, with the same checks of lengths."""

    def __init__(self, file: StagedFile, container: Container, schema: str) -> None:
        """``schema``: of the output shards."""
        super().__init__(file, container, checks=False)
        self._view = ViewWriter(file.write, schema)
        self._records = 0

    def write_piece(self, piece: OutputPiece, payload: RecordPayload) -> None:
        """See :class:`~dsort.workers.sinks.Sink`."""
        super().write_piece(piece, payload)
        if piece.last:
            self._view.close()

    def _put(self, data: bytes) -> None:
        if data:
            self._view.add(ViewRows.literal(data))
        self._offset += len(data)

    def _copy(self, piece: OutputPiece, payload: RecordPayload, check: ContentCheck | None) -> None:
        ordered = payload.ordered(piece.row_start, piece.row_stop)
        rows, count = ordered.rows, piece.row_stop - piece.row_start
        record = np.arange(self._records, self._records + count)
        if ordered.has_pieces:
            record = np.repeat(record, np.diff(ordered.record_offsets))
        found = ViewRows.of(rows[RANGES], rows[SHARD], record, rows[KEYS])
        self._view.add(found)
        self._records += count
        self._offset += int(found.length.sum())
