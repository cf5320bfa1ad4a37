"""Reads a tar without an index from its beginning to its end, and forms records on the way.

The shard is scanned window by window. Where members are small, a window is read whole, and samples
are copied from it. Where they are large, only headers and small members are read into the window,
from header to header. A large payload is read once, into the ``bytes`` that are returned.
"""

from __future__ import annotations

import contextlib
import mmap
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import xxhash

from dsort.containers.base import Scan
from dsort.containers.tar.header import BLOCK_BYTES, padded_bytes
from dsort.containers.tar.scan import TarScan
from dsort.data.columns import Int64s
from dsort.data.members import MemberKind, MemberTable
from dsort.errors import ChangedInputError
from dsort.loader.decode import Sample
from dsort.loader.samples import LARGE_BYTES, Contents, copied_from, samples_of
from dsort.loader.shard_file import DirectFile, ShardFile
from dsort.reading.places import ShardPlace
from dsort.reading.record_index import RecordIndex
from dsort.reading.shard_reader import check_whole
from dsort.reading.view import ViewObject

__all__ = [
    "FILE_BYTES_MAX",
    "RANGE_BYTES_MAX",
    "ForwardTar",
    "NotForwardError",
    "Room",
]

RANGE_BYTES_MAX: Final = 32 << 20
FILE_BYTES_MAX: Final = 4 << 20
"""The same limit for local files, where a read costs nothing, and windows of this size stay in the
cache of a processor."""
PASSED_BYTES: Final = 2 << 20
"""If more unused bytes than this follow one another, they are not read for the hash of the shard,
which then is not compared."""
FIRST_BYTES: Final = 1 << 20
"""The size of the first window of a shard: small, so that the first batch does not have to wait.
Each window is twice as large as the one before."""
AHEAD_BYTES: Final = 16 << 20
"""While a window is used, the disk reads this many bytes after it. A view with records of 100 KB
was read 15% faster than without reading ahead, and no faster with 32 MiB."""
HOP_BYTES: Final = 4 * BLOCK_BYTES
"""The bytes read at each header: mostly they hold a small member as well, and the next header."""
HASHED_BYTES: Final = 1 << 20


class NotForwardError(Exception):
    """The shard has members that can only be resolved once all of its headers are read."""


class Room:
    """Memory that one range after the other uses, because fresh memory costs more than a copy."""

    def __init__(self, *, is_sparse: bool = False) -> None:
        """``is_sparse``: only small parts are written to, so huge pages are not used."""
        self._view = memoryview(b"")
        self._is_sparse = is_sparse

    def view(self, size_bytes: int) -> memoryview:
        """A view of ``size_bytes`` bytes: the same memory as in the last call, unless that was too
        small."""
        if len(self._view) < size_bytes:
            self._view = _sparse(size_bytes) if self._is_sparse else np.empty(size_bytes, "B").data
        return self._view[:size_bytes]


def _sparse(size_bytes: int) -> memoryview:
    made = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        made.madvise(mmap.MADV_NOHUGEPAGE)
    return memoryview(made)


class _Window:
    """Bytes ``start`` to ``stop`` of a shard, in memory except for ``holes``: (first byte, byte
    after the last)."""

    def __init__(self) -> None:
        self.view = memoryview(b"")
        self.start = 0
        self.is_whole = True  # False: of large members it has only the headers
        self.holes: deque[tuple[int, int]] = deque()

    @property
    def stop(self) -> int:
        return self.start + len(self.view)

    def piece(self, at: int, stop: int) -> tuple[memoryview, int]:
        """The bytes in memory from byte ``at`` on, and their end. If byte ``at`` is not in memory:
        no bytes, and the offset of the next byte in memory, at most ``stop``. Removes holes before
        ``at``."""
        nothing = self.view[:0]
        if not self.start <= at < self.stop:
            return nothing, min(stop, self.start) if at < self.start else stop
        while self.holes and self.holes[0][1] <= at:
            self.holes.popleft()
        hole = self.holes[0] if self.holes else (self.stop, self.stop)
        if hole[0] <= at:
            return nothing, min(stop, hole[1])
        end = min(stop, self.stop, hole[0])
        return self.view[at - self.start : end - self.start], end


