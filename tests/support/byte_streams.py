"""An object that is fetched as from a store, whose connections break where a test says."""

from __future__ import annotations

import threading

from dsort.errors import ChangedInputError, TransientStorageError

__all__ = ["FetchedObject"]


class _Stream:
    def __init__(self, owner: FetchedObject, start: int, stop: int) -> None:
        self._owner = owner
        self._at = start
        self._stop = stop
        self.is_closed = False

    def read_into(self, view: memoryview) -> int:
        assert len(view)
        assert not self.is_closed
        size = min(len(view), self._owner.block_bytes, self._stop - self._at)
        breaks_at = min((at for at in self._owner.breaks if at >= self._at), default=self._stop)
        size = min(size, breaks_at - self._at)
        if not size and breaks_at < self._stop:
            self._owner.breaks.remove(breaks_at)
            if self._owner.ends_silently:
                return 0
            raise TransientStorageError("the connection broke")
        view[:size] = self._owner.data[self._at : self._at + size]
        self._at += size
        return size

    def close(self) -> None:
        self.is_closed = True


class FetchedObject:
    """``breaks``: offsets at which a connection breaks, once each; ``ends_silently``: it looks like
    the end. ``requests`` are the ranges that were asked for, the first at once."""

    def __init__(self, data: bytes, *, block_bytes: int = 1000) -> None:
        self.data = data
        self.block_bytes = block_bytes
        self.breaks: list[int] = []
        self.ends_silently = False
        self.has_changed = False
        self.requests: list[tuple[int, int | None]] = []
        self.streams: list[_Stream] = []
        self._lock = threading.Lock()

    def fetch(self, start: int, stop: int | None) -> _Stream:
        with self._lock:
            if self.has_changed:
                raise ChangedInputError("object a changed while it was read")
            self.requests.append((start, stop))
            self.streams.append(_Stream(self, start, len(self.data) if stop is None else stop))
            return self.streams[-1]
