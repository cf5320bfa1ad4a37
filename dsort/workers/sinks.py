"""Sinks write one output shard from the payload of its pieces, and check its length and content.

All records travel in one container, the carrier. A :class:`RawSink` writes them unchanged, a
``ConvertedSink`` in another container, and a ``RowSink`` writes rows of tables.
"""

from __future__ import annotations

from typing import Any, Protocol

import xxhash

from dsort.containers.base import Container
from dsort.data.entries import PlacedEntries, placed_entries
from dsort.data.index import CONTENT_HASH, ENTRIES, MEMBERS, ORDINAL, SHARD, STORED_BYTES
from dsort.data.table import Table
from dsort.errors import InvariantError, StorageError
from dsort.moves.base import RecordPayload
from dsort.workers.encoding import ShardEncoder
from dsort.workers.staged_file import StagedFile
from dsort.workers.tasks import OutputPiece


class Sink(Protocol):
    """Receives the pieces of one output shard in order."""

    def write_piece(self, piece: OutputPiece, payload: Any) -> None:
        """Write one piece, and end the shard with its last one. ``payload``: of the piece's
        partition, in the form that this sink needs; ignored if the piece has no rows."""

    def abandon(self) -> None:
        """Discard a shard that will not be finished."""


class FileSink(Sink, Protocol):
    """A sink that writes one output shard to its file."""

    file: StagedFile


class ContentCheck:
    """Computes the XXH3 of one record after the other, and compares it with the hash from the
    record's extraction."""

    def __init__(self, rows: Table, output_ordinal: int) -> None:
        if CONTENT_HASH not in rows:
            raise InvariantError("the index has no content hashes to verify against")
        self._rows = rows
        self._output = output_ordinal
        self._sizes = rows[STORED_BYTES].tolist()
        self._expected = rows[CONTENT_HASH].tolist()
        self._row = self._at = 0
        self._state = xxhash.xxh3_64()

    def feed(self, piece: memoryview) -> None:
        """Check the next bytes. ``StorageError`` if a record differs."""
        while len(piece):
            size = min(len(piece), self._sizes[self._row] - self._at)
            self._state.update(piece[:size])
            self._at += size
            piece = piece[size:]
            if self._at == self._sizes[self._row]:
                self._end_record()

    def _end_record(self) -> None:
        row = self._row
        if self._state.intdigest() != self._expected[row]:
            raise StorageError(
                f"record {int(self._rows[ORDINAL][row])} of input shard number "
                f"{int(self._rows[SHARD][row])} does not read back as it was read, for output "
                f"shard number {self._output}",
                hint="check memory and disks; nothing was published",
            )
        self._row, self._at = row + 1, 0
        self._state.reset()


class RawSink:
    """Writes records unchanged, and checks that each piece has its planned length."""

    def __init__(self, file: StagedFile, container: Container, *, checks: bool) -> None:
        """``checks``: check the content of records, too."""
        self.file = file
        self._container = container
        self._checks = checks
        self._offset = 0
        self._entries: list[PlacedEntries] = []

    def write_head(self, head: bytes) -> None:
        """Write the bytes before the first piece."""
        self._offset += self.file.write([memoryview(head)])

    def write_piece(self, piece: OutputPiece, payload: RecordPayload) -> None:
        """See :class:`Sink`."""
        if self._offset != piece.offset:
            raise InvariantError(f"output shard {piece.ordinal} is written with a gap")
        if piece.row_stop > piece.row_start:
            self._write_rows(piece, payload)
        if self._offset != piece.offset + piece.stored_bytes:
            raise InvariantError(
                f"output shard {piece.ordinal} got {self._offset - piece.offset} bytes, "
                f"{piece.stored_bytes} were planned"
            )
        if piece.last:
            entries = PlacedEntries.concat(self._entries) if self._entries else _NO_ENTRIES
            end = self._container.end(entries, self._offset)
            self._offset += self.file.write([memoryview(end)])
            if self._offset != piece.shard_bytes and piece.shard_bytes >= 0:
                raise InvariantError(f"output shard {piece.ordinal} has {self._offset} bytes")

    def _write_rows(self, piece: OutputPiece, payload: RecordPayload) -> None:
        check: ContentCheck | None = None
        if self._checks or self._container.entries is not None:
            rows = payload.ordered(piece.row_start, piece.row_stop).rows
            if self._checks:
                check = ContentCheck(rows, piece.ordinal)
            if self._container.entries is not None:
                sizes = rows[STORED_BYTES]
                placed = placed_entries(rows[ENTRIES], rows[MEMBERS], sizes, piece.offset)
                self._entries.append(placed)
        for slices in payload.slices(piece.row_start, piece.row_stop):
            if check is not None:
                for part in slices:
                    check.feed(part)
            self._offset += self.file.write(slices)

    def abandon(self) -> None:
        """See :class:`Sink`."""
        self.file.abandon()


_NO_ENTRIES = PlacedEntries.of(())


class CountingSink:
    """Encodes records, and keeps only the length of the encoded bytes: ``size_bytes``."""

    def __init__(self, encoder: ShardEncoder | None) -> None:
        self.size_bytes = 0
        self._encoder = encoder

    def write_piece(self, piece: OutputPiece, payload: RecordPayload) -> None:
        """See :class:`Sink`."""
        if piece.row_stop > piece.row_start:
            for slices in payload.slices(piece.row_start, piece.row_stop):
                encoded = slices if self._encoder is None else self._encoder.feed(slices)
                self.size_bytes += sum(map(len, encoded))
        if piece.last and self._encoder is not None:
            self.size_bytes += sum(map(len, self._encoder.finish()))

    def abandon(self) -> None:
        """See :class:`Sink`."""
        if self._encoder is not None:
            self._encoder.abandon()
