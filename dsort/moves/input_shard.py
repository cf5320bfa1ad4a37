"""Input shards for workers: the names and sizes of all of them, and the bytes of one.

A shard that can be mapped, or that fits in the worker's buffer, is one view. A larger shard is
scanned window by window, and read a second time, in order, when its payload is moved. Payload is
passed on as slices of these views, which the kernel gathers, so it is not copied to new memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dsort.containers.base import Container, drive
from dsort.containers.codecs.decoding import EXPANSION_FLOOR_BYTES, DecodingRules
from dsort.containers.registry import codec_of, container_of, refuse_misnamed
from dsort.data.columns import BytesColumn, Int64s, offsets_of
from dsort.data.members import NOT_COMPRESSED, MemberTable, bare_table
from dsort.data.segments import Segments
from dsort.errors import ChangedInputError, CorruptShardError, InvariantError, StorageError
from dsort.moves.header_reads import HOP_BYTES, HoppedShard
from dsort.moves.payload_files import (
    Chain,
    NamelessFile,
    PayloadBuffer,
    Spool,
    Tail,
    decode,
    file_pieces,
)
from dsort.moves.range_queue import RangeQueue, RangeRead
from dsort.moves.slices import gathered, slices_of
from dsort.naming.names import archive_extension, readable
from dsort.scratch.columns import columns_bytes
from dsort.scratch.directory import Scratch
from dsort.scratch.index import IndexStore
from dsort.sizes import format_bytes
from dsort.storage.bucket import Bucket, ObjectInfo, ReadObject
from dsort.storage.directory.files import LocalReadObject

SLICES_AT_ONCE_MAX = 2048
"""Slices are made for so many records at a time: small records are then still in the processor's
cache when their checksum is computed. A slice object takes 200 bytes."""
WINDOW_ROWS_MAX = 65536
PAGE_BYTES = 4096
DIRECT_BYTES = 1 << 20
"""The length of a direct read; many are made at a time."""
WINDOW_BYTES_MAX = 8 << 20
"""A shard larger than the buffer is read twice. Small windows leave memory to the page cache, so
that the cache still has the shard at the second reading: a memory limit counts windows and page
cache together."""


class Window(Struct, frozen=True):
    """Rows ``row:stop`` lie in ``view``, which begins at byte ``base`` of the shard."""

    row: int
    stop: int
    view: memoryview
    base: int


class ShardBytes:
    """One opened input shard. If the shard has a codec, its bytes are the decoded bytes.
    ``members`` decodes them: call it before methods that read bytes."""

    def __init__(
        self,
        name: str,
        source: ReadObject,
        buffer: PayloadBuffer,
        *,
        mapped: bool,
        spool: Scratch | None = None,
        container: Container | None = None,
        decoding: DecodingRules | None = None,
        past_cache: RangeQueue | None = None,
    ) -> None:
        """``spool``: the directory for the bytes of a shard that does not fit in the buffer and
        must not be fetched twice. ``container``: None: by the extension of ``name``.
        ``past_cache``: the queue that reads a file past the page cache, if the file has no other
        reader."""
        self.name = name
        self.container = container or container_of(name)
        self.decoding = decoding or DecodingRules()
        self.codec = codec_of(name) if archive_extension(name) else self.decoding.codec
        self.file_bytes = self.size_bytes = source.info.size_bytes
        self.watch: Callable[[bytes], object] | None = None  # called with the stored bytes
        self._stored = source
        self._source: ReadObject | Spool | NamelessFile | Chain = source
        self._buffer = buffer
        self._spool = spool
        self._past_cache = past_cache
        self._is_decoded = self.is_as_stored = self.codec is None
        self.is_mapped = False
        self._is_checked = False
        self._window_bytes = min(buffer.size_bytes, WINDOW_BYTES_MAX)
        hops = isinstance(source, HoppedShard)
        self._scan_bytes = HOP_BYTES if hops else self._window_bytes
        self._let_go()
        if self.codec is not None:
            return
        mapping = source.mapping() if mapped else None
        if mapping is not None:
            self._hold(mapping)
            self.is_mapped = True
        elif not hops and self.size_bytes <= buffer.size_bytes:
            self._hold(buffer.view(self.size_bytes))
            self._read_run(self.whole, 0)
            source.forget()  # its bytes are in the buffer
        # A store would have to send the shard twice, so the first reading keeps a copy.
        elif not hops and spool is not None and not source.rereads_cheaply:
            self._source = Spool(source, spool)

    def _hold(self, whole: memoryview) -> None:
        """Set ``whole``, which has all bytes of the shard in memory."""
        self.whole, self.is_whole = whole, True

    def _let_go(self) -> None:
        self.whole, self.is_whole = memoryview(b""), False

    def close(self) -> None:
        """Release the view, and close a spool. The source is closed by its opener."""
        self._let_go()
        if isinstance(self._source, (Spool, NamelessFile, Chain)):
            self._source.close()

    def members(self) -> MemberTable:
        """The members of the shard; ``CorruptShardError`` if not all of it can be read."""
        self.make_ready()
        limit = self.decoding.max_expansion * self.file_bytes + EXPANSION_FLOOR_BYTES
        container = self.container.within(limit)
        return self._scanned(container, 0)

    def make_ready(self) -> None:
        """Decode the shard, if it has a codec. ``CorruptShardError`` if its bytes are in another
        format than its name implies."""
        if not self._is_decoded:
            self._decode()
        elif self.codec is None and self.size_bytes:
            refuse_misnamed(self.name, self.container, self.at, self.size_bytes)

    def _scanned(self, container: Container, begin: int) -> MemberTable:
        """The members of a shard of ``container`` from byte ``begin`` to the end."""
        if self.is_whole:
            return container.scan(self.name, self.whole[begin:])

        def read(offset: int, size: int) -> memoryview:
            # Headers larger than the buffer (the format limits them) get a separate window.
            fits = size <= self._buffer.size_bytes
            window = self._buffer.view(size) if fits else memoryview(bytearray(size))
            self._read_run(window, begin + offset)
            return window

        total = self.size_bytes - begin
        scanner = container.scanner(self.name, total)
        align = PAGE_BYTES if self._past_cache is not None and not begin else 1
        return drive(scanner, total, read, window_bytes=self._scan_bytes, align=align)

    def _read_run(self, window: memoryview, offset: int) -> None:
        """Fill ``window`` from byte ``offset``, which is the start of a page."""
        done, source = 0, self._source
        if self._past_cache is not None and isinstance(source, LocalReadObject):
            reads = source.random_reads()
            if reads is not None:
                with reads:
                    done = len(window) // PAGE_BYTES * PAGE_BYTES
                    begins = range(0, done, DIRECT_BYTES)
                    parts = [(at, window[at : min(at + DIRECT_BYTES, done)]) for at in begins]
                    self._past_cache.begin(
                        [RangeRead(reads, part, offset + at, len(part)) for at, part in parts]
                    ).wait()
        if done < len(window):
            self._source.read_into(window[done:], offset + done)

    def file_pieces(self, start: int = 0) -> Iterator[bytes]:
        """Yield the bytes of the shard as they are stored, so encoded if it has a codec, from
        ``start`` on."""
        return file_pieces(self._stored, start)

    def _decode(self) -> None:
        assert self.codec is not None
        decoded = decode(
            self.name,
            self.codec,
            self._stored,
            self._buffer,
            self.decoding,
            scratch=self._spool,
            watch=self.watch,
        )
        self.size_bytes = decoded.size_bytes
        if decoded.file is None:
            self._hold(self._buffer.view(self.size_bytes))
        else:
            self._source = decoded.file
        self._stored.forget()  # the stored bytes are not read again
        self._is_decoded = True

    def at(self, start: int, length: int) -> bytes:
        """A few bytes of the shard."""
        if length <= 0:
            return b""
        if self.is_whole:
            return bytes(self.whole[start : start + length])
        data = bytearray(length)
        self._source.read_into(memoryview(data), start)
        return bytes(data)

    def ranges(self, starts: Int64s, lengths: Int64s) -> BytesColumn:
        """The ranges of the shard that begin at ``starts`` and have ``lengths``, a few bytes
        each."""
        count = len(starts)
        if not self.is_whole or count < 2:
            pairs = zip(starts.tolist(), lengths.tolist(), strict=True)
            return BytesColumn.of([self.at(start, length) for start, length in pairs])
        segments = Segments(np.arange(count + 1), starts, lengths, np.zeros(0, np.uint8))
        found = gathered({0: self.whole}, np.zeros(count, np.int32), segments)
        return BytesColumn(offsets_of(lengths), np.frombuffer(found, np.uint8))

    def content(self, members: MemberTable, row: int) -> bytes:
        """The payload of one of the shard's ``members``. ``CorruptShardError`` if it is damaged."""
        start = int(members.payload_start[row])
        if start < 0:
            return members.literals.get(row, b"")
        if self.is_whole and self._is_plain(members):
            return bytes(self.whole[start : start + int(members.payload_bytes[row])])
        return b"".join(map(bytes, self.payload(members, row)))  # valid until the next payload

    def contents(self, members: MemberTable, rows: Sequence[int]) -> list[bytes]:
        """The payloads of some of the shard's ``members``. ``CorruptShardError`` if one is
        damaged."""
        starts = members.payload_start[rows]
        if not (self.is_whole and self._is_plain(members)) or (starts < 0).any():
            return [self.content(members, row) for row in rows]
        stops = (starts + members.payload_bytes[rows]).tolist()
        return [bytes(self.whole[a:b]) for a, b in zip(starts.tolist(), stops, strict=True)]

    def _is_plain(self, members: MemberTable) -> bool:
        """Whether the shard has the payloads of ``members`` uncompressed and without checksums."""
        return not (members.has_compressed or self.container.payloads)

    def check_payloads(self, members: MemberTable) -> None:
        """``CorruptShardError`` unless all payloads of ``members`` that are not compressed match
        their checksums in the shard. A second call does nothing."""
        payloads = self.container.payloads
        if self._is_checked or payloads is None:
            return
        rows, reported = payloads.checksums(members)
        ranges = Segments(
            np.arange(len(rows) + 1, dtype=np.int64),
            members.payload_start[rows],
            members.payload_bytes[rows],
            np.zeros(0, np.uint8),
        )
        from isal import isal_zlib  # only containers with checksums need it

        checksum = isal_zlib.crc32
        for window in self.windows(ranges):  # 0.5 µs a row, and 11 GB/s
            # A window without rows stands for one record that is larger than the buffer.
            wrong = rows[window.row : window.row + 1]
            if window.stop > window.row:
                own = slice(window.row, window.stop)
                slices = slices_of(window.view, ranges.run(own.start, own.stop), window.base)
                found = np.fromiter(map(checksum, slices), np.int64, len(slices))
                wrong = rows[own][found != reported[own]]
            for row in wrong.tolist():
                for _ in self.payload(members, row):  # raises an error if the checksum differs
                    pass
        self._is_checked = True

    def decompress(self, members: MemberTable) -> MemberTable:
        """Replace the content of the shard by the payloads of ``members``, decompressed and side by
        side; return a bare table of them. ``CorruptShardError`` also if the payloads have more
        bytes than ``decoding`` allows."""
        total = int(members.payload_bytes.sum())
        limit = self.decoding.max_expansion * self.size_bytes + EXPANSION_FLOOR_BYTES
        if total > limit:
            raise CorruptShardError(
                self.name,
                0,
                f"its members decompress to {format_bytes(total)}, over "
                f"{self.decoding.max_expansion:g} times its length",
                hint="this may be a decompression bomb; if it is data, set a larger max_expansion",
            )
        file = NamelessFile(self.name, self._spool)
        try:
            for row in range(len(members)):
                for piece in self.payload(members, row):
                    file.append(piece)
            if file.size_bytes != total:
                raise InvariantError(f"{self.name} gave {file.size_bytes} bytes, not {total}")
        except BaseException:
            file.close()
            raise
        self.close()
        self._source, self.size_bytes, self.is_as_stored = file, total, False
        self._is_checked = True
        if 0 < total <= self._buffer.size_bytes:
            self._hold(self._buffer.view(total))
            file.read_into(self.whole, 0)
        start = np.cumsum(members.payload_bytes) - members.payload_bytes
        return replace(
            bare_table(members),
            payload_start=start,
            range_start=start,
            range_length=members.payload_bytes,
            compressed_bytes=NOT_COMPRESSED,
        )

    def tail(self) -> Tail:
        """A ``Tail`` for bytes that are to follow those of the shard."""
        fits = self.is_whole and not self.is_mapped
        return Tail(self.name, self._buffer, self._spool, self.size_bytes, fits)

    def grow(self, tail: Tail, container: Container) -> MemberTable:
        """Append the bytes of ``tail``, which are a shard of ``container``, to the content of the
        shard. Return the members of ``tail``; their ranges begin at the end of the old content.
        Closing the shard closes ``tail``."""
        begin, file = self.size_bytes, tail.file
        if file is None:
            self._hold(self._buffer.view(begin + tail.size_bytes))
        else:
            self._source = Chain(self._kept(), begin, file)
            self._let_go()
        self.size_bytes, self.is_as_stored = begin + tail.size_bytes, False
        self.container, self.codec = container, None
        self._is_decoded = self._is_checked = True
        return self._scanned(container, begin)

    def fill(self, view: memoryview, start: int) -> None:
        """Fill ``view`` with the bytes of the shard from ``start`` on."""
        if self.is_whole:
            view[:] = self.whole[start : start + len(view)]
        else:
            self._source.read_into(view, start)

    def _kept(self) -> ReadObject | Spool | NamelessFile | Chain:
        """The bytes of the shard, in a place that stays valid when the buffer is used again."""
        if not self.is_whole:
            return self._source
        file = NamelessFile(self.name, self._spool)
        file.append(self.whole)
        return file

    def payload(self, members: MemberTable, row: int) -> Iterator[memoryview | bytes]:
        """The payload of one of the shard's ``members``, in pieces. A damaged payload raises
        ``CorruptShardError``, at the latest after its last piece."""
        sizes = members.compressed_bytes if members.is_compressed(row) else members.payload_bytes
        stored = self.range(int(members.payload_start[row]), int(sizes[row]))
        return self.unpacked(members, row, stored) if self.container.payloads else stored

    def unpacked(
        self, members: MemberTable, row: int, stored: Iterable[memoryview]
    ) -> Iterator[memoryview | bytes]:
        """Yield the payload as :meth:`payload` does. ``stored``: its bytes in the shard."""
        payloads = self.container.payloads
        assert payloads is not None
        try:
            if members.is_compressed(row):
                yield from payloads.decompressed(members, row, stored)
            elif (reported := payloads.checksum(members, row)) is not None:
                yield from _checked(stored, reported)
            else:
                yield from stored
        except ValueError as error:
            start = int(members.payload_start[row])
            text = f"{readable(members.names[row])} {error}"
            raise CorruptShardError(self.name, start, text) from None

    def pieces(self) -> Iterator[memoryview]:
        """Yield all bytes of the shard, in order, a buffer at a time. ``CorruptShardError`` if the
        shard has a codec and is damaged."""
        if not self._is_decoded:
            self._decode()
        yield from self.range(0, self.size_bytes)

    def range(self, start: int, length: int) -> Iterator[memoryview]:
        """Yield ``length`` bytes from ``start`` on, in order, in pieces. Each piece is valid until
        the next piece is requested."""
        if self.is_whole:
            yield self.whole[start : start + length]
            return
        yield from self._buffer.windows(self._source, start, length, self._window_bytes)

    def windows(self, segments: Segments) -> Iterator[Window]:
        """Yield views that together hold every record of ``segments``, in row order. Each is valid
        until the next. For a record that is too large for the buffer, yield a window without rows:
        the record has to be read with :meth:`stream`."""
        count = len(segments.offsets) - 1
        if self.is_whole:
            if count:
                yield Window(0, count, self.whole, 0)
            return
        low, high = segments.extents()
        row = 0
        while row < count:
            span = slice(row, row + WINDOW_ROWS_MAX)
            lowest = np.minimum.accumulate(low[span])
            highest = np.maximum.accumulate(high[span])
            fits = highest - lowest <= self._window_bytes
            # Extents only grow: once a row does not fit, no later one does.
            run = len(fits) if fits.all() else int(np.argmin(fits))
            base = int(lowest[run - 1]) if run else 0
            view = self._buffer.view(int(highest[run - 1]) - base if run else 0)
            self._source.read_into(view, base)
            yield Window(row, row + run, view, base)
            row += max(run, 1)

    def stream(self, segments: Segments, row: int) -> Iterator[memoryview]:
        """Yield the bytes of one record, a buffer at a time."""
        literals = np.ascontiguousarray(segments.literals).data
        for i in range(int(segments.offsets[row]), int(segments.offsets[row + 1])):
            start, length = int(segments.start[i]), int(segments.length[i])
            if start < 0:
                yield literals[-1 - start : -1 - start + length]
            else:
                yield from self.range(start, length)


