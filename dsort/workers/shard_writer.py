"""Writes one output shard, and checks its length, checksum and content while it is written.

A thread starts the disk on what was written while the worker gathers what comes next: handing
dirty pages to the disk blocks the caller as soon as the disk's queue is full.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

import xxhash

from dsort.containers.base import Container
from dsort.data.entries import PlacedEntries, placed_entries
from dsort.data.index import CONTENT_HASH, ENTRIES, MEMBERS, ORDINAL, SHARD, STORED_BYTES
from dsort.data.table import Table
from dsort.errors import InvariantError, StorageError
from dsort.scratch.logs import CreatedLog, ShardCreated
from dsort.scratch.ordered import OrderedRows
from dsort.storage.bucket import Buffer, StagedObject
from dsort.storage.directory.direct_writes import DirectWrites, direct_writes
from dsort.storage.process_limits import is_no_thread
from dsort.workers.encoded import ShardEncoder
from dsort.workers.member_watch import MemberWatch
from dsort.workers.tasks import OutputPiece

FLUSH_BYTES = 16 << 20
"""The disk is set to work each time so much has been written."""


PIECE_BYTES = 1 << 20
"""So much is hashed and then written at a time: it stays in the processor's cache, and pages of
mapped inputs that the hash has touched are mapped when the kernel copies them. Writing first took
twice the time of all of it, whatever the size of records."""
JOINED_BYTES_MAX = 16 << 10
"""Shorter slices are joined before that: a slice costs the hash and the kernel 0.3 µs each."""


_NO_ENTRIES = PlacedEntries.of(())


class Slices(Protocol):
    """Where the records of a bucket come from."""

    def slices(self, start: int, stop: int) -> Iterator[Sequence[memoryview]]: ...

    def ordered(self, start: int, stop: int) -> OrderedRows: ...


class ContentCheck:
    """Takes the XXH3 of record after record as they come by, and compares it with the one that was
    taken when the record was extracted."""

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
        """The next bytes."""
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


class StagedFile:
    """The file of one output shard while it is written, from its first byte to its last: hashed,
    and handed to the disk on the way."""

    def __init__(
        self,
        staged: StagedObject,
        writeback: Writeback,
        *,
        want_md5: bool,
        seals_on_finish: bool,
        past_cache: bool = False,
    ) -> None:
        """``past_cache``: nobody reads it soon, so it goes straight to the disk, if it can."""
        self.written_bytes = 0
        self._direct = direct_writes(staged) if past_cache else None
        self._staged = staged
        self._writeback = writeback
        self._finish = writeback.finish if seals_on_finish else writeback.finish_now
        self._flushed = 0
        self._xxh3 = xxhash.xxh3_64()
        self._md5 = hashlib.md5(usedforsecurity=False) if want_md5 else None

    @property
    def checksum(self) -> str:
        """XXH3 of what was written (hexadecimal)."""
        return self._xxh3.hexdigest()

    @property
    def md5(self) -> str:
        """MD5 of what was written (hexadecimal); "" if nobody asked for it."""
        return self._md5.hexdigest() if self._md5 is not None else ""

    def write(self, slices: Sequence[memoryview]) -> int:
        """Write on; how many bytes."""
        size_bytes = sum(map(len, slices))
        if self._direct is not None:
            self._write_directly(self._direct, slices, size_bytes)
            return size_bytes
        if size_bytes <= PIECE_BYTES:
            self._write_piece(slices, size_bytes)
            return size_bytes
        step = max(len(slices) * PIECE_BYTES // size_bytes, 1)
        for at in range(0, len(slices), step):
            some = slices[at : at + step]
            count = sum(map(len, some))
            if count <= 2 * PIECE_BYTES:
                self._write_piece(some, count)
                continue
            for each in some:
                for start in range(0, len(each), PIECE_BYTES):
                    part = each[start : start + PIECE_BYTES]
                    self._write_piece([part], len(part))
        return size_bytes

    def _write_directly(
        self, direct: DirectWrites, slices: Sequence[memoryview], size_bytes: int
    ) -> None:
        self._hash(slices)
        taken = direct.write(slices)
        self.written_bytes += size_bytes
        if taken < len(slices):
            self._end_direct(slices[taken:])

    def _end_direct(self, slices: Sequence[memoryview] = ()) -> None:
        """Write what is left of a file that was written directly through the page cache, with
        ``slices``; so are those that come later."""
        direct, self._direct = self._direct, None
        if direct is None:
            return
        self._flushed = direct.written_bytes
        direct.leave(self._staged, slices)

    def _hash(self, slices: Sequence[Buffer]) -> None:
        update = self._xxh3.update
        for piece in slices:
            update(piece)
        if self._md5 is not None:
            for piece in slices:
                self._md5.update(piece)

    def _write_piece(self, slices: Sequence[Buffer], size_bytes: int) -> None:
        if size_bytes < JOINED_BYTES_MAX * len(slices) and len(slices) > 1:
            slices = [b"".join(slices)]
        # First: whoever reads mapped pages has them mapped by the batch, and near by.
        self._hash(slices)
        self._staged.write_at(self.written_bytes, slices)
        self.written_bytes += size_bytes
        unflushed = self.written_bytes - self._flushed
        if unflushed >= FLUSH_BYTES:
            self._writeback.start(self._staged, self._flushed, unflushed)
            self._flushed = self.written_bytes

    def finish(self) -> Future[str]:
        """Nothing more comes: let the store take the rest; the receipt."""
        self._end_direct()
        return self._finish(self._staged, self._flushed, self.written_bytes - self._flushed)

    def abandon(self) -> None:
        """It will not be finished: let go of it."""
        if self._direct is not None:
            self._direct.close()
        self._writeback.abandon(self._staged)


@dataclass(frozen=True, slots=True)
class FinishedShard:
    """A shard that is written; its receipt may still be on its way."""

    ordinal: int
    file: StagedFile
    receipt: Future[str]
    log: CreatedLog

    def record(self, receipt: Future[str]) -> None:
        """It has come: also for who goes on if this worker dies before its task is done."""
        if not receipt.cancelled() and receipt.exception() is None:
            self.log.append(self.done())

    def done(self) -> ShardCreated:
        """What is known of it once its receipt is there."""
        file, receipt = self.file, self.receipt.result()
        return ShardCreated(self.ordinal, file.checksum, receipt, file.md5, file.written_bytes)


class ShardWriter:
    """Writes one output shard, piece by piece, and checks that each is as long as planned."""

    def __init__(
        self,
        file: StagedFile,
        ordinal: int,
        container: Container,
        *,
        encoder: ShardEncoder | None = None,
        watch: MemberWatch | None = None,
    ) -> None:
        self.ordinal = ordinal
        self.file = file
        self.watch = watch
        self._container = container
        self._encoder = encoder
        self._offset = 0  # in the shard; the file is shorter, if it is encoded
        self._entries: list[PlacedEntries] = []

    def write_head(self, head: bytes) -> None:
        """Write what stands before the first piece."""
        self._write([memoryview(head)])

    def write_piece(
        self, piece: OutputPiece, payload: Slices | None, check: ContentCheck | None
    ) -> None:
        """Write one piece, and what ends the shard after its last one."""
        if self._offset != piece.offset:
            raise InvariantError(f"output shard {piece.ordinal} is written with a gap")
        if payload is not None and piece.row_stop > piece.row_start:
            if self._container.lists_members:
                rows = payload.ordered(piece.row_start, piece.row_stop).rows
                sizes = rows[STORED_BYTES]
                placed = placed_entries(rows[ENTRIES], rows[MEMBERS], sizes, piece.offset)
                self._entries.append(placed)
            for slices in payload.slices(piece.row_start, piece.row_stop):
                if check is not None:
                    for part in slices:
                        check.feed(part)
                self._write(slices)
        if self._offset != piece.offset + piece.stored_bytes:
            raise InvariantError(
                f"output shard {piece.ordinal} got {self._offset - piece.offset} bytes, "
                f"{piece.stored_bytes} were planned"
            )
        if piece.last:
            entries = PlacedEntries.concat(self._entries) if self._entries else _NO_ENTRIES
            self._write([memoryview(self._container.end(entries, self._offset))])
            if self._offset != piece.shard_bytes and piece.shard_bytes >= 0:
                raise InvariantError(f"output shard {piece.ordinal} has {self._offset} bytes")
            if self._encoder is not None:
                for encoded in self._encoder.finish():
                    self.file.write([memoryview(encoded)])

    def finish(self) -> Future[str]:
        """Nothing more comes: let the store take the rest; the receipt."""
        return self.file.finish()

    def abandon(self) -> None:
        """It will not be finished: let go of it."""
        if self._encoder is not None:
            self._encoder.abandon()
        self.file.abandon()

    def _write(self, slices: Sequence[memoryview]) -> None:
        if self.watch is not None:
            self.watch.feed(slices)
        if self._encoder is None:
            self._offset += self.file.write(slices)
            return
        self._offset += sum(map(len, slices))
        for encoded in self._encoder.feed(slices):
            self.file.write([memoryview(encoded)])


PENDING_MAX = 4
"""So many ranges may wait for the disk; then gathering waits too, or dirty pages would pile up."""


SMALL_BYTES = 1 << 20
SMALL_MAX = 32
"""Objects that one call of the thread closes: to wake it for each took a tenth of the time of 1 KB
shards."""


class Writeback:
    """One thread that starts writeback of ranges and closes objects, in the order they come in."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._is_alone = False
        self._pending: deque[Future[str]] = deque()
        self._small: list[tuple[StagedObject, int, int]] = []

    def start(self, staged: StagedObject, offset: int, size_bytes: int) -> None:
        """Have a written range go to the disk."""
        self._submit(_start, staged, offset, size_bytes)

    def finish(self, staged: StagedObject, offset: int, size_bytes: int) -> Future[str]:
        """The same for an object's last range; then finish and close it. Its receipt."""
        return self._submit(_finish, staged, offset, size_bytes)

    def finish_now(self, staged: StagedObject, offset: int, size_bytes: int) -> Future[str]:
        """The same where the receipt need not wait for the disk: it is there at once."""
        receipt: Future[str] = Future()
        receipt.set_result(staged.finish())
        if size_bytes > SMALL_BYTES:
            self._submit(_close, staged, offset, size_bytes)
            return receipt
        self._small.append((staged, offset, size_bytes))
        if len(self._small) >= SMALL_MAX:
            self.close_small()
        return receipt

    def close_small(self) -> None:
        """Have the small objects go to the disk that were finished and wait for others."""
        small, self._small = self._small, []
        if small:
            self._submit(lambda *_: _close_all(small), *small[0])

    def abandon(self, staged: StagedObject) -> None:
        """Close an object that will not be finished, once nothing of it is pending."""
        self.close_small()
        while self._pending:
            wait([self._pending.popleft()])
        staged.close()

    def close(self) -> None:
        """Wait for what is pending, and end the thread."""
        self.close_small()
        if self._thread is not None:
            self._thread.shutdown(wait=True)
            self._thread = None

    def _submit(
        self,
        work: Callable[[StagedObject, int, int], str],
        staged: StagedObject,
        offset: int,
        size_bytes: int,
    ) -> Future[str]:
        while len(self._pending) >= PENDING_MAX:
            self._pending.popleft().result()
        if self._thread is None and not self._is_alone:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="writeback")
            try:
                self._thread.submit(_nothing).result()
            except RuntimeError as error:
                if not is_no_thread(error):
                    raise
                self._is_alone, self._thread = True, None
        if self._thread is None:  # there can be no more threads: whoever asks does it
            future: Future[str] = Future()
            future.set_result(work(staged, offset, size_bytes))
            return future
        future = self._thread.submit(work, staged, offset, size_bytes)
        self._pending.append(future)
        return future


def _nothing() -> None:
    """What only tells whether there is a thread."""


def _start(staged: StagedObject, offset: int, size_bytes: int) -> str:
    if size_bytes:
        staged.start_sync(offset, size_bytes)
    return ""


def _close(staged: StagedObject, offset: int, size_bytes: int) -> str:
    try:
        return _start(staged, offset, size_bytes)
    finally:
        staged.close()


def _close_all(small: Sequence[tuple[StagedObject, int, int]]) -> str:
    with ExitStack() as stack:
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
