"""Many reads at a time: threads that fill pieces of a worker's buffer from its input shards.

A disk answers 32 reads of 100 KB in any order as fast as one that is in sequence, if they are asked
for at once. Threads wait for them without holding the interpreter.
"""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue
from threading import Condition, Thread
from typing import NamedTuple, Protocol

from dsort.errors import DsortError
from dsort.storage.process_limits import is_no_thread

__all__ = ["RangeBatch", "RangeQueue", "RangeRead"]


class Reads(Protocol):
    """What is read by ranges (see :class:`~dsort.storage.bucket.RandomReads`)."""

    def read(self, buffer: memoryview, offset: int, least_bytes: int) -> None: ...


class RangeRead(NamedTuple):
    """Fill ``buffer`` from byte ``offset`` of ``source``, which goes on for ``least_bytes``.
    ``shard``: which input that is, for whoever asks what failed."""

    source: Reads
    buffer: memoryview
    offset: int
    least_bytes: int
    shard: int = -1


class RangeBatch:
    """Reads that are waited for together. Threads take one after the other from its iterator, which
    costs less than a queue of reads."""

    def __init__(self, reads: Sequence[RangeRead], threads: int) -> None:
        """``threads``: so many take part. ``failed``: the first read that did."""
        self._reads = iter(reads)
        self._left = threads
        self._error: Exception | None = None
        self._changed = Condition()
        self.failed: RangeRead | None = None

    def take_part(self) -> None:
        """Do reads until there are no more, or one failed."""
        error: Exception | None = None
        read: RangeRead | None = None
        try:
            for read in self._reads:
                if self._error is not None:
                    break
                read.source.read(read.buffer, read.offset, read.least_bytes)
        except (DsortError, OSError, ValueError) as problem:
            error = problem
        with self._changed:
            self._left -= 1
            if error is not None and self._error is None:
                self._error, self.failed = error, read
            if not self._left:
                self._changed.notify_all()

    def wait(self) -> None:
        """Return once all reads are over; raise what the first of them raised that failed."""
        self.settle()
        if self._error is not None:
            raise self._error

    def settle(self) -> None:
        """Return once all reads are over."""
        with self._changed:
            while self._left:
                self._changed.wait()


class RangeQueue:
    """The threads of one worker that read ranges, in the order they are asked for."""

    def __init__(self, depth: int) -> None:
        """``depth``: so many reads at a time, if there may be as many threads."""
        self._depth = depth
        self._threads: list[Thread] = []
        self._waiting: SimpleQueue[RangeBatch | None] = SimpleQueue()

    def begin(self, reads: Sequence[RangeRead]) -> RangeBatch:
        """Have ``reads`` done; before this returns, if there can be no thread."""
        self._start_threads()
        if not self._threads:
            batch = RangeBatch(reads, 1)
            batch.take_part()
            return batch
        threads = min(len(reads), len(self._threads))
        batch = RangeBatch(reads, threads)
        for _ in range(threads):
            self._waiting.put(batch)
        return batch

    def close(self) -> None:
        """End the threads. What was begun is to be settled before."""
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
