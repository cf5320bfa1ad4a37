"""Places for payload while a shard is extracted: a worker's buffer, and files without names, which
may hold the decoded bytes of a shard.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Protocol

import numpy as np

from dsort.containers.codecs.base import Codec
from dsort.containers.codecs.decoding import Decoding, DecodingRules
from dsort.data.columns import UInt8s
from dsort.errors import CorruptShardError, InvariantError, StorageError
from dsort.scratch.directory import Scratch
from dsort.storage.bucket import ReadObject, StagedObject
from dsort.storage.directory.files import LocalStagedObject
from dsort.storage.directory.os_errors import StorageErrors

READ_BYTES = 256 << 10


class NamelessFile:
    """A file without a name, which ``close`` removes. ``scratch``: its place; None: the system's
    temporary directory."""

    def __init__(self, shard: str, scratch: Scratch | None) -> None:
        import tempfile  # few jobs decode inputs to files

        where = str(scratch) if scratch is not None else tempfile.gettempdir()
        with StorageErrors(f"keep the bytes of {shard}", where):
            if scratch is not None:
                fd = scratch.open_nameless()
            else:
                # The file lives as long as this copy of its descriptor.
                with tempfile.TemporaryFile() as file:
                    fd = os.dup(file.fileno())
        self._file = LocalStagedObject(fd, f"the bytes of {shard}", where)
        self.size_bytes = 0

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Add ``data`` to the end of the file."""
        self._file.write_at(self.size_bytes, [data])
        self.size_bytes += len(data)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset``."""
        self._file.read_into(buffer, offset)

    def close(self) -> None:
        """Remove the file."""
        self._file.close()


def file_pieces(
    source: ReadObject, start: int = 0, watch: Callable[[bytes], object] | None = None
) -> Iterator[bytes]:
    """Yield the stored bytes of ``source``, in order. Calls ``watch`` with each piece."""
    for piece in _pieces(source, start, source.info.size_bytes):
        if watch is not None:
            watch(piece)
        yield piece


def _pieces(source: Readable, start: int, stop: int) -> Iterator[bytes]:
    for at in range(start, stop, READ_BYTES):
        piece = bytearray(min(READ_BYTES, stop - at))
        source.read_into(memoryview(piece), at)
        yield bytes(piece)


class ForwardReader:
    """The decoded bytes of a shard that this job has encoded, read in ascending order."""

    def __init__(self, shard: str, codec: Codec, staged: StagedObject) -> None:
        size = staged.size_bytes()
        pieces = _pieces(staged, 0, size)
        decoding = Decoding(shard, codec, pieces, size, max_expansion=math.inf)
        self._pieces = iter(decoding)
        self._piece = memoryview(b"")
        self._at = 0

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset``, which is not before the end of the last read.
        ``StorageError`` if the shard cannot be decoded up to there."""
        try:
            while self._at + len(self._piece) <= offset:
                self._next()
            self._piece, self._at = self._piece[offset - self._at :], offset
            done = 0
            while done < len(buffer):
                if not self._piece:
                    self._next()
                size = min(len(self._piece), len(buffer) - done)
                buffer[done : done + size] = self._piece[:size]
                self._piece, self._at = self._piece[size:], self._at + size
                done += size
        except (CorruptShardError, StopIteration):
            raise StorageError(
                "an output shard cannot be decoded after it was encoded",
                hint="check memory and disks; nothing was published",
            ) from None

    def _next(self) -> None:
        self._at += len(self._piece)
        self._piece = memoryview(next(self._pieces))


GAP_BYTES = 1 << 20
PAGE_BYTES = 4096


