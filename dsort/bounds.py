"""The limits of the time and memory that a hostile shard may cost, for every reader of shards.

Readers of shards are a scan, ``dsort.open``, ``dsort.read_shards``, ``dsort inspect``, ``dsort
cat``, the loader, and the processes of the service that read a shard. ``tests/support/bounds.py``
checks readers against these limits.
"""

from __future__ import annotations

from typing import Final

__all__ = ["memory_max_bytes", "processor_max_s", "produced_max_bytes"]

MEMORY_BYTES: Final = 64 << 20
MEMORY_BUFFERS: Final = 4
PROCESSOR_S: Final = 1.0
PROCESSOR_S_PER_BYTE: Final = 0.5e-6
PRODUCED_BYTES: Final = 16 << 20


def memory_max_bytes(buffer_bytes: int) -> int:
    """The maximum memory of a reader, in addition to the memory of its process when idle.
    ``buffer_bytes``: the limit of the reader's buffer."""
    return MEMORY_BYTES + MEMORY_BUFFERS * buffer_bytes


def processor_max_s(read_bytes: int, produced_bytes: int) -> float:
    """The maximum processor time of a reader, in seconds."""
    return PROCESSOR_S + PROCESSOR_S_PER_BYTE * (read_bytes + produced_bytes)


def produced_max_bytes(read_bytes: int, max_expansion: float) -> float:
    """How many bytes a shard of ``read_bytes`` may have after it is decoded."""
    return PRODUCED_BYTES + max_expansion * read_bytes
