"""Reads the headers of input shards before they are scanned: many shards at a time.

Where one header says where the next is, a scan of a cold shard waits for the disk once a member, or
has it read all payload in between. Threads go from header to header of several shards at once, and
leave them in the page cache, where the scan finds them. This is a hint: what is not there is read
by the scan.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from dsort.containers.base import Container, Hop
from dsort.errors import DsortError
from dsort.scratch.index import IndexStore
from dsort.storage.bucket import Bucket, RandomReads
from dsort.storage.process_limits import is_no_thread
from dsort.workers.source import InputShard, read_inputs
from dsort.workers.tasks import WorkerSetup

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
        self._begun: dict[int, Future[None]] = {}
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

    def wait_for(self, shard: int) -> None:
        """Return once the headers of ``shard`` are read, if that was begun here."""
        begun = self._begun.pop(shard, None)
        if begun is not None:
            begun.result()

    def close(self) -> None:
        """End the threads."""
        self._is_closed = True
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._threads = None

    def _read(self, shard: InputShard) -> None:
        container = self._setup.container_of(shard.name)
        # Whatever is wrong with a shard, its scan says so.
        with contextlib.suppress(DsortError), self._inputs.open(shard.name) as source:
            reads = source.random_reads()
            if reads is None:
                return
            with reads:
                for _ in header_hops(container, reads, shard.size_bytes):
                    if self._is_closed:
                        return


def header_hops(container: Container, reads: RandomReads, size_bytes: int) -> Iterator[Hop]:
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
