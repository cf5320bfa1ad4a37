"""Reads samples ahead: threads fetch, threads decode, and what is ahead has bounded bytes.

The places of a rank are cut into *blocks* of about as many bytes, the first ones smaller, so that
the first batch is soon there. Blocks are begun in order; a thread that has one waits for none but
those before it. Nothing is begun before somebody wants it or something behind it, so that a loader
that nobody reads from does nothing.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Final

import numpy as np

from dsort.data.columns import Int64s
from dsort.loader.decode import Decoder, Sample
from dsort.loader.order import EpochOrder
from dsort.loader.position import Steps
from dsort.loader.shard_source import ShardSource

__all__ = ["PADDING", "Budget", "Pipeline"]

PADDING: Final = "__padding__"
"""The mark of samples that fill up the last step."""
KEPT_BYTES: Final = 62 << 20
"""More than is ahead of files. Twice 32 MiB is the most that glibc keeps in this way."""
DECODED_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class _Part:
    """Samples ``rows`` of one shard, and where in their block each comes."""

    source: ShardSource
    ticket: int
    rows: Int64s
    at: Int64s
    is_padding: bool


@dataclass(frozen=True, slots=True)
class Budget:
    """``block_samples``: of a block, once reading is under way. ``blocks``: that may be ahead."""

    block_samples: int
    blocks: int


class Pipeline:
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
    ) -> None:
        """``order``: of an epoch. ``source``: makes that of a shard, by its number."""
        self._steps, self._order, self._make = steps, order, source
        self._budget, self._sources_max = budget, sources_max
        self._threads, self._decode = threads, decode
        self._sources: OrderedDict[tuple[int, int], ShardSource] = OrderedDict()
        self._retired: deque[tuple[Future[None], ShardSource]] = deque()
        self._unwanted: list[tuple[ShardSource, int]] = []  # and their last tickets

    def samples(self, first: int, stride: int) -> Generator[Sample, None, None]:
        """The samples of steps ``first``, ``first + stride``, and so on. Ends its threads when it
        is closed, used up, or let go of."""
        _keep_memory()
        fetchers = ThreadPoolExecutor(min(self._threads, 4), thread_name_prefix="dsort-fetch")
        decoders: ThreadPoolExecutor | None = None
        try:
            found = self._fetched(fetchers, self._blocks(first, stride))
            if self._decode is None:
                yield from found
                return
            decoders = ThreadPoolExecutor(self._threads, thread_name_prefix="dsort-decode")
            yield from _decoded(decoders, self._decode, found, ahead=2 * self._threads)
        finally:
            for pool in (fetchers, decoders):
                if pool is not None:
                    pool.shutdown(wait=True, cancel_futures=True)
            retired = (source for _, source in self._retired)
            for source in (*self._sources.values(), *retired, *(old for old, _ in self._unwanted)):
                source.close()
            self._sources.clear()
            self._retired.clear()
            self._unwanted.clear()

    def _fetched(self, fetchers: ThreadPoolExecutor, blocks: Iterator[Int64s]) -> Iterator[Sample]:
        begun: deque[Future[list[Sample]]] = deque()
        while True:
            for places in islice(blocks, self._budget.blocks - len(begun)):
                parts = self._parts(places)
                begun.append(fetchers.submit(_fetch, parts, len(places)))
                # Behind the block, which may have the ticket before theirs: a thread that waits
                # for a ticket of a block that is not begun would wait for ever.
                for source, ticket in self._unwanted:
                    self._retired.append((fetchers.submit(source.finish, ticket), source))
                self._unwanted.clear()
            if not begun:
                for source in self._sources.values():  # where little is left, for its index
                    source.finish(source.ticket())
                return
            samples = begun.popleft().result()
            samples.reverse()
            while samples:  # each is let go of once it is given
                yield samples.pop()

    def _blocks(self, first: int, stride: int) -> Iterator[Int64s]:
        """Places of whole steps, few at first; of a part of one, where a step is larger."""
        samples = self._budget.block_samples
        most = max(samples // self._steps.batch_size, 1)
        steps, stop = 1, self._steps.count
        while first < stop:
            last = min(first + steps * stride, stop)
            places = self._steps.places(first, last, stride)
            for at in range(0, len(places), samples):
                yield places[at : at + samples]
            first, steps = first + steps * stride, min(2 * steps, most)

    def _parts(self, places: Int64s) -> list[_Part]:
        """What to read for a block. Takes tickets, so it is called in the order of blocks."""
        found = []
        rounds = places // self._steps.records  # 0: of the epoch itself
        pads = self._steps.remainder == "pad"
        for turn in dict.fromkeys(rounds.tolist()):  # np.unique would load numpy.ma
            at = np.flatnonzero(rounds == turn)
            epoch = self._steps.begin.epoch + (0 if pads else turn)
            shards, rows = self._order(epoch).locate(places[at] - turn * self._steps.records)
            for shard in dict.fromkeys(shards.tolist()):
                inside = shards == shard
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


@cache  # glibc would take the second piece from its heap, and clear it
def _keep_memory() -> None:
    """Have the C library keep the memory of samples that are let go of. At first glibc gives more
    than 128 KiB at the end of its heap back to the kernel, and asks for it again with the next
    batch. Once a larger piece was freed, it keeps twice as much as that piece had."""
    # Zeros of the kernel's, of which no page is ever there; a bytearray writes its own.
    bytes(KEPT_BYTES // 2)


def _fetch(parts: list[_Part], count: int) -> list[Sample]:
    found: list[Sample] = [{}] * count
    for part in parts:
        samples = part.source.take(part.ticket, part.rows)
        for at, sample in zip(part.at.tolist(), samples, strict=True):
            if part.is_padding:
                sample[PADDING] = True
            found[at] = sample
    return found


def _decoded(
    decoders: ThreadPoolExecutor, decode: Decoder, samples: Iterator[Sample], *, ahead: int
) -> Iterator[Sample]:
    begun: deque[Future[list[Sample]]] = deque()
    while True:
        while len(begun) < ahead and (some := list(islice(samples, DECODED_AT_ONCE))):
            begun.append(decoders.submit(_decode_all, decode, some))
        if not begun:
            return
        yield from begun.popleft().result()


def _decode_all(decode: Decoder, samples: list[Sample]) -> list[Sample]:
    return [decode(sample) for sample in samples]
