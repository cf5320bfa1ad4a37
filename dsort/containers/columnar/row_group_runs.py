"""Row groups of Parquet that are read together."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from dsort.containers.columnar.values import Leaf

__all__ = ["ROWS_A_BATCH_MAX", "RowGroupRun"]

ROWS_A_BATCH_MAX = 1 << 16


class RowGroupRun(Struct, frozen=True):
    """Row groups with ``row_bytes`` a row in the widest of them and ``rows`` rows in all, to be
    read ``bytes_max`` at a time. ``stored``: leaves that may stay in their places. ``inflated``:
    leaves that may stay in their inflated pages."""

    groups: list[int]
    stored: tuple[Leaf, ...]
    inflated: tuple[Leaf, ...]
    row_bytes: int
    rows: int
    bytes_max: int

    @property
    def rows_at_once(self) -> int:
        """How many rows make a batch."""
        return min(max(self.bytes_max // self.row_bytes, 1), max(self.rows, 1), ROWS_A_BATCH_MAX)

    def batch_rows(self) -> Iterator[int]:
        """The number of rows of one batch after the other."""
        for at in range(0, self.rows, self.rows_at_once):
            yield min(self.rows_at_once, self.rows - at)
