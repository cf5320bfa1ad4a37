"""What two output runs share of a partition: each reads its own records, and not all of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dsort.scratch.ordered import OrderedRows

__all__ = ["RECORD_BYTES_MIN", "narrowed"]

RECORD_BYTES_MIN = 32 << 10
"""Shorter records are read in less time with all that lies between them."""
SHARE_MAX = 0.8
"""Of a partition's bytes. Where more is wanted, all is read: it lies in fewer pieces."""


def narrowed(rows: OrderedRows, first: int, stop: int) -> OrderedRows:
    """``rows`` with blocks that hold no more than rows ``first:stop``, a block each, in the order
    in which they lie in the spill; ``rows`` itself where that gains nothing. The other rows are
    nowhere then."""
    lengths = rows.segments.length[first:stop]
    size_bytes, total_bytes = int(lengths.sum()), int(rows.block_bytes.sum())
    are_long = size_bytes >= RECORD_BYTES_MIN * len(lengths)
    if rows.block_rows is not None or not are_long or size_bytes > SHARE_MAX * total_bytes:
        return rows
    starts = rows.segments.start[first:stop]
    order = np.argsort(starts, kind="stable")
    begins = np.cumsum(rows.block_bytes) - rows.block_bytes
    block = np.searchsorted(begins, starts[order], side="right") - 1
    sizes = lengths[order]
    places = np.full_like(rows.segments.start, -1)
    places[first + order] = np.cumsum(sizes) - sizes
    return replace(
        rows,
        segments=replace(rows.segments, start=places),
        block_shard=rows.block_shard[block],
        block_worker=rows.block_worker[block],
        block_start=rows.block_start[block] + starts[order] - begins[block],
        block_bytes=sizes,
    )
