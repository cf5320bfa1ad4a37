"""How many copies of each record a job has: as often as the spec says, chosen by a hash."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsort.data.columns import Int64s, UInt64s
from dsort.data.hashes import mix, shard_seed


def lots_of(key_hash: UInt64s, seed: str, input_name: str) -> UInt64s:
    """The lot that each record of an input draws, by its key alone: shape ``(n,)``."""
    return mix(key_hash ^ np.uint64(shard_seed(f"mix {seed}", input_name)))


@dataclass(frozen=True, slots=True)
class CopyRule:
    """Each record of a shard comes out ``least`` times, and once more if its lot is below ``below``
    (up to 2**64: all of them), or if that is its lot and its ordinal is below ``tied_before``."""

    input_name: str
    seed: str
    least: int
    below: int
    tied_before: int = 0

    def counts(self, key_hash: UInt64s) -> Int64s:
        """How often each record of the shard comes out, in their order."""
        lots = lots_of(key_hash, self.seed, self.input_name)
        if self.below >= 1 << 64:
            return np.full(len(lots), self.least + 1, np.int64)
        counts = np.where(lots < np.uint64(self.below), self.least + 1, self.least)
        counts = counts.astype(np.int64)
        if self.tied_before:
            counts[: self.tied_before][lots[: self.tied_before] == np.uint64(self.below)] += 1
        return counts
