"""The creator: gathers the records of output shards in order and writes them, unseen by anybody.

``map``: slices of the mapped inputs. ``spill``: the bucket is read into the worker's buffer, in the
order it was written, and written again in output order; a bucket larger than the buffer takes
several turns over its spill, each for the next run of records that fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import xxhash

from dsort.core.columns import Int64s
from dsort.errors import InvariantError
from dsort.formats.tar import END_OF_ARCHIVE
from dsort.storage.base import Bucket, StagedObject
from dsort.workers.index_store import IndexStore
from dsort.workers.inputs import MappedInputs
from dsort.workers.shard_bytes import PayloadBuffer
from dsort.workers.slices import slices_of, slices_of_sources
from dsort.workers.spill import SpillReader
from dsort.workers.tasks import CreateDone, CreateTask, OutputPiece, WorkerSetup
from dsort.workers.writeback import Writeback

__all__ = ["Creator"]

ROWS_AT_ONCE_MAX = 2048
"""Slices are made for so many records at a time: small records are then still in the processor's
cache when their checksum is taken, and a slice object takes 200 bytes."""
INPUTS_OPEN_MAX = 16384
FLUSH_BYTES = 16 << 20
"""The disk is set to work each time so much has been written."""

SliceLists = Iterator[Sequence[memoryview]]


class Creator:
    """Writes output shards for one job, in one worker."""

    def __init__(
        self, setup: WorkerSetup, inputs: Bucket, outputs: Bucket, buffer: PayloadBuffer
    ) -> None:
        self._scratch = Path(setup.scratch)
        self._spilled = setup.way == "spill"
        self._outputs = outputs
        self._buffer = buffer
        self._store = IndexStore(self._scratch)
        self._writeback = Writeback()
        self._inputs = MappedInputs(inputs, self._scratch, open_max=INPUTS_OPEN_MAX)

    def close(self) -> None:
        """Let go of the mapped inputs."""
        self._writeback.close()
        self._inputs.close()

    def create(self, task: CreateTask) -> CreateDone:
        """Write the pieces of a task, all of a shard's through one open output."""
        checksums: dict[int, str] = {}
        payload: _Payload | None = None
        out: _ShardWriter | None = None
        try:
            for piece in task.pieces:
                if out is None or out.ordinal != piece.ordinal:
                    if out is not None:
                        out.close()
                    staged = self._outputs.stage(piece.token, size_bytes=piece.shard_bytes)
                    out = _ShardWriter(staged, piece, self._writeback)
                if piece.bucket >= 0 and (payload is None or payload.bucket != piece.bucket):
                    if payload is not None:
                        payload.close()
                    payload = self._payload(piece.bucket)
                checksum = out.write_piece(piece, payload)
                if checksum:
                    checksums[piece.ordinal] = checksum
        finally:
            for held in (out, payload):
                if held is not None:
                    held.close()
        return CreateDone(
            checksums=checksums,
            records=sum(piece.row_stop - piece.row_start for piece in task.pieces),
            bytes_written=sum(piece.stored_bytes for piece in task.pieces),
        )

    def _payload(self, bucket: int) -> _Payload:
        if self._spilled:
            return _SpilledPayload(self._store, self._scratch, bucket, self._buffer)
        return _MappedPayload(self._store, bucket, self._inputs)


class _ShardWriter:
    """Writes one output shard, piece by piece, and checks that each is as long as planned."""

    def __init__(self, staged: StagedObject, first: OutputPiece, writeback: Writeback) -> None:
        self._writeback = writeback
        self.ordinal = first.ordinal
        self._staged = staged
        self._offset = self._flushed = 0
        self._state = xxhash.xxh3_64()

    def write_piece(self, piece: OutputPiece, payload: _Payload | None) -> str:
        """Write one piece; the XXH3 of the shard (hexadecimal) if that ends it, else ""."""
        if self._offset != piece.offset:
            raise InvariantError(f"output shard {piece.ordinal} is written with a gap")
        if payload is not None and piece.row_stop > piece.row_start:
            for slices in payload.slices(piece.row_start, piece.row_stop):
                self._write(slices)
        if self._offset != piece.offset + piece.stored_bytes:
            raise InvariantError(
                f"output shard {piece.ordinal} got {self._offset - piece.offset} bytes, "
                f"{piece.stored_bytes} were planned"
            )
        if not piece.last:
            return ""
        self._write([memoryview(END_OF_ARCHIVE)])
        if self._offset != piece.shard_bytes:
            raise InvariantError(f"output shard {piece.ordinal} has {self._offset} bytes")
        return self._state.hexdigest()

    def close(self) -> None:
        """Nothing more comes: let the disk take the rest."""
        self._writeback.finish(self._staged, self._flushed, self._offset - self._flushed)

    def _write(self, slices: Sequence[memoryview]) -> None:
        self._staged.write_at(self._offset, slices)
        self._offset += sum(map(len, slices))
        if self._offset - self._flushed >= FLUSH_BYTES:
            self._writeback.start(self._staged, self._flushed, self._offset - self._flushed)
            self._flushed = self._offset
        update = self._state.update
        for piece in slices:
            update(piece)


