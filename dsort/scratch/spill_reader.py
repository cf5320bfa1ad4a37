"""One partition's spill, read back from all homes as if it were one file.

It is there as *blocks*, one for each shard that put records in it, one after the other in shard
order. Blocks of this home are read from their files; those of others come in large pieces.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dsort.data.columns import Int64s
from dsort.errors import ObjectNotFoundError, ScratchLostError
from dsort.scratch.index import OrderedRows
from dsort.scratch.nodes import Homes, Where
from dsort.scratch.requests import BLOCK_BYTES, SpillBlock
from dsort.scratch.spill import SpillFiles

__all__ = ["SpillReader"]

BLOCKS_IN_FLIGHT_MAX = 2


@dataclass(frozen=True, slots=True)
class _Range:
    """``size`` bytes from ``start`` of a worker's file, which are wanted at ``at`` of the buffer
    number ``buffer``."""

    worker: int
    start: int
    size: int
    buffer: int
    at: int


@dataclass(slots=True)
class _Batch:
    """Ranges to ask one home for."""

    home: str
    ranges: list[_Range] = field(default_factory=list)
    size_bytes: int = 0

    def request(self, partition: int) -> SpillBlock:
        return SpillBlock(
            partition,
            tuple(each.worker for each in self.ranges),
            tuple(each.start for each in self.ranges),
            tuple(each.size for each in self.ranges),
        )

    def scatter(
        self, block: np.ndarray[tuple[int], np.dtype[np.uint8]], buffers: Sequence[memoryview]
    ) -> None:
        """Put the answer where it is wanted."""
        source, done = block.data, 0
        for each in self.ranges:
            target = buffers[each.buffer]
            target[each.at : each.at + each.size] = source[done : done + each.size]
            done += each.size


@dataclass(frozen=True, slots=True)
class _Fetch:
    """What is here already, and what is on its way."""

    here: list[_Range]
    batches: list[_Batch]
    blocks: Iterator[np.ndarray[tuple[int], np.dtype[np.uint8]]]


class SpillReader:
    """Reads one partition's spill."""

    def __init__(self, homes: Homes, where: Where, partition: int, rows: OrderedRows) -> None:
        self._homes = homes
        self._partition = partition
        self._block_home = where.home_of[rows.block_shard]
        self._names = where.homes
        self._worker: Int64s = rows.block_worker
        self._start: Int64s = rows.block_start
        self._offsets = np.zeros(len(rows.block_bytes) + 1, np.int64)
        np.cumsum(rows.block_bytes, out=self._offsets[1:])
        self._files = SpillFiles(homes.store.scratch, partition)
        self._ahead: _Fetch | None = None

    @property
    def size_bytes(self) -> int:
        """All blocks together."""
        return int(self._offsets[-1])

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset``."""
        self.read_many([(buffer, offset)])

    def ask_ahead(self) -> None:
        """Have the first blocks of other homes come while something else is done: all of it is
        going to be read at once."""
        self._ahead = self._fetch([(self.size_bytes, 0)])

    def read_many(self, wanted: Sequence[tuple[memoryview, int]]) -> None:
        """Fill each buffer from its offset."""
        sizes = [(len(buffer), offset) for buffer, offset in wanted]
        fetch, self._ahead = self._ahead, None
        if fetch is None or sizes != [(self.size_bytes, 0)]:
            fetch = self._fetch(sizes)
        buffers = [buffer for buffer, _ in wanted]
        with self._there(self._homes.home):
            for each in fetch.here:
                target = buffers[each.buffer][each.at : each.at + each.size]
                self._files.read_into(target, each.worker, each.start)
        for batch in fetch.batches:
            with self._there(batch.home):
                batch.scatter(next(fetch.blocks), buffers)

    def forget(self) -> None:
        """What was read is in a buffer: give its pages back."""
        self._files.forget()

    def close(self) -> None:
        """Close all files."""
        self._files.close()

    @contextlib.contextmanager
    def _there(self, home: str) -> Iterator[None]:
        """Spill files that are gone were removed when the partition was written, which an attempt
        that goes on with the job may not know, or by somebody who tidies up: made again."""
        try:
            yield
        except ObjectNotFoundError as error:
            raise ScratchLostError(home, error.message) from None

    def _fetch(self, wanted: Sequence[tuple[int, int]]) -> _Fetch:
        """Ask for (size, offset) of each buffer."""
        here: list[_Range] = []
        batches: list[_Batch] = []
        last: dict[str, _Batch] = {}
        for number, (size, offset) in enumerate(wanted):
            for home, found in self._ranges(number, size, offset):
                if home == self._homes.home:
                    here.append(found)
                    continue
                for at in range(0, found.size, BLOCK_BYTES):
                    piece = replace(
                        found,
                        start=found.start + at,
                        at=found.at + at,
                        size=min(BLOCK_BYTES, found.size - at),
                    )
                    if home not in last or last[home].size_bytes + piece.size > BLOCK_BYTES:
                        last[home] = _Batch(home)
                        batches.append(last[home])
                    last[home].ranges.append(piece)
                    last[home].size_bytes += piece.size
        asks = ((batch.home, batch.request(self._partition)) for batch in batches)
        blocks = self._homes.ask_all(asks, in_flight_max=BLOCKS_IN_FLIGHT_MAX)
        return _Fetch(here, batches, blocks)

    def _ranges(self, buffer: int, size: int, offset: int) -> Iterator[tuple[str, _Range]]:
        """(home, range) of what ``size`` bytes from ``offset`` lie in."""
        done = 0
        block = int(np.searchsorted(self._offsets, offset, side="right")) - 1
        while done < size:
            inside = offset + done - int(self._offsets[block])
            room = int(self._offsets[block + 1] - self._offsets[block]) - inside
            part = min(room, size - done)
            if part > 0:
                home = self._names[int(self._block_home[block])]
                start = int(self._start[block]) + inside
                yield home, _Range(int(self._worker[block]), start, part, buffer, done)
            done += part
            block += 1
