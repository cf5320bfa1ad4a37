"""Writeback in the background: a thread feeds the disk while the worker gathers what comes next.

Handing dirty pages to the disk blocks whoever does it as soon as the disk's queue is full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from dsort.storage.bucket import StagedObject
from dsort.storage.process_limits import is_no_thread

__all__ = ["Writeback"]

PENDING_MAX = 4
"""So many ranges may wait for the disk; then gathering waits too, or dirty pages would pile up."""


class Writeback:
    """One thread that starts writeback of ranges and closes objects, in the order it is told to."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._is_alone = False
        self._pending: deque[Future[str]] = deque()

    def start(self, staged: StagedObject, offset: int, size_bytes: int) -> None:
        """Have a written range go to the disk."""
        self._submit(_start, staged, offset, size_bytes)

    def finish(self, staged: StagedObject, offset: int, size_bytes: int) -> Future[str]:
        """The same for an object's last range; then finish and close it. Its receipt."""
        return self._submit(_finish, staged, offset, size_bytes)

    def finish_now(self, staged: StagedObject, offset: int, size_bytes: int) -> Future[str]:
        """The same where the receipt need not wait for the disk: it is there at once."""
        receipt: Future[str] = Future()
        receipt.set_result(staged.finish())
        self._submit(_close, staged, offset, size_bytes)
        return receipt

    def abandon(self, staged: StagedObject) -> None:
        """Close an object that will not be finished, once nothing of it is pending."""
        while self._pending:
            wait([self._pending.popleft()])
        staged.close()

    def close(self) -> None:
        """Wait for what is pending, and end the thread."""
        if self._thread is not None:
            self._thread.shutdown(wait=True)
            self._thread = None

    def _submit(
        self,
        work: Callable[[StagedObject, int, int], str],
        staged: StagedObject,
        offset: int,
        size_bytes: int,
    ) -> Future[str]:
        while len(self._pending) >= PENDING_MAX:
            self._pending.popleft().result()
        if self._thread is None and not self._is_alone:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="writeback")
            try:
                self._thread.submit(_nothing).result()
            except RuntimeError as error:
                if not is_no_thread(error):
                    raise
                self._is_alone, self._thread = True, None
        if self._thread is None:  # there can be no more threads: whoever asks does it
            future: Future[str] = Future()
            future.set_result(work(staged, offset, size_bytes))
            return future
        future = self._thread.submit(work, staged, offset, size_bytes)
        self._pending.append(future)
        return future


def _nothing() -> None:
    """What only tells whether there is a thread."""


def _start(staged: StagedObject, offset: int, size_bytes: int) -> str:
    if size_bytes:
        staged.start_sync(offset, size_bytes)
    return ""


def _close(staged: StagedObject, offset: int, size_bytes: int) -> str:
    try:
        return _start(staged, offset, size_bytes)
    finally:
        staged.close()


def _finish(staged: StagedObject, offset: int, size_bytes: int) -> str:
    try:
        _start(staged, offset, size_bytes)
        return staged.finish()
    finally:
        staged.close()
