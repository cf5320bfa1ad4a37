"""Reads input shards before they are scanned: headers of many shards at a time, or the next shard.

A scan of a cold shard waits once per member, for the disk or for a round trip to a store. Here
threads read the headers of many shards before the scan. The scan reads headers that are still
missing. ``ReadAhead`` fetches the next shard from a store while a worker scans the current one."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import cached_property
from queue import SimpleQueue
from threading import Lock
from typing import Any, Protocol

from msgspec import Struct

from dsort.closing import ClosesOnExit
from dsort.containers.facets import Hop, Hops
from dsort.errors import DsortError
from dsort.log_lines import logger_of
from dsort.moves.header_reads import HoppedShard
from dsort.moves.input_shard import InputShard, open_input, read_inputs
from dsort.moves.payload_files import PayloadBuffer
from dsort.moves.range_queue import RangeQueue
from dsort.scratch.index import IndexStore
from dsort.storage.bucket import Bucket, ObjectInfo, RandomReads, ReadObject
from dsort.storage.process_limits import is_no_thread
from dsort.workers.tasks import ExtractTask, WorkerSetup

PAGE_BYTES = 4096
TAIL_BYTES = 16 << 10
"""The bytes that a scan reads behind the last header: the padding of a tar. If they are not in the
page cache, a mapping reads megabytes around them."""
SHARDS_AHEAD = 16
"""The most shards at a time for each worker."""
TURNS = 16
"""The most chains of headers in files at a time."""
PARTS_MAX = 4
PART_BYTES_MIN = 8 << 20
"""Files are read in parts, so that the first files can be scanned while the others are being read.
If all files advanced in step, all would be finished at the same time."""
SEARCHED_BYTES = 64 << 10
SEARCHES_MAX = 4
"""The first header of a part is searched in at most ``SEARCHES_MAX`` times ``SEARCHED_BYTES``.
Where records are larger than that (there are few of them then), the search may find no header: then
the part before this one continues."""
FOLLOWERS = 4
"""The threads that read headers of files. A page that comes late holds up one of them. With 2, 4
and 8 threads, and with one thread for each of 8 files, 5,400 headers took 0.17, 0.18, 0.26 and 0.22
s of processor time."""


class _File:
    """A file whose headers are read, in ``parts`` parts at once."""

    def __init__(self, hops: Hops, reads: RandomReads, size_bytes: int, parts: int) -> None:
        self.read: Future[HoppedShard | None] = Future()
        """Ends when all headers are read."""
        self._hops = hops
        self._reads = reads
        self._size_bytes = size_bytes
        self._begins: set[int] = set()  # headers at which parts begin; the part before stops there
        self._parts_left = parts
        self._lock = Lock()

    def announce(self, at: int) -> None:
        """Announce that the part that begins about byte ``at`` will be read."""
        self._reads.announce(at, PAGE_BYTES if at == 0 else SEARCHED_BYTES)

    def hops(self, begin: int) -> Iterator[Hop]:
        """Yield the headers from about byte ``begin`` on, up to where another part began."""
        at = self._header_behind(begin) if begin else 0
        if at < 0:
            return
        self._begins.add(at)
        for hop in header_hops(self._hops, self._reads, self._size_bytes, at):
            if hop.next_at in self._begins:
                return
            yield hop

    def _header_behind(self, begin: int) -> int:
        """The place of the first header behind byte ``begin``; bytes that look like a header
        suffice, because the result is only a hint. -1 if there is none nearby."""
        step = self._hops.header_bytes
        some = memoryview(bytearray(SEARCHED_BYTES))
        for first in range(begin, begin + SEARCHES_MAX * SEARCHED_BYTES, SEARCHED_BYTES):
            length = self._reads.peek(some, first)
            for at in range(0, length - step + 1, step):
                if self._hops.read(bytes(some[at : at + step]), first + at) is not None:
                    return first + at
        return -1

    def end_part(self) -> None:
        """Count one part as finished; after the last one, close the file."""
        with self._lock:
            self._parts_left -= 1
            if self._parts_left:
                return
        self._reads.close()
        # False if the task of this shard no longer waits.
        if self.read.set_running_or_notify_cancel():
            self.read.set_result(None)


class _Chain(Struct):
    """One part of a file."""

    file: _File
    begin: int
    hops: Iterator[Hop]


class HeaderReader:
    """Reads headers ahead, for one worker."""

    def __init__(self, setup: WorkerSetup, inputs: Bucket, store: IndexStore) -> None:
        self._setup = setup
        self._inputs = inputs
        self._store = store
        self._threads = ThreadPoolExecutor(SHARDS_AHEAD, thread_name_prefix="headers")
        self._begun: dict[int, Future[HoppedShard | None]] = {}
        self._chains: SimpleQueue[_Chain | None] = SimpleQueue()
        self._waiting: deque[_Chain] = deque()
        self._has_followers = False
        self._is_closed = False

    @cached_property
    def shards(self) -> list[InputShard]:
        """All input shards of the job."""
        return read_inputs(self._store)

    def begin(self, shards: Iterable[int]) -> None:
        """Start to read the headers of these input shards."""
        for shard in shards:
            try:
                self._begin(shard)
            except RuntimeError as error:
                # Without a thread, as under `ulimit -u`, the scan reads the headers itself.
                if not is_no_thread(error):
                    raise
                return

    def _begin(self, number: int) -> None:
        shard = self.shards[number]
        hopped = self._hopped(shard)
        if hopped is not None:
            self._begun[number] = self._threads.submit(self._scanned, hopped)
            return
        if not self._has_followers:
            for _ in range(FOLLOWERS):
                self._threads.submit(self._follow)
                self._has_followers = True
        # The scan of a shard reports its errors.
        with contextlib.suppress(DsortError):
            with self._inputs.open(shard.name) as source:
                reads = source.random_reads()
            if reads is None:
                return
            hops = self._setup.pipeline.reading.container_of(shard.name).hops
            assert hops is not None
            parts = min(max(shard.size_bytes // PART_BYTES_MIN, 1), PARTS_MAX)
            file = _File(hops, reads, shard.size_bytes, parts)
            self._begun[number] = file.read
            part_bytes = shard.size_bytes // parts // hops.header_bytes * hops.header_bytes
            for part in range(parts):
                begin = part * part_bytes  # 0 for a shard without a whole header
                self._waiting.append(_Chain(file, begin, file.hops(begin)))
            while self._waiting and self._chains.qsize() < TURNS:
                self._take_next()

    def opened(self, task: ExtractTask) -> HoppedShard | None:
        """The shard of a task, if the movement reads shards header by header (``Movement.hops``)
        and the shard is in a store; else None. Waits for the headers if this worker has begun to
        read them."""
        if not self._setup.movement.hops:
            return None
        for number in [each for each in self._begun if each < task.shard]:
            missed = self._begun.pop(number)  # another worker has extracted it
            if not missed.cancel() and (left := missed.result()) is not None:
                left.close()
        begun = self._begun.pop(task.shard, _NO_SHARD)
        known = None if begun.cancelled() else begun.result()
        return known or self._hopped(ObjectInfo(task.name, task.size_bytes, 0, task.etag))

    def _hopped(self, info: ObjectInfo) -> HoppedShard | None:
        pinned = self._inputs.pinned(info)
        kept_bytes_max = self._setup.movement.buffer_bytes // SHARDS_AHEAD
        return None if pinned is None else HoppedShard(pinned, kept_bytes_max)

    def close(self) -> None:
        """End the threads."""
        self._is_closed = True
        # The thread that takes the None passes it on to the next thread (`_follow`).
        self._chains.put(None)
        self._threads.shutdown(wait=True, cancel_futures=True)
        while not self._chains.empty():
            if (chain := self._chains.get()) is not None:
                chain.file.end_part()
        while self._waiting:
            self._waiting.popleft().file.end_part()

    def _scanned(self, hopped: HoppedShard) -> HoppedShard:
        with contextlib.suppress(DsortError, CancelledError):
            container = self._setup.pipeline.reading.container_of(hopped.info.name)
            hopped.scan(container, until=lambda: self._is_closed)
        return hopped

    def _take_next(self) -> None:
        """Begin another chain, if one is waiting."""
        with contextlib.suppress(IndexError):  # another thread took the last one
            chain = self._waiting.popleft()
            chain.file.announce(chain.begin)
            self._chains.put(chain)

    def _follow(self) -> None:
        """Read the next header of each chain in turn, until this reader is closed."""
        while (chain := self._chains.get()) is not None:
            hop = None
            try:
                with contextlib.suppress(DsortError):
                    hop = None if chain.file.read.cancelled() else next(chain.hops, None)
            finally:  # also after an error: a task may be waiting for the file
                if hop is not None:
                    self._chains.put(chain)
                else:
                    chain.file.end_part()
                    self._take_next()
        self._chains.put(None)  # ends the other threads


class Peeks(Protocol):
    """The source of headers (see :class:`~dsort.storage.bucket.RandomReads`)."""

    def peek(self, buffer: memoryview, offset: int) -> int: ...

    def announce(self, offset: int, size_bytes: int) -> None: ...


def header_hops(hops: Hops, reads: Peeks, size_bytes: int, at: int = 0) -> Iterator[Hop]:
    """Yield the headers of a shard of ``size_bytes``, one after the other from byte ``at`` on, up
    to the first place without one. Announces the next header before it yields one."""
    header_bytes, read = hops.header_bytes, hops.read
    page = memoryview(bytearray(2 * PAGE_BYTES))
    begin = end = at
    while at < size_bytes:
        if at + header_bytes > end:
            begin = at
            end = begin + reads.peek(page[: _peeked_bytes(at)], at)
        hop = read(bytes(page[at - begin : min(at + header_bytes, end) - begin]), at)
        if hop is None:
            reads.announce(at, TAIL_BYTES)
            return
        at = hop.next_at
        if end < at + header_bytes <= size_bytes:
            reads.announce(at, _peeked_bytes(at))
        yield hop


def _peeked_bytes(at: int) -> int:
    """The bytes to read for a header at byte ``at``: the rest of its page, where the next header
    may be, and also the next page if that rest is short."""
    rest = PAGE_BYTES - at % PAGE_BYTES
    return rest if rest >= PAGE_BYTES // 2 else rest + PAGE_BYTES


READS_AT_ONCE = 2
"""The threads that read a shard in sequence, if the kernel cannot do that without threads."""

log = logger_of("workers")


class FetchedShard(ClosesOnExit, ReadObject):
    """A shard that is already in its place in the buffer."""

    rereads_cheaply = True

    def __init__(self, info: ObjectInfo, view: memoryview) -> None:
        self.info: ObjectInfo = info
        self._view = view

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset``. Do nothing if ``buffer`` is the whole shard in its
        place."""
        if offset or len(buffer) != len(self._view) or buffer.obj is not self._view.obj:
            buffer[:] = self._view[offset : offset + len(buffer)]

    def close(self) -> None:
        """Do nothing: the buffer releases the memory."""


