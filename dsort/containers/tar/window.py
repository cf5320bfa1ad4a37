"""A window on a shard: the stretch of its bytes that is in memory now."""

from __future__ import annotations

import numpy as np

from dsort.containers.tar.headers import BLOCK_BYTES, compression_of
from dsort.data.columns import UInt8s
from dsort.errors import CorruptShardError

__all__ = ["Window", "WindowEndError"]


class WindowEndError(Exception):
    """The window ends before byte ``bytes_end`` of the shard, though the shard does not."""

    def __init__(self, bytes_end: int) -> None:
        super().__init__(bytes_end)
        self.bytes_end = bytes_end


class Window:
    """Bytes ``start`` to ``end`` of ``shard``, which is ``size_bytes`` long. Nothing is copied.

    ``release`` lets go of the memory, so that an error's traceback does not keep a mapped file
    open: frames hold the window, and the window then holds nothing.
    """

    __slots__ = ("_view", "bytes", "end", "shard", "size_bytes", "start")

    def __init__(
        self, shard: str, size_bytes: int, data: memoryview | bytes | UInt8s, start: int
    ) -> None:
        self.shard = shard
        self.size_bytes = size_bytes
        self.start = start
        self.bytes: UInt8s = np.frombuffer(data, np.uint8)[: size_bytes - start]
        self.end = start + len(self.bytes)
        self._view = self.bytes.data

    def release(self) -> None:
        """Let go of the memory."""
        self._view.release()
        self.bytes = np.zeros(0, np.uint8)

    def header_block(self, at: int) -> bytes:
        """The header block at byte ``at``, where one has to be."""
        if at + BLOCK_BYTES > self.size_bytes:
            raise CorruptShardError(self.shard, at, self._cut_off(at))
        return self.take(at, BLOCK_BYTES)

    def need(self, bytes_end: int) -> None:
        """``WindowEndError`` unless the window reaches to byte ``bytes_end`` of the shard."""
        if bytes_end > self.end:
            raise WindowEndError(bytes_end)

    def take(self, at: int, length: int) -> bytes:
        """``length`` bytes from ``at``, both inside the shard; ``WindowEndError`` if not here."""
        self.need(at + length)
        low = at - self.start
        return self._view[low : low + length].tobytes()

    def _cut_off(self, at: int) -> str:
        if at == 0 and (what := compression_of(self.take(0, self.size_bytes))):
            return f"this is {what} data, not a plain tar; unpack it first"
        rest = self.size_bytes - at
        if rest == 0:
            return "the shard ends where a header has to be"
        return f"the shard ends {rest} bytes into a header of {BLOCK_BYTES}"
