"""How often records come out: the shares of inputs and outputs in whole numbers, and the copies of
each record, which depend on a hash of its key."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm

import numpy as np
from msgspec import Struct

from dsort.data.columns import Int64s, UInt64s
from dsort.data.hashes import mix, shard_seed


def lots_of(key_hash: UInt64s, seed: str, input_name: str) -> UInt64s:
    """The lot (random number) that each record of an input draws, by its key alone: shape
    ``(n,)``."""
    return mix(key_hash ^ np.uint64(shard_seed(f"mix {seed}", input_name)))


class CopyRule(Struct, frozen=True):
    """Each record of a shard comes out ``least`` times, and once more if its lot is below ``below``
    (2**64: always), or if its lot equals ``below`` and its ordinal is below ``tied_before``."""

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


def shares_of_total(total: int, weights: Sequence[Fraction]) -> list[int]:
    """Divide ``total`` by ``weights`` into whole numbers whose sum is ``total``. The rest goes to
    the largest fractions, and among equal ones to the first."""
    whole = sum(weights, Fraction(0))
    exact = [total * weight / whole for weight in weights]
    shares = [int(each) for each in exact]
    by_rest = sorted(range(len(shares)), key=lambda at: (shares[at] - exact[at], at))
    for at in by_rest[: total - sum(shares)]:
        shares[at] += 1
    return shares


def shares_in_classes(
    totals: Sequence[int], weights: Sequence[Fraction], *, exact: bool
) -> list[list[int]]:
    """Divide the ``totals`` of several classes by ``weights``, each as ``shares_of_total`` does.

    ``exact``: the sums over all classes are those of dividing the sum of ``totals``. To that end,
    the rest of a class goes to the shares that are furthest below their sum so far (by Gale and
    Ryser, this always succeeds). A share is off by at most one."""
    if not exact:
        return [shares_of_total(total, weights) for total in totals]
    if not totals:
        return []
    shared = lcm(*(weight.denominator for weight in weights))
    parts = [int(weight * shared) for weight in weights]  # whole numbers are ten times as fast
    whole = sum(parts)
    shares = [[total * part // whole for part in parts] for total in totals]
    wanted = shares_of_total(sum(totals), weights)
    missing = [
        all_of_it - sum(own)
        for all_of_it, own in zip(wanted, zip(*shares, strict=True), strict=True)
    ]
    for total, own in zip(totals, shares, strict=True):
        left = total - sum(own)
        if not left:
            continue
        order = sorted(
            range(len(parts)), key=lambda at: (-missing[at], -(total * parts[at] % whole), at)
        )
        for at in order[:left]:
            own[at] += 1
            missing[at] -= 1
    return shares


def shares_of_stop(stop: str, records: Sequence[int], weights: Sequence[Fraction]) -> list[int]:
    """Shares in proportion to ``weights``, for inputs with ``records``: ``first_exhausted`` takes
    no record twice, and one input whole; ``all_exhausted`` takes each record at least once."""
    lengths = [count / weight for count, weight in zip(records, weights, strict=True)]
    if stop == "first_exhausted":
        length = min(lengths)
        return [int(length * weight) for weight in weights]
    length = max(lengths)
    return [-int(-length * weight // 1) for weight in weights]