_NO_SHARD: Future[Any] = Future()
_NO_SHARD.set_result(None)
_NOTHING_BEGUN: tuple[int, int, Future[FetchedShard | None]] = (-1, 0, _NO_SHARD)
"""(shard, half of the buffer, the shard once it is fetched)."""


class ReadAhead:
    """Opens the input shards of one worker's tasks, and fetches the next shard meanwhile."""

    def __init__(
        self, setup: WorkerSetup, inputs: Bucket, store: IndexStore, buffer: PayloadBuffer
    ) -> None:
        self._headers = HeaderReader(setup, inputs, store)
        self._setup = setup
        self._inputs = inputs
        self._buffer = buffer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._can_fetch = True
        self._begun = _NOTHING_BEGUN

    def opened(self, task: ExtractTask) -> tuple[ReadObject, PayloadBuffer]:
        """The shard of ``task``, and the buffer for its bytes. ``ChangedInputError`` if the shard
        has changed since the job resolved it."""
        self._headers.begin(task.ahead)
        hopped = self._headers.opened(task)
        if hopped is not None:
            return hopped, self._buffer
        number, half, _ = self._begun
        source: ReadObject | None = self.settled()
        if not source or number != task.shard:  # another worker got the shard that was fetched
            half = 0
            source = open_input(self._inputs, task.name, task.size_bytes, task.etag)
            if task.next_shard < 0:
                return source, self._buffer
        # This shard needs the whole buffer, so no other shard is fetched meanwhile.
        if task.size_bytes > self._buffer.half_bytes:
            return source, self._buffer
        if task.next_shard >= 0:
            self._begin(task.next_shard, 1 - half)
        return source, self._halves[half]

    def past_cache(self, task: ExtractTask) -> RangeQueue | None:
        """The queue that reads the shard of ``task`` past the page cache; None if the shard will be
        read in sequence again."""
        if not self._setup.movement.way.reads_ranges or self._setup.movement.hops:
            return None
        return self._queue

    @cached_property
    def _queue(self) -> RangeQueue:
        return RangeQueue(READS_AT_ONCE, by_kernel=True)

    @cached_property
    def _halves(self) -> tuple[PayloadBuffer, PayloadBuffer]:
        return self._buffer.half(0), self._buffer.half(1)

    def settled(self) -> FetchedShard | None:
        """Wait for the fetch that has begun, if any; return the fetched shard."""
        begun, self._begun = self._begun, _NOTHING_BEGUN
        return begun[2].result()

    def close(self) -> None:
        """End the threads."""
        self._headers.close()
        if "_queue" in vars(self):
            self._queue.close()
            del self._queue
        self.settled()
        self._thread.shutdown(wait=True)

    def _begin(self, number: int, half: int) -> None:
        shard = self._headers.shards[number]
        if not (self._can_fetch and 0 < shard.size_bytes <= self._buffer.half_bytes):
            return
        view = self._halves[half].view(shard.size_bytes)
        try:
            self._begun = number, half, self._thread.submit(self._fetch, shard, view)
        except RuntimeError as error:
            if not is_no_thread(error):
                raise
            # The executor keeps work that no thread could begin, and must not do it later, when
            # another shard is in this half of the buffer.
            self._can_fetch = False
            self._thread.shutdown(cancel_futures=True)

    def _fetch(self, shard: InputShard, view: memoryview) -> FetchedShard | None:
        try:
            log.debug("shard %s is fetched ahead", shard.name)
            of = shard.name, shard.size_bytes, shard.etag
            with open_input(self._inputs, *of) as source:
                source.read_into(view, 0)
                return FetchedShard(source.info, view)
        except DsortError as error:
            log.debug("shard %s was not fetched ahead: %s", shard.name, error.message)
            return None  # the extraction of the shard will report the error
