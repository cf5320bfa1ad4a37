"""How often the keys of a shard come again, where its records are read some at a time."""

from __future__ import annotations

import numpy as np

from dsort.data.columns import Int64s, UInt64s


class HashesSeen:
    """The key hashes of the records of one shard so far. Some 0.2 µs a record behind the first
    ones."""

    def __init__(self) -> None:
        self._sorted = np.zeros(0, np.uint64)
        self._last = np.zeros(0, np.uint64)

    def earlier(self, key_hash: UInt64s) -> Int64s | None:
        """How many records that came before these have the key of each, shape ``(n,)``; None: none
        of theirs has come before. From now on, these have."""
        if len(self._last):
            # Sorted runs are merged by such a sort.
            self._sorted = np.sort(np.concatenate([self._sorted, self._last]), kind="stable")
        self._last = key_hash
        if not len(self._sorted):
            return None
        wanted = np.sort(key_hash)
        low = np.minimum(np.searchsorted(self._sorted, wanted), len(self._sorted) - 1)
        if not (self._sorted[low] == wanted).any():
            return None
        first = np.searchsorted(self._sorted, key_hash)
        found: Int64s = np.searchsorted(self._sorted, key_hash, side="right") - first
        return found
