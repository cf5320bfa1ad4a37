"""Writeback in the background: a thread feeds the disk while the worker gathers what comes next.

Handing dirty pages to the disk blocks whoever does it as soon as the disk's queue is full.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from dsort.storage.base import StagedObject

__all__ = ["Writeback"]

PENDING_MAX = 4
"""So many ranges may wait for the disk; then gathering waits too, or dirty pages would pile up."""


class Writeback:
    """One thread that starts writeback of ranges and closes objects, in the order it is told to."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._pending: deque[Future[None]] = deque()

    def start(self, staged: StagedObject, offset: int, size_bytes: int) -> None:
        """Have a written range go to the disk."""
        self._submit(staged, offset, size_bytes)

    def finish(self, staged: StagedObject, offset: int, size_bytes: int) -> None:
        """The same for an object's last range; then close it."""
        self._submit(staged, offset, size_bytes, last=True)

    def close(self) -> None:
        """Wait for what is pending, and end the thread."""
        if self._thread is not None:
            self._thread.shutdown(wait=True)
            self._thread = None

    def _submit(
        self, staged: StagedObject, offset: int, size_bytes: int, *, last: bool = False
    ) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="writeback")
        while len(self._pending) >= PENDING_MAX:
            self._pending.popleft().result()
        self._pending.append(self._thread.submit(_write_back, staged, offset, size_bytes, last))


def _write_back(staged: StagedObject, offset: int, size_bytes: int, last: bool) -> None:
    try:
        if size_bytes:
            staged.start_sync(offset, size_bytes)
    finally:
        if last:
            staged.close()
