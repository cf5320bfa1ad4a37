"""From one tar header to the next, past payload: a guess for whoever reads ahead."""

from __future__ import annotations

from dsort.containers.base import Hop
from dsort.containers.tar.header import BLOCK_BYTES, padded_bytes, until_nul

__all__ = ["hop"]

_MAGIC = slice(257, 262)
_SIZE = slice(124, 136)
_BELONGS_TO_NEXT = b"xXgLK"


def hop(block: bytes, at: int) -> Hop | None:
    """What the header ``block``, at byte ``at``, says; 1 µs, for nothing is checked. Sizes of 8 GiB
    and more, headers of V7 and sparse maps are not understood: whoever scans finds the way."""
    if block[_MAGIC] != b"ustar" or len(block) < BLOCK_BYTES:
        return None
    try:
        size_bytes = int(block[_SIZE].strip(b"\0 "), 8)
    except ValueError:
        return None
    name = b"" if block[156] in _BELONGS_TO_NEXT else until_nul(block[:100])
    return Hop(at + BLOCK_BYTES + padded_bytes(max(size_bytes, 0)), name)
