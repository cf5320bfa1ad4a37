"""Select the rows of a partition that one output run needs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dsort.data.index import BLOCK_LENGTH, BLOCK_ROWS, BLOCK_START, RANGES
from dsort.scratch.ordered import OrderedRows

RECORD_BYTES_MIN = 32 << 10
"""Shorter records are read in less time with all that lies between them."""
SHARE_MAX = 0.8
"""Of a partition's bytes. Where more is wanted, all is read: it lies in fewer pieces."""


def narrowed(ordered: OrderedRows, first: int, stop: int) -> OrderedRows:
    """``ordered`` with blocks that hold no more than rows ``first:stop``, a block each, in the
    order in which they lie in the spill; ``ordered`` itself where that gains nothing. The other
    rows are nowhere then."""
    blocks, ranges = ordered.blocks, ordered.rows[RANGES]
    lengths, block_bytes = ranges.length[first:stop], blocks[BLOCK_LENGTH]
    size_bytes, total_bytes = int(lengths.sum()), int(block_bytes.sum())
    are_long = size_bytes >= RECORD_BYTES_MIN * len(lengths)
    if BLOCK_ROWS in blocks or not are_long or size_bytes > SHARE_MAX * total_bytes:
        return ordered
    starts = ranges.start[first:stop]
    order = np.argsort(starts, kind="stable")
    begins = np.cumsum(block_bytes) - block_bytes
    block = np.searchsorted(begins, starts[order], side="right") - 1
    sizes = lengths[order]
    places = np.full_like(ranges.start, -1)
    places[first + order] = np.cumsum(sizes) - sizes
    own = blocks.take(block)
    own = own.with_(BLOCK_START, own[BLOCK_START] + starts[order] - begins[block])
    return replace(
        ordered,
        rows=ordered.rows.with_(RANGES, replace(ranges, start=places)),
        blocks=own.with_(BLOCK_LENGTH, sizes),
    )
