"""Reads samples ahead: threads fetch, other threads decode, within a bounded number of bytes.

The places of a rank are cut into *blocks* of about the same size, which are begun in order. No
block begins before the loader is iterated, so an unused loader does nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from itertools import islice
from typing import Final

import numpy as np
from msgspec import Struct

from dsort.data.columns import Int64s
from dsort.loader.decode import Decoder, Sample
from dsort.loader.order import EpochOrder, Steps
from dsort.loader.samples import bytes_of
from dsort.loader.shard_source import ShardSource

__all__ = ["PADDING", "Budget", "SampleStream", "decoded"]

PADDING: Final = "__padding__"
"""The mark of samples that fill up the last step."""
KEPT_BYTES: Final = 62 << 20
"""The memory that the C library is made to keep: more than the loader reads ahead of local files.
The most that glibc keeps in this way is twice 32 MiB."""
DECODED_AT_ONCE: Final = 8
PUT_BYTES: Final = 1 << 20
"""The bytes that are put in order at a time where a block has several shards."""


class _Part(Struct, frozen=True):
    """The samples of a block that are in one shard. ``rows``: the number of each sample in the
    shard, in ascending order; ``at``: the place of each sample in the block."""

    source: ShardSource
    ticket: int
    rows: Int64s
    at: Int64s
    is_padding: bool


class Budget(Struct, frozen=True):
    """Limits. ``block_samples``: the samples of a block (the first blocks are smaller);
    ``block_bytes``: the bytes that a block holds at a time (a larger sample is held alone);
    ``blocks``: the blocks that may be read ahead."""

    block_samples: int
    block_bytes: int
    blocks: int


class _Block:
    """A block: it holds samples between their reading and their use. Its thread waits only for
    earlier blocks, and, once the block is full, for the consumer."""

    def __init__(self, parts: list[_Part], count: int, bytes_max: int, *, is_forward: bool) -> None:
        """``is_forward``: the places of each part ascend with its rows."""
        self._is_forward = is_forward
        self._parts, self._count, self._bytes_max = parts, count, bytes_max
        self._ready: deque[tuple[int, list[Sample]]] = deque()
        self._held_bytes = 0
        self._is_closed = False
        self._changed = threading.Condition()
        self._reading: Future[None] | None = None

    def begin(self, threads: ThreadPoolExecutor) -> None:
        """Start to read the block in one of ``threads``."""
        self._reading = threads.submit(self._read)
        self._reading.add_done_callback(self._end)

    def samples(self) -> Iterator[Sample]:
        """All samples. The block keeps no reference to a sample that it has yielded."""
        assert self._reading is not None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ready or self._is_closed)
                if not self._ready:
                    break
                size_bytes, some = self._ready.popleft()
                self._held_bytes -= size_bytes
                self._changed.notify_all()
            some.reverse()
            while some:
                yield some.pop()
        self._reading.result()

    def close(self) -> None:
        """Stop reading."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _end(self, _: Future[None]) -> None:
        self.close()

    def _read(self) -> None:
        try:
            for size_bytes, some in self._lists():
                if not self._put(size_bytes, some):
                    return
        finally:
            for part in self._parts:
                part.source.leave(part.ticket)

    def _lists(self) -> Iterator[tuple[int, list[Sample]]]:
        if not self._is_forward:
            return self._placed()
        return self._in_order() if len(self._parts) > 1 else _sized(self._parts[0])

    def _placed(self) -> Iterator[tuple[int, list[Sample]]]:
        """(bytes, samples) of all parts at once, each at its place."""
        found: list[Sample] = [{}] * self._count
        size_bytes = 0
        for part in self._parts:
            places = iter(part.at.tolist())
            for more_bytes, some in _sized(part):
                size_bytes += more_bytes
                for sample in some:
                    found[next(places)] = sample
        yield size_bytes, found

    def _in_order(self) -> Iterator[tuple[int, list[Sample]]]:
        """(bytes, samples) of all parts, in the order of the block."""
        owners = np.empty(self._count, np.int64)
        for number, part in enumerate(self._parts):
            owners[part.at] = number
        lists = [_sized(part) for part in self._parts]
        read: list[list[Sample]] = [[] for _ in self._parts]
        found, size_bytes = list[Sample](), 0
        for number in owners.tolist():
            while not read[number]:
                more_bytes, read[number] = next(lists[number])
                size_bytes += more_bytes
                read[number].reverse()
            found.append(read[number].pop())
            if size_bytes >= PUT_BYTES:
                yield size_bytes, found
                found, size_bytes = [], 0
        yield size_bytes, found

    def _put(self, size_bytes: int, some: list[Sample]) -> bool:
        """Wait for room, then hold ``some``. False if the block was closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._held_bytes < self._bytes_max)
            if self._is_closed:
                return False
            self._ready.append((size_bytes, some))
            self._held_bytes += size_bytes
            self._changed.notify_all()
            return True


class SampleStream:
    """The samples of one rank from one place on, in order."""

    def __init__(
        self,
        steps: Steps,
        order: Callable[[int], EpochOrder],
        source: Callable[[int], ShardSource],
        *,
        budget: Budget,
        sources_max: int,
        threads: int,
        decode: Decoder | None,
        is_forward: bool = True,
    ) -> None:
        """``order``: returns the order of an epoch. ``source``: makes the source of a shard, by its
        number. ``is_forward``: each shard is read forward."""
        self._is_forward = is_forward
        self._steps, self._order, self._make = steps, order, source
        self._budget, self._sources_max = budget, sources_max
        self._threads, self._decode = threads, decode
        self._sources: OrderedDict[tuple[int, int], ShardSource] = OrderedDict()
        self._retired: deque[tuple[Future[None], ShardSource]] = deque()
        self._unwanted: list[tuple[ShardSource, int]] = []  # and their last tickets

    def samples(self, first: int, stride: int) -> Generator[Sample, None, None]:
        """The samples of steps ``first``, ``first + stride``, and so on. Its threads end when the
        generator is closed, used up, or no longer referenced."""
        _keep_memory()
        fetchers = ThreadPoolExecutor(min(self._threads, 4), thread_name_prefix="dsort-fetch")
        decoders: ThreadPoolExecutor | None = None
        found = self._fetched(fetchers, self._blocks(first, stride))
        try:
            if self._decode is None:
                yield from found
                return
            decoders = ThreadPoolExecutor(self._threads, thread_name_prefix="dsort-decode")
            yield from decoded(decoders, self._decode, found, ahead=2 * self._threads)
        finally:
            found.close()
            # Threads end before their sources are closed: they may be reading from them.
            for pool in filter(None, (fetchers, decoders)):
                pool.shutdown(wait=True, cancel_futures=True)
            retired = (source for _, source in self._retired)
            for source in (*self._sources.values(), *retired, *(old for old, _ in self._unwanted)):
                source.close()
            self._sources.clear()
            self._retired.clear()
            self._unwanted.clear()

    def _fetched(
        self, fetchers: ThreadPoolExecutor, blocks: Iterator[Int64s]
    ) -> Generator[Sample, None, None]:
        begun: deque[_Block] = deque()
        try:
            while True:
                for places in islice(blocks, self._budget.blocks - len(begun)):
                    bytes_max = self._budget.block_bytes
                    parts = self._parts(places)
                    begun.append(_Block(parts, len(places), bytes_max, is_forward=self._is_forward))
                    begun[-1].begin(fetchers)
                    # These tasks are submitted after the block, because the block may hold the
                    # ticket before theirs. A thread that waits for the ticket of a block that has
                    # not begun would wait for ever.
                    for source, ticket in self._unwanted:
                        self._retired.append((fetchers.submit(source.finish, ticket), source))
                    self._unwanted.clear()
                if not begun:
                    # If little of a shard is left, it is read to its end, to get its index. The
                    # wait is for shards whose turn is still to come: the end of the threads would
                    # cancel them.
                    wait(ended for ended, _ in self._retired)
                    for source in self._sources.values():
                        source.finish(source.ticket())
                    return
                yield from begun[0].samples()
                begun.popleft()
        finally:
            for block in begun:
                block.close()

    def _blocks(self, first: int, stride: int) -> Iterator[Int64s]:
        """The places of each block. A block has whole steps, few in the first blocks, or a part of
        a step that is larger than a block."""
        samples = self._budget.block_samples
        most = max(samples // self._steps.batch_size, 1)
        # The first blocks are smaller, so that the first batch arrives soon.
        steps, stop = 1, self._steps.count
        while first < stop:
            last = min(first + steps * stride, stop)
            places = self._steps.places(first, last, stride)
            for at in range(0, len(places), samples):
                yield places[at : at + samples]
            first, steps = first + steps * stride, min(2 * steps, most)

    def _parts(self, places: Int64s) -> list[_Part]:
        """The parts of a block. Each call takes tickets, so blocks are passed in their order."""
        found = []
        rounds = places // self._steps.records  # 0: places of the epoch itself
        pads = self._steps.remainder == "pad"
        for turn in dict.fromkeys(rounds.tolist()):  # np.unique would load numpy.ma
            at = np.flatnonzero(rounds == turn)
            epoch = self._steps.begin.epoch + (0 if pads else turn)
            shards, rows = self._order(epoch).locate(places[at] - turn * self._steps.records)
            for shard in dict.fromkeys(shards.tolist()):
                inside = np.flatnonzero(shards == shard)
                if not self._is_forward:
                    inside = inside[np.argsort(rows[inside])]
                source = self._source(turn, shard)
                is_padding = pads and turn > 0
                found.append(_Part(source, source.ticket(), rows[inside], at[inside], is_padding))
        return found

    def _source(self, turn: int, shard: int) -> ShardSource:
        known = self._sources.get((turn, shard))
        if known is not None:
            self._sources.move_to_end((turn, shard))
            return known
        made = self._sources[turn, shard] = self._make(shard)
        while len(self._sources) > self._sources_max:
            _, old = self._sources.popitem(last=False)
            self._unwanted.append((old, old.ticket()))
        while self._retired and self._retired[0][0].done():
            self._retired.popleft()
        return made


@cache  # in a second call, glibc would take the piece from its heap, and clear it
def _keep_memory() -> None:
    """Make the C library keep the memory of samples that are freed. By default glibc returns more
    than 128 KiB at the end of its heap to the kernel, and requests it again with the next batch.
    The first large piece that a process frees raises this limit to twice the size of the piece."""
    # bytes() takes zeroed pages of the kernel and touches none; a bytearray would write zeros.
    bytes(KEPT_BYTES // 2)


def _sized(part: _Part) -> Iterator[tuple[int, list[Sample]]]:
    """(bytes, samples) of a part, list by list as they are read."""
    for some in part.source.take(part.ticket, part.rows):
        size_bytes = bytes_of(some)
        if part.is_padding:
            for sample in some:
                sample[PADDING] = True
        yield size_bytes, some


def decoded(
    decoders: ThreadPoolExecutor, decode: Decoder, samples: Iterator[Sample], *, ahead: int
) -> Iterator[Sample]:
    """The decoded samples, in order. ``ahead``: the number of tasks that are begun at once."""
    begun: deque[Future[list[Sample]]] = deque()
    while True:
        while len(begun) < ahead and (some := list(islice(samples, DECODED_AT_ONCE))):
            begun.append(decoders.submit(_decode_all, decode, some))
        if not begun:
            return
        yield from begun.popleft().result()


def _decode_all(decode: Decoder, samples: list[Sample]) -> list[Sample]:
    return [decode(sample) for sample in samples]
