"""The lineage of an output shard, in the form that its creator stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dsort.data.index import SHARD
from dsort.data.table import Table
from dsort.errors import StorageError
from dsort.scratch.columns import ColumnFile, columns_bytes
from dsort.scratch.ordered import LINEAGE as LINEAGE_COLUMNS

LINEAGE: Final = "lineage"
"""Names the lineage among the kinds of sidecars."""


def lineage_bytes(found: Sequence[Table]) -> bytes:
    """The stored form of the lineage of an output shard. ``found``: the lineage of its pieces."""
    rows = Table.concat(found, LINEAGE_COLUMNS)
    return columns_bytes(rows.arrays(is_private=False))


def lineage_of(data: bytes, what: str, *, inputs: int) -> Table:
    """Read the rows that ``lineage_bytes`` stored. ``inputs``: the number of input shards.
    ``StorageError`` if the rows are damaged."""
    file = ColumnFile(data, what)
    rows = Table.read(file, LINEAGE_COLUMNS, 0, file.count(SHARD.text))
    shard = rows[SHARD]
    if len(rows) and not 0 <= shard.min() <= shard.max() < inputs:
        raise StorageError(f"{what} is damaged: it names other input shards")
    return rows
