"""New names of members whose records are copied as they are, but for these names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsort.data.columns import BytesColumn, Int64s

__all__ = ["NewNames"]


@dataclass(frozen=True, slots=True, eq=False)
class NewNames:
    """Names that are written over those in the headers of members, by record.

    Record ``i`` has the names ``offsets[i]:offsets[i + 1]``; ``at``, shape ``(m,)``, says from
    which byte of the record on the block is in which the name goes (see ``Container.overwrite``).
    Such a record takes as many bytes as it did, and payload is not touched.
    """

    offsets: Int64s
    at: Int64s
    names: BytesColumn

    def take(self, rows: NDArray[np.integer]) -> NewNames:
        """Those of the records ``rows`` in that order."""
        counts = np.diff(self.offsets)[rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        first = self.offsets[:-1][rows] - offsets[:-1]
        picked = np.arange(offsets[-1]) + np.repeat(first, counts)
        return NewNames(offsets, self.at[picked], self.names.take(picked))

    def run(self, start: int, stop: int) -> NewNames:
        """Those of the records ``start:stop``; arrays are views."""
        first, last = int(self.offsets[start]), int(self.offsets[stop])
        offsets = self.offsets[start : stop + 1] - first
        return NewNames(offsets, self.at[first:last], self.names.run(first, last))

    @staticmethod
    def concat(parts: Sequence[NewNames]) -> NewNames:
        """Those of the records of all parts."""
        ends = np.cumsum([0, *(part.offsets[-1] for part in parts)])
        offsets = [part.offsets[1:] + end for part, end in zip(parts, ends[:-1], strict=True)]
        return NewNames(
            np.concatenate([np.zeros(1, np.int64), *offsets]),
            np.concatenate([np.zeros(0, np.int64), *(part.at for part in parts)]),
            BytesColumn.concat([part.names for part in parts]),
        )

    @staticmethod
    def none(records: int) -> NewNames:
        """No name for any of so many records."""
        none = np.zeros(0, np.int64)
        return NewNames(np.zeros(records + 1, np.int64), none, BytesColumn.of([]))
