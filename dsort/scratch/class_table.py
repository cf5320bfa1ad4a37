"""The file with the number of records of each class in each shard: ``classes.col`` of each node."""

from __future__ import annotations

import numpy as np

from dsort.data.columns import Int64s
from dsort.errors import damaged
from dsort.order.class_numbers import ClassCounts
from dsort.scratch.columns import ColumnFile, columns_bytes


def class_table_bytes(offsets: Int64s, classes: ClassCounts) -> bytes:
    """The content of the file. ``offsets``: where the rows of each shard begin, and the end."""
    return columns_bytes(
        {
            "offsets": offsets,
            "group": classes.group,
            "name": classes.name,
            "count": classes.count,
            "first": classes.first,
            "total": classes.total,
        }
    )


def classes_of_shard(file: ColumnFile, shard: int) -> ClassCounts:
    """The rows of one shard."""
    start, stop = file.array("offsets", shard, shard + 2).tolist()
    return ClassCounts(
        group=file.array("group", start, stop),
        name=file.bytes_column("name", start, stop),
        count=file.array("count", start, stop),
        first=file.array("first", start, stop),
        total=file.array("total", start, stop),
    )


def check_class_table(data: bytes, what: str, *, shards: int) -> None:
    """``StorageError`` unless ``data`` is such a file, for so many shards. Needed for a file that
    is read back from a bucket."""
    file = ColumnFile(data, what)
    offsets = file.array("offsets")
    rows = int(offsets[-1]) if len(offsets) == shards + 1 else -1
    if rows < 0 or offsets[0] != 0 or (np.diff(offsets) < 0).any():
        raise damaged(what, "it is about other shards")
    numbers = {name: file.array(name, 0, rows) for name in ("count", "first", "total")}
    if any(column.dtype != np.int64 for column in (offsets, *numbers.values())):
        raise damaged(what, "it has numbers of another kind")
    if file.array("group", 0, rows).dtype != np.int32:
        raise damaged(what, "it has numbers of another kind")
    if (np.diff(file.bytes_column("name", 0, rows).offsets) < 0).any():
        raise damaged(what, "names end before they begin")
    count, first, total = numbers.values()
    fits = (count > 0) & (first >= 0) & (first <= total - count) & (total < 1 << 53)
    if not fits.all():
        raise damaged(what, "it has counts that are none")
