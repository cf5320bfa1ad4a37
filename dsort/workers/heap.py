"""The heap of a worker process: what columns leave behind is kept for the next ones.

The C library takes each array of 128 KB and more from the kernel and gives it back, or trims its
heap as soon as an array at its end is freed. Each page of it is then cleared and mapped anew: a
third of the processor time of a job of short lines. Where the C library has no such settings,
nothing happens.
"""

from __future__ import annotations

import ctypes
from typing import Final

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
HEAP_BLOCK_BYTES_MAX: Final = 32 << 20
"""The most that glibc takes: larger blocks come from the kernel each time."""
KEPT_BYTES_MAX: Final = 256 << 20


class Heap:
    """This process's heap, which a worker has to itself."""

    def __init__(self, buffer_bytes: int) -> None:
        """Keep up to as much as the payload buffer, ``buffer_bytes``, while a phase lasts."""
        libc = ctypes.CDLL(None)
        self._trim = getattr(libc, "malloc_trim", None)
        self._phase = ""
        set_option = getattr(libc, "mallopt", None)
        if set_option is not None:
            set_option(_MMAP_THRESHOLD, HEAP_BLOCK_BYTES_MAX)
            set_option(_TRIM_THRESHOLD, min(buffer_bytes, KEPT_BYTES_MAX))

    def enter(self, phase: str) -> None:
        """Work of ``phase`` begins: give back what an earlier one left."""
        if phase != self._phase and self._phase and self._trim is not None:
            self._trim(0)
        self._phase = phase
