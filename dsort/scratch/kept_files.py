"""The check of the splitters that a job keeps in a bucket, where others may write."""

from __future__ import annotations

import numpy as np

from dsort.errors import damaged
from dsort.order.sort import order_rows
from dsort.scratch.columns import ColumnFile
from dsort.scratch.index import read_splitters
from dsort.scratch.positions import check_positions


def check_splitters(data: bytes, what: str, *, shards: int, decreasing: bool) -> None:
    """``StorageError`` unless ``data`` is a file of splitters among the records of so many shards,
    in output order: it comes back from a bucket."""
    file = ColumnFile(data, what)
    found = read_splitters(file)
    check_positions(file, what, shards)
    text = found.keys.text
    if text is not None and (np.diff(text.offsets) < 0).any():
        raise damaged(what, "texts end before they begin")
    by_position = np.lexsort((found.ordinal, found.shard))
    order = by_position[order_rows(found.keys.take(by_position), decreasing=decreasing)]
    if not np.array_equal(order, np.arange(len(order))):
        raise damaged(what, "splitters are not in order")
