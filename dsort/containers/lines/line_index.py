"""The sidecar of a file of lines: where each line begins, as Energon and Lhotse read it."""

from __future__ import annotations

import numpy as np

from dsort.data.columns import Int64s

__all__ = ["LINE_INDEX_SUFFIX", "line_index"]

LINE_INDEX_SUFFIX = ".idx"
"""What follows the whole name of the file: ``a.jsonl.idx``."""


def line_index(stored_bytes: Int64s) -> bytes:
    """The sidecar of a shard whose lines take ``stored_bytes``, shape ``(n,)``: the offset of each
    as a little-endian number of 8 bytes, and the size of the file."""
    offsets = np.zeros(len(stored_bytes) + 1, "<u8")
    np.cumsum(stored_bytes, out=offsets[1:])
    return offsets.tobytes()