class Readable(Protocol):
    """Bytes that can be read in any order."""

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset``."""


class PayloadBuffer:
    """The single large buffer of a worker, allocated once: new memory costs more than a copy."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes

    @cached_property
    def _array(self) -> UInt8s:
        memory = np.empty(self.size_bytes + PAGE_BYTES, np.uint8)
        skipped = -memory.ctypes.data % PAGE_BYTES  # direct reads need buffers at page borders
        return memory[skipped : skipped + self.size_bytes]

    def view(self, size_bytes: int) -> memoryview:
        """The first ``size_bytes`` of the buffer, writable."""
        return self._array.data[:size_bytes]

    def windows(
        self, source: Readable, start: int, length: int, step: int | None = None
    ) -> Iterator[memoryview]:
        """Yield ``length`` bytes of ``source`` from ``start`` on, in order, a buffer or ``step``
        bytes at a time."""
        step = min(step or self.size_bytes, self.size_bytes)
        for at in range(start, start + length, step):
            window = self.view(min(step, start + length - at))
            source.read_into(window, at)
            yield window

    @property
    def half_bytes(self) -> int:
        """The size of one half, in whole pages."""
        return (self.size_bytes // 2) & ~0xFFF

    def half(self, number: int) -> PayloadBuffer:
        """The first or the second half, as a separate buffer in the same memory."""
        return self.part(number * self.half_bytes, self.half_bytes)

    def part(self, start: int, size_bytes: int) -> PayloadBuffer:
        """A part of the buffer, as a separate buffer in the same memory."""
        part = PayloadBuffer(size_bytes)
        part._array = self._array[start : start + size_bytes]
        return part


class RangeBuffer:
    """A ring in a worker's buffer: gives out aligned pieces, which have to be returned in the same
    order.

    The ring starts again at the front as soon as the front has room, because used memory is cheap:
    the first access to new memory costs as much as ten copies.
    """

    def __init__(
        self, buffer: PayloadBuffer, alignment_bytes: int, most_bytes: int | None = None
    ) -> None:
        """``most_bytes``: the most of the buffer to use; the rest is not touched."""
        whole = buffer.view(buffer.size_bytes)
        skipped = -np.frombuffer(whole, np.uint8).ctypes.data % alignment_bytes
        usable = buffer.size_bytes - skipped
        if most_bytes is not None:
            usable = min(usable, most_bytes)
        usable = usable // alignment_bytes * alignment_bytes
        self._view = whole[skipped : skipped + usable]
        self._taken: deque[tuple[int, int]] = deque()  # (start, end) of each piece, oldest first
        self.size_bytes = usable

    def has_room(self, size_bytes: int) -> bool:
        """Whether a piece of ``size_bytes`` can be taken now."""
        return self._free_at(size_bytes) >= 0

    def take(self, size_bytes: int) -> memoryview:
        """A piece of ``size_bytes``, a multiple of the alignment; a piece without bytes is not
        given back. ``InvariantError`` if there is no room."""
        start = self._free_at(size_bytes)
        if start < 0:
            raise InvariantError(f"a ring of {self.size_bytes} bytes has no room for {size_bytes}")
        if size_bytes:
            self._taken.append((start, start + size_bytes))
        return self._view[start : start + size_bytes]

    def give_back(self) -> None:
        """Return the oldest piece to the ring."""
        self._taken.popleft()

    def _free_at(self, size_bytes: int) -> int:
        """The place where a piece of ``size_bytes`` has room; -1 if there is none."""
        if not self._taken:
            return 0 if size_bytes <= self.size_bytes else -1
        oldest, newest_end = self._taken[0][0], self._taken[-1][1]
        if newest_end > oldest:  # the pieces in use are one run, without a wrap
            if oldest >= size_bytes:
                return 0
            return newest_end if self.size_bytes - newest_end >= size_bytes else -1
        return newest_end if oldest - newest_end >= size_bytes else -1


class Spool:
    """Reads from ``source``, and keeps the bytes for later reads in a file without a name, which
    ``close`` removes."""

    def __init__(self, source: ReadObject, scratch: Scratch) -> None:
        self._source = source
        self._file = NamelessFile(source.info.name, scratch)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset`` of the shard."""
        end = offset + len(buffer)
        if end > self._source.info.size_bytes:
            raise StorageError(
                f"{self._source.info.name} ended at byte {self._source.info.size_bytes:,}, "
                f"{end:,} expected"
            )
        have = self._file.size_bytes
        if offset > have:
            self._catch_up(offset)
        known = max(min(have, end) - offset, 0)
        if known:
            self._file.read_into(buffer[:known], offset)
        if known < len(buffer):
            self._fetch(buffer[known:])

    def close(self) -> None:
        """Remove the file."""
        self._file.close()

    def _catch_up(self, offset: int) -> None:
        """Fetch all bytes up to ``offset``: sources with a spool are read in order."""
        gap = memoryview(bytearray(min(GAP_BYTES, offset - self._file.size_bytes)))
        while self._file.size_bytes < offset:
            self._fetch(gap[: min(len(gap), offset - self._file.size_bytes)])

    def _fetch(self, buffer: memoryview) -> None:
        self._source.read_into(buffer, self._file.size_bytes)
        self._file.append(buffer)


class Tail:
    """Bytes that are appended to a shard, or all decoded bytes of a shard. They are in the buffer
    from byte ``begin`` on if they fit, else in ``file``, a file without a name."""

    def __init__(
        self, name: str, buffer: PayloadBuffer, scratch: Scratch | None, begin: int, fits: bool
    ) -> None:
        self._name = name
        self._buffer = buffer
        self._scratch = scratch
        self._begin = begin
        self.size_bytes = 0
        self.file = None if fits else NamelessFile(name, scratch)

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Add ``data`` to the end."""
        at = self._begin + self.size_bytes
        if self.file is not None:
            self.file.append(data)
        elif at + len(data) <= self._buffer.size_bytes:
            self._buffer.view(at + len(data))[at:] = data
        else:
            self.file = NamelessFile(self._name, self._scratch)
            self.file.append(self._buffer.view(at)[self._begin :])
            self.file.append(data)
        self.size_bytes += len(data)

    def close(self) -> None:
        """Remove the file."""
        if self.file is not None:
            self.file.close()


def decode(
    shard: str,
    codec: Codec,
    source: ReadObject,
    buffer: PayloadBuffer,
    rules: DecodingRules,
    *,
    scratch: Scratch | None,
    watch: Callable[[bytes], object] | None,
) -> Tail:
    """Decode all of ``source`` to a ``Tail`` that begins at the first byte of ``buffer``. Errors:
    see ``Decoding``."""
    decoding = Decoding(
        shard,
        codec,
        file_pieces(source, watch=watch),
        source.info.size_bytes,
        max_expansion=rules.max_expansion,
        window_bytes_max=max(buffer.size_bytes, rules.window_bytes),
    )
    decoded = Tail(shard, buffer, scratch, begin=0, fits=True)
    try:
        for piece in decoding:
            decoded.append(piece)
    except BaseException:
        decoded.close()
        raise
    return decoded


class Chain:
    """Reads from two sources as if they were one: ``second`` begins at byte ``border``."""

    def __init__(
        self, first: ReadObject | Spool | NamelessFile | Chain, border: int, second: NamelessFile
    ) -> None:
        self._first = first
        self._border = border
        self._second = second

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset`` of the combined bytes."""
        here = min(max(self._border - offset, 0), len(buffer))
        if here:
            self._first.read_into(buffer[:here], offset)
        if here < len(buffer):
            self._second.read_into(buffer[here:], max(offset - self._border, 0))

    def close(self) -> None:
        """Close both sources, except an input, which its opener closes."""
        self._second.close()
        if isinstance(self._first, (Spool, NamelessFile, Chain)):
            self._first.close()