class ForwardTar:
    """Reads a tar from its beginning to its end, and forms records on the way."""

    def __init__(
        self,
        place: ShardPlace,
        file: ShardFile,
        window_bytes: int,
        url: str,
        direct: DirectFile | ViewObject | None,
    ) -> None:
        """``direct``: the same shard as a local file; None if the shard is no local file."""
        self.index: RecordIndex | None = None  # of the whole shard, once that was read
        self._place, self._file, self._url = place, file, url
        self._direct = direct
        self._size_bytes = file.info.size_bytes
        self._tar = TarScan(place.name, self._size_bytes)
        self._scan = Scan(self._tar.scanner())
        self._is_plain = True  # all members so far are plain files that follow one another
        self._room, self._sparse_room = Room(), Room(is_sparse=True)
        self._scratch = Room()
        self._window = _Window()
        self._window_bytes = window_bytes
        self._step_bytes = min(FIRST_BYTES, window_bytes)
        self._members = 0  # how many were taken from the scan
        self._pending = MemberTable.empty()  # members of the record that may not be complete
        self._parts: list[RecordIndex] = []
        self._records = 0
        self._last: tuple[RecordIndex, int, Contents] | None = None
        self._hash: xxhash.xxh3_64 | None = xxhash.xxh3_64() if place.xxh3 else None
        self._hashed = 0
        self._announced = 0  # the byte up to which hints were given

    def samples(self, rows: Int64s) -> Iterator[list[Sample]]:
        """The samples of records ``rows``. They may not lie before the records of an earlier
        call."""
        at = 0
        while True:
            if self._last is not None:
                part, first, contents = self._last
                stop = int(np.searchsorted(rows, first + len(part)))
                if stop > at:
                    yield list(samples_of(part, rows[at:stop] - first, contents, self._url))
                    at = stop
            if at == len(rows) and not self._is_at_end(rows):
                return
            if self._is_scanned:
                if at < len(rows):
                    self._place.wrong_count(self._records)
                self._finish()
                return
            self._read_window()

    def finish(self) -> None:
        """Read the rest to the end, if it is at most ``RANGE_BYTES_MAX``."""
        if self._size_bytes - self._scanned > RANGE_BYTES_MAX:
            return
        while not self._is_scanned:
            self._read_window()
        self._finish()

    def _is_at_end(self, rows: Int64s) -> bool:
        """Whether the last record was requested. The rest is read then, to check that the shard is
        whole."""
        wanted = self._place.records
        return wanted is not None and len(rows) > 0 and int(rows[-1]) == wanted - 1

    # -- windows ---------------------------------------------------------------------------------

    def _read_window(self) -> None:
        """Read the next window."""
        need = self._scan.need
        assert need is not None
        begin = need.offset
        pending_at = self._begin()
        self._last = None
        self._hash_until(pending_at)
        most = self._window_bytes
        is_large = self._is_plain and begin >= LARGE_BYTES * max(self._members, 1)
        direct = self._direct if is_large else None
        window = _Window()
        window.is_whole = direct is None
        if window.is_whole and self._file.is_file:
            most = min(most, FILE_BYTES_MAX)
        # A long name or a PAX header may need more than a window at once.
        step = max(min(self._step_bytes, most), need.at_least)
        self._step_bytes = min(2 * step, self._window_bytes)
        self._window = window
        window.start = pending_at if window.is_whole else begin
        size = min(begin - window.start + step, self._size_bytes - window.start)
        if direct is not None:
            window.view = self._sparse_room.view(size)
            self._is_plain = self._read_headers(direct, window)
        else:
            window.view = self._room.view(size)
            self._file.read_into(window.view, window.start)
            self._hash_until(window.stop)
        self._scan.feed(window.view, window.start)
        self._form()

    @property
    def _is_scanned(self) -> bool:
        """Whether all of the shard is scanned."""
        return self._scan.need is None

    @property
    def _scanned(self) -> int:
        """The byte up to which the shard is scanned."""
        need = self._scan.need
        return self._size_bytes if need is None else need.offset

    def _begin(self) -> int:
        """Where the record begins that may not be complete."""
        if not len(self._pending):
            return self._scanned
        return int(self._pending.range_start.min())

    def _read_headers(self, direct: DirectFile | ViewObject, window: _Window) -> bool:
        """Fill the window except for large payloads, which become its holes. If anything but the
        header of a plain file follows, read the rest of the shard whole and return False. Return
        True at the end of the shard."""
        view, base, total = window.view, window.start, len(window.view)
        self._announce(direct, base, base + total)
        at = filled = 0  # offsets in the view: of the next header, and of the end of the read bytes
        while at < total:
            stop = min(at + HOP_BYTES, total)
            if at + BLOCK_BYTES > filled:
                direct.read_into(view[filled:stop], base + filled)
                filled = stop
            size = self._tar.plain_payload(view[at : at + BLOCK_BYTES].tobytes())
            if size is None or base + at + BLOCK_BYTES + padded_bytes(size) > self._size_bytes:
                if filled < total:
                    direct.read_into(view[filled:], base + filled)
                return base + total == self._size_bytes
            payload_at = at + BLOCK_BYTES
            at = payload_at + padded_bytes(size)
            if size >= LARGE_BYTES:
                # The last block is read for a hash, which needs the zeros in it.
                end = at if self._hash is None else at - BLOCK_BYTES
                window.holes.append((base + payload_at, base + end))
                filled = max(filled, end)
        if filled < total:
            direct.read_into(view[filled:], base + filled)
        return True

    def _announce(self, direct: DirectFile | ViewObject, begin: int, end: int) -> None:
        """Hint that a window, and after it the bytes that follow, will be read soon."""
        begin = max(begin, self._announced)
        end = min(end + min(AHEAD_BYTES, self._window_bytes), self._size_bytes)
        if begin < end:
            direct.will_need(begin, end - begin)
            self._announced = end

    def _form(self) -> None:
        """Make records of the members that were found. Two kinds are left for later: the last
        record, which may be incomplete, and records with payload that ends behind a window that was
        read whole."""
        new = self._tar.found(self._members)
        self._members += len(new)
        is_done = self._is_scanned  # after the scan, all links are resolved
        resolved = self._scan.table.notes.hardlinks_resolved if is_done else 0
        if resolved or bool((new.kind == MemberKind.HARDLINK).any()):
            raise NotForwardError
        table = self._pending.followed_by(new, 0) if len(self._pending) else new
        whole, _ = RecordIndex.of(table)
        if not len(whole):  # only directories and the like
            self._pending = MemberTable.empty()
            return
        window = self._window
        end = window.stop if window.is_whole else self._scanned
        # Records are complete if their last byte was read and another record follows.
        reach = np.searchsorted(np.maximum.accumulate(whole.high), end, "right")
        count = int(reach) if is_done else min(int(reach), len(whole) - 1)
        if count <= 0:
            self._pending = table
            return
        files = int(whole.offsets[count])
        part = RecordIndex(
            whole.offsets[: count + 1],
            whole.key_bytes[:count],
            whole.names.run(0, files),
            whole.start[:files],
            whole.size[:files],
        )
        rows = np.flatnonzero(table.kind == MemberKind.FILE)
        rest = np.arange(int(rows[files]) if files < len(rows) else len(table), len(table))
        self._pending = table.taking(rest)
        self._parts.append(part)
        contents = copied_from(window.view, window.start) if window.is_whole else self._contents
        self._last = part, self._records, contents
        self._records += count

    # -- members ---------------------------------------------------------------------------------

    def _contents(self, starts: list[int], sizes: list[int]) -> Iterable[bytes]:
        return map(self._read, starts, sizes)

    def _read(self, start: int, size_bytes: int) -> bytes:
        window = self._window
        if size_bytes < LARGE_BYTES and window.start <= start <= window.stop - size_bytes:
            at = start - window.start
            return window.view[at : at + size_bytes].tobytes()
        assert self._direct is not None
        data = self._direct.read(start, size_bytes)
        if self._hash is not None and size_bytes:
            self._hash_until(start)
        if self._hash is not None and start <= self._hashed < start + size_bytes:
            self._hash.update(memoryview(data)[self._hashed - start :])
            self._hashed = start + size_bytes
        return data

    # -- the hash of the shard ---------------------------------------------------------------------

    def _hash_until(self, stop: int) -> None:
        """Hash all bytes before byte ``stop``. For that, skipped bytes are read. If more than
        ``PASSED_BYTES`` were skipped, hashing ends."""
        while self._hash is not None and self._hashed < stop:
            piece, end = self._window.piece(self._hashed, stop)
            if not len(piece):
                if end - self._hashed > PASSED_BYTES:
                    self._hash = None
                    return
                piece = self._scratch.view(min(end - self._hashed, HASHED_BYTES))
                self._file.read_into(piece, self._hashed)
                end = self._hashed + len(piece)
            self._hash.update(piece)
            self._hashed = end

    def _finish(self) -> None:
        if self.index is not None:
            return
        check_whole(self._place.name, self._scan.table.notes)
        self._hash_until(self._size_bytes)
        found, wanted = self._hash, self._place.xxh3
        if found is not None and found.hexdigest() != wanted:
            raise ChangedInputError(
                f"shard {self._place.name} in {self._place.bucket.uri} has another checksum than "
                f"in its manifest: XXH3 {found.hexdigest()}, not {wanted}",
                hint="fetch or make it again; `dsort verify` compares all of a result",
            )
        self._place.check_count(self._records)
        self.index = RecordIndex.joined(self._parts)
