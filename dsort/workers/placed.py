"""``Placed``: which output each record of a shard goes to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsort.data.columns import Int32s, Int64s, UInt64s


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """Columns of shape ``(n,)``. ``group``: the output of each record, or its template under the
    key map; -1: it is dropped; None: there is but one, or nobody knows yet. ``lots``: see
    ``RecordIndex``."""

    group: Int32s | None = None
    lots: UInt64s | None = None

    def repeated(self, counts: Int64s) -> Placed:
        """The same of records of which each comes out so often."""
        return Placed(
            None if self.group is None else np.repeat(self.group, counts),
            None if self.lots is None else np.repeat(self.lots, counts, axis=0),
        )

    def run(self, start: int, stop: int) -> Placed:
        """Those of records ``start:stop``."""
        return Placed(
            None if self.group is None else self.group[start:stop],
            None if self.lots is None else self.lots[start:stop],
        )

    def take(self, rows: Int64s) -> Placed:
        """Those of the records ``rows``."""
        return Placed(
            None if self.group is None else self.group[rows],
            None if self.lots is None else self.lots[rows],
        )

    def kept(self) -> Int64s | None:
        """The records that are not dropped; None: all of them."""
        if self.group is None or not (self.group < 0).any():
            return None
        return np.flatnonzero(self.group >= 0)


NOWHERE = Placed()
"""Of records that are not placed yet, or whose job has one output."""
