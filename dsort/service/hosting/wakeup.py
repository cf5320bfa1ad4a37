"""Waiting until there is something to do: somebody says so, a process ends, or time is up."""

from __future__ import annotations

import contextlib
import os
import selectors
import threading

from dsort.closing import Closing

__all__ = ["Waker"]

READ_BYTES = 4096


class Waker(Closing):
    """``wait`` for one thread, ``wake`` for all others.

    A kernel that has no descriptors for processes (Linux before 5.3) does not wake for them: that
    they have ended is seen when the time is up.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._selector = selectors.DefaultSelector()
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)
        self._selector.register(self._read_fd, selectors.EVENT_READ)

    def wake(self) -> None:
        """Have ``wait`` return, now or when it is called next; nothing once it is closed."""
        with self._lock, contextlib.suppress(BlockingIOError):  # full: one more changes nothing
            if not self._closed:
                os.write(self._write_fd, b"\0")

    def watch(self, pid: int) -> None:
        """Have ``wait`` return once that process has ended."""
        with contextlib.suppress(OSError, AttributeError):
            self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ)

    def wait(self, seconds_max: float) -> None:
        """Return when there is something to do, or the time is up."""
        for key, _ in self._selector.select(seconds_max):
            if key.fd == self._read_fd:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._read_fd, READ_BYTES)
            else:
                self._selector.unregister(key.fd)
                os.close(key.fd)

    def close(self) -> None:
        """Release all descriptors. Nobody may wait any more."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for key in list(self._selector.get_map().values()):
                os.close(key.fd)
            self._selector.close()
            os.close(self._write_fd)
