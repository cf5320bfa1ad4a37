"""Exact numbers of records in several outputs: where, in each class, the next output begins. A lot
is a random number that a record draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from dsort.data.columns import Int64s, UInt64s

__all__ = ["BORDERS_MAX", "LOT_BITS", "ORDINAL_BITS", "POSITION_BITS", "Borders", "positions_of"]

BORDERS_MAX: Final = 1 << 20
"""The limit for the borders of all classes together, which are held and sent to each node."""
LOT_BITS: Final = 63
POSITION_BITS: Final = 64
ORDINAL_BITS: Final = 40
"""A position is the ordinal of the shard and, in this many lower bits, that of the record."""


def positions_of(shard: int | Int64s, ordinal: Int64s) -> UInt64s:
    """The position of each record in the inputs as one number, ascending in input order. ``shard``:
    the ordinal of the shard of all records, or of each; ``ordinal``: of each record in it."""
    import numpy as np

    return (np.uint64(shard) << np.uint64(ORDINAL_BITS)) | ordinal.astype(np.uint64)


class Borders(Struct, frozen=True, eq=False):
    """``classes``: hashes, ascending, shape ``(s,)``. ``lot``, ``position``: the lot and the
    position of the first record of the second output, the third and so on in each class, shape
    ``(s, outputs - 1)``. Records with smaller lots, or with the same lot and smaller positions,
    belong to an earlier output."""

    classes: UInt64s
    lot: UInt64s
    position: UInt64s

    def numbers(self, lots: UInt64s, positions: UInt64s) -> Int64s:
        """The output of each record, from 0 on. ``lots``: the class and the lot of each, shape
        ``(n, 2)``. Records of a class that was not counted get the first output; they are left out
        later."""
        import numpy as np

        found = np.zeros(len(lots), np.int64)
        if not len(lots) or not len(self.classes):
            return found
        at = np.minimum(np.searchsorted(self.classes, lots[:, 0]), len(self.classes) - 1)
        lot = lots[:, 1]
        for border in range(self.lot.shape[1]):
            first = self.lot[at, border]
            found += lot > first
            tied = np.flatnonzero(lot == first)
            found[tied] += positions[tied] >= self.position[at[tied], border]
        found[self.classes[at] != lots[:, 0]] = 0
        return found
