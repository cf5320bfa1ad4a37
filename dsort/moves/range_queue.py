"""Many reads at a time, which fill parts of a worker's buffer from its input shards.

A disk answers 32 concurrent reads of 100 KB in any order as fast as one read in sequence. Direct
reads are queued in the kernel (``KernelReads``), which needs no threads; other reads wait in
threads, without the interpreter lock.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from itertools import islice
from queue import SimpleQueue
from threading import Condition, Thread
from typing import Final, Protocol

from msgspec import Struct

from dsort.errors import DsortError
from dsort.storage.directory.random_reads import KernelReads
from dsort.storage.process_limits import is_no_thread

KERNEL_DEPTH = 256
"""The most reads in a kernel's queue. This is more than the number of threads would be, because no
read is started while the creator writes the bytes that have arrived."""


class Reads(Protocol):
    """A source that is read by ranges (see :class:`~dsort.storage.bucket.RandomReads`)."""

    @property
    def direct_fd(self) -> int: ...

    def read(self, buffer: memoryview, offset: int, least_bytes: int) -> None: ...


class RangeRead(Struct, frozen=True):
    """Fill ``buffer`` from byte ``offset`` of ``source``, which has at least ``least_bytes`` from
    there on. ``shard``: the input, for errors."""

    source: Reads
    buffer: memoryview
    offset: int
    least_bytes: int
    shard: int = -1


class RangeBatch(Protocol):
    """Reads that are completed together. ``failed``: the first read that failed, if ``wait`` has
    raised its error."""

    failed: RangeRead

    def wait(self) -> None:
        """Wait until all reads have ended; raise the error of the first one that failed."""

    def settle(self) -> None:
        """Wait until all reads have ended."""


class _ThreadBatch:
    """A batch of reads in an iterator, from which threads take them one by one; this costs less
    than a queue."""

    failed: RangeRead

    def __init__(self, reads: Sequence[RangeRead], threads: int) -> None:
        """``threads``: the number of threads that take part."""
        self._reads = iter(reads)
        self._left = threads
        self._error: Exception | None = None
        self._changed = Condition()

    def take_part(self) -> None:
        """Do reads until none is left, or one has failed."""
        # Threads share the iterator: the interpreter lock makes each step of it atomic.
        for read in self._reads:
            if self._error is not None:
                break
            try:
                read.source.read(read.buffer, read.offset, read.least_bytes)
            except (DsortError, OSError, ValueError) as problem:
                with self._changed:
                    if self._error is None:
                        self._error, self.failed = problem, read
                break
        with self._changed:
            self._left -= 1
            if not self._left:
                self._changed.notify_all()

    def wait(self) -> None:
        """See :class:`RangeBatch`."""
        self.settle()
        if self._error is not None:
            raise self._error

    def settle(self) -> None:
        """See :class:`RangeBatch`."""
        with self._changed:
            while self._left:
                self._changed.wait()


NO_READS: Final = _ThreadBatch((), 0)
"""A batch that has ended."""


class _KernelBatch:
    """A batch whose reads are done by the kernel."""

    failed: RangeRead

    def __init__(self, queue: _KernelQueue, reads: Sequence[RangeRead]) -> None:
        self.left = len(reads)
        self.waiting = iter(reads)
        self.error: Exception | None = None
        self._queue = queue

    def end(self, read: RangeRead, read_bytes: int) -> None:
        """Record that ``read`` has ended with ``read_bytes``."""
        self.left -= 1
        if read_bytes >= read.least_bytes or self.error is not None:
            return
        # This read without the queue completes a short or failed read, or raises its error.
        try:
            read.source.read(read.buffer, read.offset, read.least_bytes)
        except (DsortError, OSError, ValueError) as problem:
            self.error, self.failed = problem, read

    def wait(self) -> None:
        """See :class:`RangeBatch`."""
        self.settle()
        if self.error is not None:
            raise self.error

    def settle(self) -> None:
        """See :class:`RangeBatch`."""
        while self.left:
            self._queue.advance(self.left)


class _KernelQueue:
    """Reads that the kernel does, begun in the order of the calls."""

    def __init__(self) -> None:
        """``OSError`` if the kernel has no such queue."""
        self._reads = KernelReads(KERNEL_DEPTH)
        self._batches: deque[_KernelBatch] = deque()  # batches with reads that have not begun
        self._next: list[tuple[_KernelBatch, RangeRead]] = []
        self._begun: dict[int, tuple[_KernelBatch, RangeRead]] = {}
        self._ticket = 0

    def begin(self, reads: Sequence[RangeRead]) -> _KernelBatch:
        """See :meth:`RangeQueue.begin`."""
        batch = _KernelBatch(self, reads)
        self._batches.append(batch)
        self._begin_some()
        return batch

    def advance(self, wanted: int) -> None:
        """Wait for some reads, at most ``wanted``, and begin others."""
        # Half of the reads stay in flight, so that the disk is always busy.
        least = min(wanted, max(self._reads.in_flight // 2, 1))
        for ticket, result in self._reads.ended(least):
            batch, read = self._begun.pop(ticket)
            batch.end(read, result)
        self._begin_some()

    def _begin_some(self) -> None:
        room = self._reads.depth - self._reads.in_flight
        while len(self._next) < room and self._batches:
            batch = self._batches[0]
            self._next += [(batch, each) for each in islice(batch.waiting, room - len(self._next))]
            if len(self._next) < room:
                self._batches.popleft()
        if not self._next or not room:
            return
        some = [
            (self._ticket + number, read.source.direct_fd, read.buffer, read.offset)
            for number, (_, read) in enumerate(self._next)
        ]
        try:
            count = self._reads.begin(some)
        except OSError:  # not even the first one was accepted: read it without the queue
            batch, read = self._next.pop(0)
            batch.end(read, -1)
            return
        self._begun |= {some[at][0]: self._next[at] for at in range(count)}
        self._ticket += count
        del self._next[:count]

    def close(self) -> None:
        """See :class:`RangeQueue`."""
        self._reads.close()


class RangeQueue:
    """Reads ranges for one worker. Reads begin in the order of the calls."""

    def __init__(self, depth: int, *, by_kernel: bool = False) -> None:
        """``depth``: the most reads at a time, limited by the threads that can be started.
        ``by_kernel``: the kernel does direct reads without threads, if it can."""
        self._depth = depth
        self._kernel: _KernelQueue | None = None
        if by_kernel:
            with contextlib.suppress(OSError):
                self._kernel = _KernelQueue()
        self._threads: list[Thread] = []
        self._waiting: SimpleQueue[_ThreadBatch | None] = SimpleQueue()

    def begin(self, reads: Sequence[RangeRead]) -> RangeBatch:
        """Begin ``reads``; complete them before returning, if no thread can be started."""
        if self._kernel is not None and all(read.source.direct_fd >= 0 for read in reads):
            return self._kernel.begin(reads)
        self._start_threads()
        if not self._threads:
            batch = _ThreadBatch(reads, 1)
            batch.take_part()
            return batch
        threads = min(len(reads), len(self._threads))
        batch = _ThreadBatch(reads, threads)
        for _ in range(threads):
            self._waiting.put(batch)
        return batch

    def close(self) -> None:
        """End the threads. All batches have to be settled before."""
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _start_threads(self) -> None:
        if self._threads:
            return
        try:
            for number in range(self._depth):
                thread = Thread(target=self._run, name=f"range-{number}", daemon=True)
                thread.start()
                self._threads.append(thread)
        except RuntimeError as error:
            if not is_no_thread(error):
                raise

    def _run(self) -> None:
        while (batch := self._waiting.get()) is not None:
            batch.take_part()
