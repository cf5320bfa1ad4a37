"""``ReadAhead`` fetches the next input shard while the current one is scanned and spilled.

It is used for shards in stores that fit in half of a worker's buffer: one half has the current
shard, the other half receives the next. This adds no requests, as long as the worker that fetches a
shard also receives the shard's task.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property

from dsort.closing import ClosesOnExit
from dsort.errors import DsortError
from dsort.log_lines import logger_of
from dsort.moves.input_shard import InputShard, open_input, read_inputs
from dsort.moves.payload_files import PayloadBuffer
from dsort.moves.range_queue import RangeQueue
from dsort.scratch.index import IndexStore
from dsort.storage.bucket import Bucket, ObjectInfo, RandomReads, ReadObject
from dsort.storage.process_limits import is_no_thread
from dsort.workers.header_reader import HeaderReader
from dsort.workers.tasks import ExtractTask, WorkerSetup

READS_AT_ONCE = 2
"""Threads that read a shard in sequence, where the kernel cannot do it by itself."""

log = logger_of("workers")


class _Fetched(ClosesOnExit):
    """A shard that is already in its place in the buffer (see
    :class:`~dsort.storage.bucket.ReadObject`)."""

    rereads_cheaply = True

    def __init__(self, info: ObjectInfo, view: memoryview) -> None:
        self.info: ObjectInfo = info
        self._view = view

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset``. For the whole shard in its place, do nothing."""
        if offset or len(buffer) != len(self._view) or buffer.obj is not self._view.obj:
            buffer[:] = self._view[offset : offset + len(buffer)]

    def forget(self) -> None:
        """Do nothing: the memory belongs to the buffer."""

    def mapping(self) -> memoryview | None:
        """None: the memory is writable, and no mapping of a file."""
        return None

    def random_reads(self) -> RandomReads | None:
        """None: no reader of such shards needs random reads."""
        return None

    def close(self) -> None:
        """Do nothing: the buffer releases the memory."""


class ReadAhead:
    """Opens the input shards of one worker's tasks, and fetches the next shard meanwhile."""

    def __init__(
        self, setup: WorkerSetup, inputs: Bucket, store: IndexStore, buffer: PayloadBuffer
    ) -> None:
        self._headers = HeaderReader(setup, inputs, store)
        self._setup = setup
        self._inputs = inputs
        self._store = store
        self._buffer = buffer
        self._shards: list[InputShard] = []
        self._thread: ThreadPoolExecutor | None = None
        self._queue: RangeQueue | None = None
        self._begun: tuple[int, int, Future[_Fetched | None]] | None = None  # shard, half

    def opened(self, task: ExtractTask) -> tuple[ReadObject, PayloadBuffer]:
        """The shard of ``task``, and the buffer for its bytes. ``ChangedInputError`` if the shard
        is not the one that the job resolved."""
        self._headers.begin(task.ahead)
        hopped = self._headers.opened(task)
        if hopped is not None:
            return hopped, self._buffer
        begun, fetched, half = self._begun, None, 0
        if begun is not None:
            fetched = self.settled()
            if begun[0] == task.shard and fetched is not None:
                half = begun[1]
            else:
                fetched = None
        source: ReadObject
        if fetched is not None:
            source = fetched
        else:
            source = open_input(self._inputs, task.name, task.size_bytes, task.etag)
        if task.next_shard < 0 and fetched is None:
            return source, self._buffer
        if task.size_bytes > self._buffer.half_bytes:
            return source, self._buffer
        if task.next_shard >= 0:
            self._begin(task.next_shard, 1 - half)
        return source, self._halves[half]

    def past_cache(self, task: ExtractTask) -> RangeQueue | None:
        """The queue that reads the shard of ``task`` past the page cache, if the shard is not read
        in sequence again; else None."""
        if not self._setup.movement.way.reads_ranges or self._setup.movement.hops:
            return None
        if self._queue is None:
            self._queue = RangeQueue(READS_AT_ONCE, by_kernel=True)
        return self._queue

    @cached_property
    def _halves(self) -> tuple[PayloadBuffer, PayloadBuffer]:
        return self._buffer.half(0), self._buffer.half(1)

    def settled(self) -> _Fetched | None:
        """Wait for the fetch that has begun, if any; return the fetched shard."""
        begun, self._begun = self._begun, None
        return None if begun is None else begun[2].result()

    def close(self) -> None:
        """End the threads."""
        self._headers.close()
        if self._queue is not None:
            self._queue.close()
            self._queue = None
        self.settled()
        if self._thread is not None:
            self._thread.shutdown(wait=True)
            self._thread = None

    def _begin(self, number: int, half: int) -> None:
        if self._thread is None:
            self._shards = read_inputs(self._store)
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        shard = self._shards[number]
        if not 0 < shard.size_bytes <= self._buffer.half_bytes:
            return
        view = self._halves[half].view(shard.size_bytes)
        try:
            self._begun = number, half, self._thread.submit(self._fetch, shard, view)
        except RuntimeError as error:
            if not is_no_thread(error):
                raise

    def _fetch(self, shard: InputShard, view: memoryview) -> _Fetched | None:
        try:
            log.debug("shard %s is fetched ahead", shard.name)
            of = shard.name, shard.size_bytes, shard.etag
            with open_input(self._inputs, *of) as source:
                source.read_into(view, 0)
                return _Fetched(source.info, view)
        except DsortError as error:
            log.debug("shard %s was not fetched ahead: %s", shard.name, error.message)
            return None  # the extraction of the shard will report the error
