"""Sinks write one output shard from the payload of its pieces, and check its length and content.

All records travel in one container, the carrier. A :class:`RawSink` writes them unchanged, a
``ConvertedSink`` in another container, and a ``RowSink`` writes rows of tables.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol

import xxhash
from msgspec import Struct

from dsort.containers.base import Container
from dsort.data.columns import UInt64s
from dsort.data.hashes import FileDigests
from dsort.data.index import CONTENT_HASH, ENTRIES, MEMBERS, ORDINAL, SHARD, STORED_BYTES
from dsort.data.members import PlacedEntries, placed_entries
from dsort.data.table import Table
from dsort.errors import InvariantError, StorageError
from dsort.moves.base import RecordPayload
from dsort.scratch.logs import CreatedLog, ShardCreated
from dsort.storage.bucket import Buffer, StagedObject
from dsort.storage.directory.direct_writes import DirectWrites, direct_writes
from dsort.workers.companions import MemberWatch
from dsort.workers.encoder import Encoder, Threads
from dsort.workers.tasks import OutputPiece

FLUSH_BYTES = 16 << 20
"""Writeback starts each time this many bytes were written."""


PIECE_BYTES = 1 << 20
"""The bytes that are hashed and then written at a time. They stay in the processor's cache, and the
pages of mapped inputs that the hash has touched are mapped when the kernel copies them. Writing
before hashing took twice as long in total, whatever the size of records."""
JOINED_BYTES_MAX = 16 << 10
"""Shorter slices are joined first: a slice costs the hash and the kernel 0.3 µs each."""


class StagedFile:
    """The file of one output shard, written from its first byte to its last. Bytes pass the watch,
    the encoder and the hash before they are written. ``watch`` finds members."""

    def __init__(
        self,
        staged: StagedObject,
        writeback: Writeback,
        *,
        digests: Sequence[str],
        seals_on_finish: bool,
        encoder: Encoder,
        past_cache: bool = False,
        watch: MemberWatch | None = None,
    ) -> None:
        """``digests``: the kinds of ``FileDigests`` to make. ``past_cache``: the file is not read
        soon, so it bypasses the page cache if possible."""
        self.written_bytes = 0
        self.watch = watch
        self._encoder = encoder
        self._is_abandoned = False
        self._direct = direct_writes(staged) if past_cache else None
        self._staged = staged
        self._writeback = writeback
        self._finish = writeback.finish if seals_on_finish else writeback.finish_now
        self._flushed = 0
        self._xxh3 = xxhash.xxh3_64()
        self._digests = FileDigests(digests) if digests else None

    @property
    def checksum(self) -> str:
        """XXH3 of the written bytes (hexadecimal)."""
        return self._xxh3.hexdigest()

    @property
    def digests(self) -> str:
        """The text of the ``FileDigests`` of the written bytes; "" unless the job needs some."""
        return self._digests.text() if self._digests is not None else ""

    def write(self, slices: Sequence[memoryview]) -> int:
        """Write the next bytes of the shard; return their number."""
        if self._is_abandoned:  # pyarrow writes the end of a file that is discarded
            return 0
        if self.watch is not None:
            self.watch.feed(slices)
        for encoded in self._encoder.feed(slices):
            self._write(encoded)
        return sum(map(len, slices))

    def end(self) -> None:
        """Write the end of the encoded file, once the shard has no more bytes."""
        for encoded in self._encoder.finish():
            self._write(encoded)

    def _write(self, slices: Sequence[memoryview]) -> None:
        size_bytes = sum(map(len, slices))
        if self._direct is not None:
            self._write_directly(self._direct, slices, size_bytes)
            return
        if size_bytes <= PIECE_BYTES:
            self._write_piece(slices, size_bytes)
            return
        # About a piece at a time, if all slices have similar lengths.
        step = max(len(slices) * PIECE_BYTES // size_bytes, 1)
        for at in range(0, len(slices), step):
            some = slices[at : at + step]
            count = sum(map(len, some))
            # If there are more bytes, long slices are among them: each slice is cut into pieces.
            if count <= 2 * PIECE_BYTES:
                self._write_piece(some, count)
                continue
            for each in some:
                for start in range(0, len(each), PIECE_BYTES):
                    part = each[start : start + PIECE_BYTES]
                    self._write_piece([part], len(part))

    def _write_directly(
        self, direct: DirectWrites, slices: Sequence[memoryview], size_bytes: int
    ) -> None:
        self._hash(slices)
        taken = direct.write(slices)
        self.written_bytes += size_bytes
        if taken < len(slices):
            self._end_direct(direct, slices[taken:])

    def _end_direct(self, direct: DirectWrites, slices: Sequence[memoryview] = ()) -> None:
        """Stop direct writes: write the rest, and ``slices``, through the page cache. Later bytes
        go the same way."""
        self._direct = None
        # Direct writes bypass the page cache, so writeback begins behind them.
        self._flushed = direct.written_bytes
        direct.leave(self._staged, slices)

    def _hash(self, slices: Sequence[Buffer]) -> None:
        update = self._xxh3.update
        for piece in slices:
            update(piece)
        if self._digests is not None:
            for piece in slices:
                self._digests.update(memoryview(piece))

    def _write_piece(self, slices: Sequence[Buffer], size_bytes: int) -> None:
        if size_bytes < JOINED_BYTES_MAX * len(slices) and len(slices) > 1:
            slices = [b"".join(slices)]
        # The hash first: it reads mapped pages in order, so the kernel maps them in batches.
        self._hash(slices)
        self._staged.write_at(self.written_bytes, slices)
        self.written_bytes += size_bytes
        unflushed = self.written_bytes - self._flushed
        if unflushed >= FLUSH_BYTES:
            self._writeback.start(self._staged, self._flushed, unflushed)
            self._flushed = self.written_bytes

    def finish(self) -> Future[str]:
        """Hand the rest of an ended file to the store; return the receipt."""
        if self._direct is not None:
            self._end_direct(self._direct)
        return self._finish(self._staged, self._flushed, self.written_bytes - self._flushed)

    def abandon(self) -> None:
        """Discard a file that will not be finished."""
        self._is_abandoned = True
        self._encoder.abandon()
        if self._direct is not None:
            self._direct.close()
        self._writeback.abandon(self._staged)


class FinishedShard(Struct, frozen=True):
    """A written shard, whose receipt may still be pending."""

    ordinal: int
    file: StagedFile
    receipt: Future[str]
    log: CreatedLog

    def record(self, receipt: Future[str]) -> None:
        """Log the shard when its receipt comes. If this worker dies before its task is done, the
        job continues from the log."""
        if not receipt.cancelled() and receipt.exception() is None:
            self.log.append(self.done())

    def done(self) -> ShardCreated:
        """The facts about the shard. Waits for its receipt."""
        file, receipt = self.file, self.receipt.result()
        return ShardCreated(self.ordinal, file.checksum, receipt, file.digests, file.written_bytes)


PENDING_MAX = 4
"""The most ranges that wait for the disk. With more, gathering waits, so that dirty pages do not
pile up."""


SMALL_BYTES = 1 << 20
SMALL_MAX = 32
"""The most objects that one call of the thread closes. Waking the thread for each object took a
tenth of the time of creating shards of 1 KB."""


# A thread starts the writeback of finished ranges while the worker gathers the next ones: starting
# it blocks the caller as soon as the disk's queue is full.
class Writeback:
    """One thread that starts writeback of ranges and closes objects, in the order of the calls."""

    def __init__(self) -> None:
        self._thread = Threads(1, "writeback")
        self._pending: deque[Future[str]] = deque()
        self._small: list[tuple[StagedObject, int, int]] = []

    def start(self, staged: StagedObject, offset: int, size_bytes: int) -> None:
        """Start to write a range to the disk."""
        self._submit(partial(_start, staged, offset, size_bytes))

    def finish(self, staged: StagedObject, offset: int, size_bytes: int) -> Future[str]:
        """Start to write an object's last range; then finish and close it. Return its receipt."""
        return self._submit(partial(_finish, staged, offset, size_bytes))

    def finish_now(self, staged: StagedObject, offset: int, size_bytes: int) -> Future[str]:
        """Like ``finish``, for receipts that need not wait for the disk: returns the receipt at
        once."""
        receipt: Future[str] = Future()
        receipt.set_result(staged.finish())
        if size_bytes > SMALL_BYTES:
            self._submit(partial(_close_all, [(staged, offset, size_bytes)]))
            return receipt
        self._small.append((staged, offset, size_bytes))
        if len(self._small) >= SMALL_MAX:
            self.close_small()
        return receipt

    def close_small(self) -> None:
        """Start to write and close the finished small objects that wait for others."""
        small, self._small = self._small, []
        if small:
            self._submit(partial(_close_all, small))

    def abandon(self, staged: StagedObject) -> None:
        """Close an object that will not be finished, after its pending ranges have been written."""
        self.close_small()
        # The thread may still use the descriptor. Once the descriptor is closed, another file can
        # get its number.
        while self._pending:
            wait([self._pending.popleft()])
        staged.close()

    def close(self) -> None:
        """Wait for pending work, and end the thread."""
        self.close_small()
        self._thread.close()

    def _submit(self, work: Callable[[], str]) -> Future[str]:
        while len(self._pending) >= PENDING_MAX:
            # Raises the error of that work, so a full disk ends the task soon.
            self._pending.popleft().result()
        future = self._thread.submit(work)
        self._pending.append(future)
        return future


