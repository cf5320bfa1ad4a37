"""How many records come out of each of several inputs, of which so many are there."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm


def shares_of_total(total: int, weights: Sequence[Fraction]) -> list[int]:
    """``total`` dealt out by ``weights``: whole numbers whose sum is ``total``. What is left of
    fractions goes to the largest ones, the first of equal ones."""
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
    """``totals`` of several classes, each dealt out by ``weights`` as ``shares_of_total`` does.

    ``exact``: so that all classes together are dealt out as their sum would be. Then what is left
    of the fractions of a class goes where most is missing yet (Gale and Ryser: that comes out
    even), and a share is off by at most one."""
    if not exact:
        return [shares_of_total(total, weights) for total in totals]
    if not totals:
        return []
    shared = lcm(*(weight.denominator for weight in weights))
    parts = [int(weight * shared) for weight in weights]  # as whole numbers: ten times as fast
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
    """In proportion to ``weights``, of inputs that have ``records``: ``first_exhausted`` takes none
    twice, and one input whole; ``all_exhausted`` takes each at least once."""
    lengths = [count / weight for count, weight in zip(records, weights, strict=True)]
    if stop == "first_exhausted":
        length = min(lengths)
        return [int(length * weight) for weight in weights]
    length = max(lengths)
    return [-int(-length * weight // 1) for weight in weights]
