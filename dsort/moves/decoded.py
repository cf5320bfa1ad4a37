"""The decoded bytes of an encoded shard: in the worker's buffer, or in a file if they are more."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator

from dsort.containers.codecs.base import Codec
from dsort.containers.codecs.decoding import Decoding, DecodingRules
from dsort.errors import CorruptShardError, StorageError
from dsort.scratch.directory import Scratch
from dsort.storage.bucket import ReadObject, StagedObject
from dsort.storage.directory.files import LocalStagedObject
from dsort.storage.directory.os_errors import StorageErrors

READ_BYTES = 256 << 10


class DecodedFile:
    """A file without a name, which ``close`` removes. ``scratch``: its place; None: the system's
    temporary directory."""

    def __init__(self, shard: str, scratch: Scratch | None) -> None:
        where = str(scratch) if scratch is not None else tempfile.gettempdir()
        with StorageErrors(f"decode {shard}", where):
            if scratch is not None:
                fd = scratch.open_nameless()
            else:
                with tempfile.TemporaryFile() as file:
                    fd = os.dup(file.fileno())
        self._file = LocalStagedObject(fd, f"the decoded bytes of {shard}", where)
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
    for at in range(start, source.info.size_bytes, READ_BYTES):
        piece = bytearray(min(READ_BYTES, source.info.size_bytes - at))
        source.read_into(memoryview(piece), at)
        data = bytes(piece)
        if watch is not None:
            watch(data)
        yield data


def decode(
    shard: str,
    codec: Codec,
    source: ReadObject,
    view: memoryview,
    rules: DecodingRules,
    *,
    scratch: Scratch | None,
    watch: Callable[[bytes], object] | None,
) -> int | DecodedFile:
    """Decode all of ``source`` into ``view``, and return the number of bytes; or into a file, if
    ``view`` is too small. ``CorruptShardError`` as in ``Decoding``."""
    decoding = Decoding(
        shard,
        codec,
        file_pieces(source, watch=watch),
        source.info.size_bytes,
        max_expansion=rules.max_expansion,
        window_bytes_max=max(len(view), rules.window_bytes),
    )
    at, file = 0, None
    try:
        for piece in decoding:
            if file is None and at + len(piece) > len(view):
                file = DecodedFile(shard, scratch)
                file.append(view[:at])
            if file is not None:
                file.append(piece)
            else:
                view[at : at + len(piece)] = piece
                at += len(piece)
    except BaseException:
        if file is not None:
            file.close()
        raise
    return at if file is None else file


class ForwardReader:
    """The decoded bytes of a shard that this job has encoded, read in ascending order."""

    def __init__(self, shard: str, codec: Codec, staged: StagedObject) -> None:
        size = staged.size_bytes()
        pieces = _staged_pieces(staged, size)
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
                "an output shard cannot be decoded as it was encoded",
                hint="check memory and disks; nothing was published",
            ) from None

    def _next(self) -> None:
        self._at += len(self._piece)
        self._piece = memoryview(next(self._pieces))


def _staged_pieces(staged: StagedObject, size_bytes: int) -> Iterator[bytes]:
    for at in range(0, size_bytes, READ_BYTES):
        piece = bytearray(min(READ_BYTES, size_bytes - at))
        staged.read_into(memoryview(piece), at)
        yield bytes(piece)