class _Payload(Protocol):
    """Where the records of one bucket come from."""

    bucket: int

    def slices(self, start: int, stop: int) -> SliceLists:
        """The slices of rows ``start:stop``, some records at a time; valid until the next step."""

    def close(self) -> None:
        """Release files."""


class _MappedPayload:
    """Records as slices of the mapped input shards."""

    def __init__(self, store: IndexStore, bucket: int, inputs: MappedInputs) -> None:
        self.bucket = bucket
        self._store = store
        self._inputs = inputs

    def close(self) -> None:
        """The mappings stay for the next bucket."""

    def slices(self, start: int, stop: int) -> SliceLists:
        """The slices of rows ``start:stop``, some records at a time."""
        rows = self._store.ordered(self.bucket, start, stop)
        step = min(ROWS_AT_ONCE_MAX, self._inputs.open_max)
        for at in range(0, stop - start, step):
            some = slice(at, min(at + step, stop - start))
            source = rows.source[some]
            views = self._inputs.views(np.unique(source).tolist())
            yield slices_of_sources(views, source, rows.segments.run(some.start, some.stop))


class _SpilledPayload:
    """Records of one bucket's spill, through the worker's buffer."""

    def __init__(
        self, store: IndexStore, scratch: Path, bucket: int, buffer: PayloadBuffer
    ) -> None:
        self.bucket = bucket
        self._rows = rows = store.ordered(bucket)
        self._reader = SpillReader(
            scratch, bucket, rows.block_worker, rows.block_start, rows.block_bytes
        )
        self._buffer = buffer
        self._whole: memoryview | None = None
        if self._reader.size_bytes <= buffer.size_bytes:
            self._whole = buffer.view(self._reader.size_bytes)
            self._reader.read_into(self._whole, 0)
            self._reader.forget()

    def close(self) -> None:
        """Close the spill files."""
        self._reader.close()

    def slices(self, start: int, stop: int) -> SliceLists:
        """The slices of rows ``start:stop``, some records at a time; valid until the next step."""
        if self._whole is not None:
            for at in range(start, stop, ROWS_AT_ONCE_MAX):
                rows = slice(at, min(at + ROWS_AT_ONCE_MAX, stop))
                yield slices_of(self._whole, self._rows.segments.run(rows.start, rows.stop))
            return
        stored = self._rows.stored_bytes
        row = start
        while row < stop:
            span = np.cumsum(stored[row : min(row + ROWS_AT_ONCE_MAX, stop)])
            run = int(np.searchsorted(span, self._buffer.size_bytes, side="right"))
            if run == 0:
                yield from self._streamed(row)
            else:
                yield self._packed(slice(row, row + run))
            row += max(run, 1)

    def _packed(self, rows: slice) -> list[memoryview]:
        """Read a run of records into the buffer, in the order they lie in the spill."""
        starts: Int64s = self._rows.segments.start[rows]
        lengths: Int64s = self._rows.segments.length[rows]
        slices: list[memoryview] = [memoryview(b"")] * len(starts)
        view, at = self._buffer.view(self._buffer.size_bytes), 0
        for row in np.argsort(starts, kind="stable").tolist():
            size = int(lengths[row])
            slices[row] = view[at : at + size]
            self._reader.read_into(slices[row], int(starts[row]))
            at += size
        return slices

    def _streamed(self, row: int) -> SliceLists:
        """A record larger than the buffer, a buffer at a time."""
        start, length = int(self._rows.segments.start[row]), int(self._rows.segments.length[row])
        for at in range(0, length, self._buffer.size_bytes):
            view = self._buffer.view(min(self._buffer.size_bytes, length - at))
            self._reader.read_into(view, start + at)
            yield [view]