def _start(staged: StagedObject, offset: int, size_bytes: int) -> str:
    if size_bytes:
        staged.start_sync(offset, size_bytes)
    return ""


def _close_all(small: Sequence[tuple[StagedObject, int, int]]) -> str:
    with ExitStack() as stack:  # closes all of them, also if the disk refuses one
        for staged, _, _ in small:
            stack.callback(staged.close)
        for each in small:
            _start(*each)
    return ""


def _finish(staged: StagedObject, offset: int, size_bytes: int) -> str:
    try:
        _start(staged, offset, size_bytes)
        return staged.finish()
    finally:
        staged.close()


class Sink(Protocol):
    """Receives the pieces of one output shard in order."""

    def write_piece(self, piece: OutputPiece, payload: Any) -> None:
        """Write one piece, and end the shard with its last one. ``payload``: the payload of the
        piece's partition, in the form that this sink needs; ignored if the piece has no rows."""

    def abandon(self) -> None:
        """Discard a shard that will not be finished."""


class FileSink(Sink, Protocol):
    """A sink that writes one output shard to its file."""

    file: StagedFile


def hashes_in(rows: Table) -> UInt64s:
    """The hashes with which the content of ``rows`` of the index is compared."""
    if CONTENT_HASH not in rows:
        raise InvariantError("the index has no content hashes to verify against")
    return rows[CONTENT_HASH]


