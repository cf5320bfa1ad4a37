"""Checks of the column files that a job keeps in a bucket, where others may write."""

from __future__ import annotations

import numpy as np

from dsort.errors import StorageError
from dsort.order.joining import LeftOut
from dsort.order.sort import order_rows
from dsort.scratch.columns import ColumnFile
from dsort.scratch.index import read_splitters

__all__ = ["check_left_out", "check_places", "check_renames", "check_splitters"]


def check_splitters(data: bytes, what: str, *, shards: int, decreasing: bool) -> None:
    """``StorageError`` unless ``data`` is a file of splitters among the records of so many shards,
    in output order: it comes back from a bucket."""
    file = ColumnFile(data, what)
    found = read_splitters(file)
    _check_positions(file, what, shards)
    text = found.keys.text
    kinds = {"group": np.int32, "rank": np.uint8, "words": np.uint64}
    for name, kind in kinds.items():
        column = getattr(found.keys, name)
        if column is not None and column.dtype != kind:
            raise _damaged(what, f"{name} has numbers of another kind")
    if text is not None and (np.diff(text.offsets) < 0).any():
        raise _damaged(what, "texts end before they begin")
    by_position = np.lexsort((found.ordinal, found.shard))
    order = by_position[order_rows(found.keys.take(by_position), decreasing=decreasing)]
    if not np.array_equal(order, np.arange(len(order))):
        raise _damaged(what, "splitters are not in order")


def check_renames(data: bytes, what: str, *, shards: int) -> None:
    """``StorageError`` unless ``data`` is a file of new keys for records of so many shards."""
    file = ColumnFile(data, what)
    _check_positions(file, what, shards)
    shard, ordinal = file.array("shard"), file.array("ordinal")
    keys = file.bytes_column("keys", 0, len(shard))
    order = np.lexsort((ordinal, shard))
    if not np.array_equal(order, np.arange(len(order))) or (np.diff(keys.offsets) <= 0).any():
        raise _damaged(what, "new keys are not in order")


def check_left_out(data: bytes, what: str, *, shards: int) -> None:
    """``StorageError`` unless ``data`` is a file of what a join leaves out of so many shards."""
    file = ColumnFile(data, what)
    _check_positions(file, what, shards)
    shard, ordinal, why = file.array("shard"), file.array("ordinal"), file.array("nth")
    lists = file.bytes_column("keys", 0, len(shard))
    order = np.lexsort((ordinal, shard))
    if not np.array_equal(order, np.arange(len(order))) or (np.diff(lists.offsets) < 0).any():
        raise _damaged(what, "positions are not in order")
    if why.dtype != np.int64 or len(why) != len(shard) or not np.isin(why, [*LeftOut]).all():
        raise _damaged(what, "it gives reasons that there are not")


def check_places(data: bytes, what: str, *, shards: int) -> None:
    """``StorageError`` unless ``data`` is a file of the places of joined records' pieces."""
    file = ColumnFile(data, what)
    _check_positions(file, what, shards)
    shard, ordinal = file.array("shard"), file.array("ordinal")
    if not np.array_equal(np.lexsort((ordinal, shard)), np.arange(len(shard))):
        raise _damaged(what, "positions are not in order")
    if file.array("place", 0, len(shard)).dtype != np.uint64:
        raise _damaged(what, "places are numbers of another kind")


def _check_positions(file: ColumnFile, what: str, shards: int) -> None:
    shard = file.array("shard")
    ordinal = file.array("ordinal", 0, len(shard))
    if shard.dtype != np.int64 or ordinal.dtype != np.int64:
        raise _damaged(what, "positions are numbers of another kind")
    if len(shard) and not (0 <= shard.min() <= shard.max() < shards and ordinal.min() >= 0):
        raise _damaged(what, "positions are outside the inputs")


def _damaged(what: str, reason: str) -> StorageError:
    return StorageError(
        f"{what} is damaged: {reason}", hint="the job cannot be resumed; start it again"
    )
