"""Reads the headers of input shards before they are scanned: many shards at a time.

Where one header says where the next is, a scan of a cold shard waits for the disk once a member, or
has it read all payload in between. Threads go from header to header of several shards at once, and
leave them in the page cache, where the scan finds them; those of shards in stores are kept here.
This is a hint: what is not there is read by the scan.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from dsort.containers.base import Container, Hop
from dsort.errors import DsortError
from dsort.scratch.index import IndexStore
from dsort.storage.bucket import Bucket, ObjectInfo
from dsort.storage.process_limits import is_no_thread
from dsort.workers.hopped import HoppedShard
from dsort.workers.source import InputShard, read_inputs
from dsort.workers.tasks import ExtractTask, WorkerSetup

__all__ = ["SHARDS_AHEAD", "HeaderReader", "header_hops"]

PAGE_BYTES = 4096
SHARDS_AHEAD = 16
"""So many shards at a time for each worker."""


class HeaderReader:
    """Reads headers ahead, for one worker."""

    def __init__(self, setup: WorkerSetup, inputs: Bucket, store: IndexStore) -> None:
        self._setup = setup
        self._inputs = inputs
        self._store = store
        self._shards: list[InputShard] = []
        self._threads: ThreadPoolExecutor | None = None
        self._begun: dict[int, Future[HoppedShard | None]] = {}
        self._is_closed = False

    def begin(self, shards: Iterable[int]) -> None:
        """Have the headers of these input shards read."""
        for shard in shards:
            if self._threads is None:
                self._shards = read_inputs(self._store)
                self._threads = ThreadPoolExecutor(SHARDS_AHEAD, thread_name_prefix="headers")
            try:
                self._begun[shard] = self._threads.submit(self._read, self._shards[shard])
            except RuntimeError as error:
                if not is_no_thread(error):
                    raise
                return

    def opened(self, task: ExtractTask) -> HoppedShard | None:
        """The shard of a task that hops, if it is in a store. Returns once its headers are read, if
        that was begun here."""
        if not task.hops:
            return None
        for number in [each for each in self._begun if each < task.shard]:
            missed = self._begun.pop(number)  # another worker has had it
            if not missed.cancel() and (left := missed.result()) is not None:
                left.close()
        begun = self._begun.pop(task.shard, None)
        known = None if begun is None or begun.cancelled() else begun.result()
        return known or self._hopped(ObjectInfo(task.name, task.size_bytes, 0, task.etag))

    def _hopped(self, info: ObjectInfo) -> HoppedShard | None:
        pinned = self._inputs.pinned(info)
        kept_bytes_max = self._setup.buffer_bytes // SHARDS_AHEAD
        return None if pinned is None else HoppedShard(pinned, kept_bytes_max)

    def close(self) -> None:
        """End the threads."""
        self._is_closed = True
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._threads = None

    def _read(self, shard: InputShard) -> HoppedShard | None:
        container = self._setup.container_of(shard.name)
        # Whatever is wrong with a shard, its scan says so.
        with contextlib.suppress(DsortError):
            info = ObjectInfo(shard.name, shard.size_bytes, shard.mtime_ns, shard.etag)
            hopped = self._hopped(info)
            if hopped is not None:
                hopped.scan(container, until=lambda: self._is_closed)
                return hopped
            with self._inputs.open(shard.name) as source:
                reads = source.random_reads()
            if reads is None:
                return None
            with reads:
                for _ in header_hops(container, reads, shard.size_bytes):
                    if self._is_closed:
                        break
        return None


class Peeks(Protocol):
    """What headers are looked at in (see :class:`~dsort.storage.bucket.RandomReads`)."""

    def peek(self, buffer: memoryview, offset: int) -> int: ...


def header_hops(container: Container, reads: Peeks, size_bytes: int) -> Iterator[Hop]:
    """What the headers of a shard of ``size_bytes`` say, one after the other; it ends where one
    says nothing. Of each page that one begins in, all is read at once: the next may be there."""
    page = memoryview(bytearray(PAGE_BYTES))
    begin = end = at = 0
    while at < size_bytes:
        if at + container.hop_bytes > end:
            begin = at
            wanted = max(PAGE_BYTES - at % PAGE_BYTES, container.hop_bytes)
            end = begin + reads.peek(page[:wanted], at)
        hop = container.hop(
            bytes(page[at - begin : min(at + container.hop_bytes, end) - begin]), at
        )
        if hop is None:
            return
        yield hop
        at = hop.next_at