def other_content(rows: Table, row: int, output: int) -> StorageError:
    """The error for a record whose content does not match its hash. ``output``: the number of its
    output shard."""
    return StorageError(
        f"record {int(rows[ORDINAL][row])} of input shard number {int(rows[SHARD][row])} does not "
        f"read back with the same content, for output shard number {output}",
        hint="check memory and disks; nothing was published",
    )


class ContentCheck:
    """Computes the XXH3 of one record after the other, and compares it with the hash from the
    record's extraction."""

    def __init__(self, rows: Table, output_ordinal: int) -> None:
        self._rows = rows
        self._output = output_ordinal
        self._sizes = rows[STORED_BYTES].tolist()
        self._expected = hashes_in(rows).tolist()
        self._row = self._at = 0
        self._state = xxhash.xxh3_64()

    def feed(self, piece: memoryview) -> None:
        """Check the next bytes. ``StorageError`` if a record differs."""
        row, done, end = self._row, 0, len(piece)
        while done < end:
            size = self._sizes[row]
            if done + size <= end and not self._at:  # with a state it takes twice the time
                found = xxhash.xxh3_64_intdigest(piece[done : done + size])
                done += size
            else:
                part = piece[done : done + size - self._at]
                self._state.update(part)
                self._at, done = self._at + len(part), done + len(part)
                if self._at < size:
                    break
                found, self._at = self._state.intdigest(), 0
                self._state.reset()
            if found != self._expected[row]:
                raise other_content(self._rows, row, self._output)
            row += 1
        self._row = row


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
        self._put(head)

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
            self._put(self._container.end(entries, self._offset))
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
        self._copy(piece, payload, check)

    def _put(self, data: bytes) -> None:
        """Write bytes that belong to no record."""
        self._offset += self.file.write([memoryview(data)])

    def _copy(self, piece: OutputPiece, payload: RecordPayload, check: ContentCheck | None) -> None:
        """Write the records of a piece."""
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

    def __init__(self, encoder: Encoder) -> None:
        self.size_bytes = 0
        self._encoder = encoder

    def write_piece(self, piece: OutputPiece, payload: RecordPayload) -> None:
        """See :class:`Sink`."""
        if piece.row_stop > piece.row_start:
            for slices in payload.slices(piece.row_start, piece.row_stop):
                self._count(self._encoder.feed(slices))
        if piece.last:
            self._count(self._encoder.finish())

    def _count(self, encoded: Iterable[Sequence[memoryview]]) -> None:
        self.size_bytes += sum(len(each) for some in encoded for each in some)

    def abandon(self) -> None:
        """See :class:`Sink`."""
        self._encoder.abandon()
