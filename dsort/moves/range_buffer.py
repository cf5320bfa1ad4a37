"""A ring in a worker's buffer: room that is taken and given back in the same order.

It begins anew at the front as soon as there is room: memory that was used already costs nothing,
while the first touch of fresh memory costs as much as ten copies, and buffers are large.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from dsort.moves.payload_files import PayloadBuffer


class RangeBuffer:
    """Pieces of a worker's buffer, each aligned and in one run. The oldest is given back first."""

    def __init__(
        self, buffer: PayloadBuffer, alignment_bytes: int, most_bytes: int | None = None
    ) -> None:
        """``most_bytes``: no more of the buffer is used; the rest is not touched."""
        whole = buffer.view(buffer.size_bytes)
        skipped = -np.frombuffer(whole, np.uint8).ctypes.data % alignment_bytes
        usable = buffer.size_bytes - skipped
        if most_bytes is not None:
            usable = min(usable, most_bytes)
        usable = usable // alignment_bytes * alignment_bytes
        self._view = whole[skipped : skipped + usable]
        self._taken: deque[tuple[int, int]] = deque()  # from where to where, oldest first
        self.size_bytes = usable

    def take(self, size_bytes: int) -> memoryview | None:
        """A piece of ``size_bytes``, a multiple of the alignment; None as long as there is no
        room."""
        start = self._free_at(size_bytes)
        if start is None:
            return None
        self._taken.append((start, start + size_bytes))
        return self._view[start : start + size_bytes]

    def give_back(self) -> None:
        """The oldest piece is free again."""
        self._taken.popleft()

    def _free_at(self, size_bytes: int) -> int | None:
        if not self._taken:
            return 0 if size_bytes <= self.size_bytes else None
        oldest, newest_end = self._taken[0][0], self._taken[-1][1]
        if newest_end > oldest:  # what is taken is one run
            if oldest >= size_bytes:
                return 0
            return newest_end if self.size_bytes - newest_end >= size_bytes else None
        return newest_end if oldest - newest_end >= size_bytes else None
