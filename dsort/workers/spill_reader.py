"""One bucket's spill, read back from all homes as if it were one file.

It is there as *blocks*, one for each shard that put records in it, one after the other in shard
order. Blocks of this home are read from their files; those of others come in large pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from dsort.core.columns import Int64s
from dsort.workers.homes import Homes, Where
from dsort.workers.index_store import OrderedRows
from dsort.workers.requests import BLOCK_BYTES, SpillBlock
from dsort.workers.spill import SpillFiles

__all__ = ["SpillReader"]

BLOCKS_IN_FLIGHT_MAX = 2


@dataclass(slots=True)
class _Batch:
    """Ranges to ask one home for, and where in memory they are wanted."""

    home: str
    views: list[memoryview] = field(default_factory=list)
    workers: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, view: memoryview, worker: int, start: int) -> None:
        self.views.append(view)
        self.workers.append(worker)
        self.starts.append(start)
        self.size_bytes += len(view)

    def request(self, bucket: int) -> SpillBlock:
        sizes = tuple(map(len, self.views))
        return SpillBlock(bucket, tuple(self.workers), tuple(self.starts), sizes)

    def scatter(self, block: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> None:
        """Put the answer where it is wanted."""
        source, at = block.data, 0
        for view in self.views:
            view[:] = source[at : at + len(view)]
            at += len(view)


class SpillReader:
    """Reads one bucket's spill."""

    def __init__(self, homes: Homes, where: Where, bucket: int, rows: OrderedRows) -> None:
        self._homes = homes
        self._bucket = bucket
        self._block_home = where.home_of[rows.block_shard]
        self._names = where.homes
        self._worker: Int64s = rows.block_worker
        self._start: Int64s = rows.block_start
        self._offsets = np.zeros(len(rows.block_bytes) + 1, np.int64)
        np.cumsum(rows.block_bytes, out=self._offsets[1:])
        self._files = SpillFiles(homes.store.scratch, bucket)

    @property
    def size_bytes(self) -> int:
        """All blocks together."""
        return int(self._offsets[-1])

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset``."""
        self.read_many([(buffer, offset)])

    def read_many(self, wanted: Sequence[tuple[memoryview, int]]) -> None:
        """Fill each buffer from its offset."""
        open_batches: dict[str, _Batch] = {}
        full: list[_Batch] = []
        for buffer, offset in wanted:
            for home, worker, start, view in self._ranges(buffer, offset):
                if home == self._homes.home:
                    self._files.read_into(view, worker, start)
                    continue
                for at in range(0, len(view), BLOCK_BYTES):
                    piece = view[at : at + BLOCK_BYTES]
                    batch = open_batches.get(home)
                    if batch is None or batch.size_bytes + len(piece) > BLOCK_BYTES:
                        batch = open_batches[home] = _Batch(home)
                        full.append(batch)
                    batch.add(piece, worker, start + at)
        asks = ((batch.home, batch.request(self._bucket)) for batch in full)
        blocks = self._homes.ask_all(asks, in_flight_max=BLOCKS_IN_FLIGHT_MAX)
        for batch, block in zip(full, blocks, strict=True):
            batch.scatter(block)

    def forget(self) -> None:
        """What was read is in a buffer: give its pages back."""
        self._files.forget()

    def close(self) -> None:
        """Close all files."""
        self._files.close()

    def _ranges(
        self, buffer: memoryview, offset: int
    ) -> Iterator[tuple[str, int, int, memoryview]]:
        """(home, worker, start in its file, part of ``buffer``) of what ``buffer`` wants."""
        done = 0
        block = int(np.searchsorted(self._offsets, offset, side="right")) - 1
        while done < len(buffer):
            inside = offset + done - int(self._offsets[block])
            room = int(self._offsets[block + 1] - self._offsets[block]) - inside
            size = min(room, len(buffer) - done)
            if size > 0:
                home = self._names[int(self._block_home[block])]
                start = int(self._start[block]) + inside
                yield home, int(self._worker[block]), start, buffer[done : done + size]
            done += size
            block += 1