def _checked(stored: Iterable[memoryview], reported: int) -> Iterator[memoryview]:
    """Yield the pieces in ``stored``; ``ValueError`` at the end if their CRC-32 is not
    ``reported``."""
    from isal import isal_zlib  # only containers with checksums need it

    found = 0
    for piece in stored:
        found = isal_zlib.crc32(piece, found)
        yield piece
    if found != reported:
        raise ValueError("does not have the CRC-32 that its shard lists")


INPUTS_FILE = "inputs.col"
_NAMES = ("utf-8", "surrogateescape")
OPEN_TRIES_MAX = 3


class InputShard(ObjectInfo, frozen=True):
    """One resolved input shard. ``etag`` pins its content for the length of the job."""


def inputs_bytes(inputs: Sequence[InputShard]) -> bytes:
    """The job's inputs as the content of ``INPUTS_FILE``, which is sent to all nodes."""
    return columns_bytes(
        {
            "names": _texts(shard.name for shard in inputs),
            "size_bytes": np.array([shard.size_bytes for shard in inputs], np.int64),
            "mtime_ns": np.array([shard.mtime_ns for shard in inputs], np.int64),
            "etags": _texts(shard.etag for shard in inputs),
        }
    )


def read_inputs(store: IndexStore) -> list[InputShard]:
    """The inputs from the shared file."""
    file = store.columns(INPUTS_FILE)
    names = [name.decode(*_NAMES) for name in file.bytes_column("names").tolist()]
    count = len(names)
    etags = [etag.decode(*_NAMES) for etag in file.bytes_column("etags", 0, count).tolist()]
    sizes = file.array("size_bytes", 0, count).tolist()
    times = file.array("mtime_ns", 0, count).tolist()
    return list(map(InputShard, names, sizes, times, etags))


def _texts(values: Iterable[str]) -> BytesColumn:
    return BytesColumn.of([value.encode(*_NAMES) for value in values])


def open_input(bucket: Bucket, name: str, size_bytes: int, etag: str) -> ReadObject:
    """Open an input shard; ``ChangedInputError`` if it has changed since the job resolved it.

    ``StorageError`` if the store repeatedly reports the same etag with another size: then it sends
    only a part of the shard."""
    for _ in range(OPEN_TRIES_MAX):
        source = bucket.open(name)
        info = source.info
        if info.is_still(size_bytes, etag):
            return source
        source.close()
        # With the same etag, an answer was cut off: another try may get the whole object.
        if info.etag != etag:
            raise ChangedInputError(
                f"input shard {name} changed while the job ran",
                hint="start the job again once nothing writes to its inputs",
            )
    raise StorageError(
        f"cannot read {name} in bucket {bucket.uri}: the store sends {info.size_bytes:,} of its "
        f"{size_bytes:,} bytes",
        hint="look at the store, and at proxies on the way to it",
    )
