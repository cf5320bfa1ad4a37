"""Reads the rows of one input shard: some batches at a time, and no more bytes than the job
allows."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator

from dsort.containers.codecs.decoding import EXPANSION_FLOOR_BYTES
from dsort.containers.columnar.values import LightRows
from dsort.errors import CorruptShardError
from dsort.moves.payload_files import PayloadBuffer, Spool
from dsort.sizes import format_bytes
from dsort.storage.bucket import ReadObject
from dsort.workers.tasks import ExtractTask


class ShardSource:
    """An opened input for readers of tables: mapped, in the buffer, or read in parts."""

    def __init__(
        self,
        source: ReadObject | Spool,
        size_bytes: int,
        view: memoryview | None,
        buffer: PayloadBuffer,
    ) -> None:
        """``buffer``: holds the requested ranges where ``view`` is None."""
        self._source = source
        self._view = view
        self._buffer = buffer
        self.size_bytes = size_bytes

    @classmethod
    def of(cls, source: ReadObject, buffer: PayloadBuffer) -> ShardSource:
        """An input that is mapped, or read into ``buffer`` if it fits."""
        size_bytes, view = source.info.size_bytes, source.mapping()
        if view is None and size_bytes <= buffer.size_bytes:
            view = buffer.view(size_bytes)
            source.read_into(view, 0)
        return cls(source, size_bytes, view, buffer)

    def whole(self) -> memoryview | None:
        """See :class:`~dsort.containers.columnar.ranges.Source`."""
        return self._view

    def forget(self, until: int) -> None:
        """Release the pages of the first ``until`` bytes, which are not read again. If they stayed
        mapped, they would fill the memory, and compete with pages on their way to the disk."""
        mapped = None if self._view is None else self._view.obj
        if isinstance(mapped, mmap.mmap) and until > mmap.PAGESIZE:
            mapped.madvise(mmap.MADV_DONTNEED, 0, until & -mmap.PAGESIZE)

    def read(self, offset: int, length: int) -> bytes:
        """See :class:`~dsort.containers.columnar.ranges.Source`."""
        if self._view is not None:
            return bytes(self._view[offset : offset + length])
        data = bytearray(length)
        self._source.read_into(memoryview(data), offset)
        return bytes(data)

    def held(self, offset: int, length: int) -> memoryview | None:
        """See :class:`~dsort.containers.columnar.ranges.Source`."""
        if self._view is not None:
            return self._view[offset : offset + length]
        if length > self._buffer.size_bytes:
            return None
        view = self._buffer.view(length)
        self._source.read_into(view, offset)
        return view


def gathered_up(batches: Iterable[LightRows], bytes_max: int) -> Iterator[list[LightRows]]:
    """Join batches to groups of about ``bytes_max``: small row groups would make blocks of a row or
    two."""
    waiting: list[LightRows] = []
    size_bytes = 0
    for batch in batches:
        more = batch.held_bytes
        if waiting and size_bytes + more > bytes_max:
            yield waiting
            waiting, size_bytes = [], 0
        waiting.append(batch)
        size_bytes += more
    if waiting:
        yield waiting


def bounded(
    task: ExtractTask, batches: Iterator[LightRows], max_expansion: float
) -> Iterator[LightRows]:
    """Yield ``batches``. ``CorruptShardError`` once the rows of the shard take more bytes than the
    job allows. A row counts as one byte at least, because a few bytes of a shard can hold any
    number of nulls."""
    limit = max_expansion * task.size_bytes + EXPANSION_FLOOR_BYTES
    decoded_bytes = 0
    for batch in batches:
        decoded_bytes += max(batch.nbytes, batch.num_rows)
        if decoded_bytes > limit:
            raise CorruptShardError(
                task.name,
                0,
                f"its rows take more than {format_bytes(int(limit))}, {max_expansion:g} times its "
                f"length and {format_bytes(EXPANSION_FLOOR_BYTES)}",
                hint="a bomb does; if this is data, set a larger max_expansion",
            )
        yield batch
