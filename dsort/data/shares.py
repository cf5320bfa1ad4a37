"""How many records come out of each of several inputs, of which so many are there."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

__all__ = ["shares_of_stop", "shares_of_total"]


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


def shares_of_stop(stop: str, records: Sequence[int], weights: Sequence[Fraction]) -> list[int]:
    """In proportion to ``weights``, of inputs that have ``records``: ``first_exhausted`` takes none
    twice, and one input whole; ``all_exhausted`` takes each at least once."""
    lengths = [count / weight for count, weight in zip(records, weights, strict=True)]
    if stop == "first_exhausted":
        length = min(lengths)
        return [int(length * weight) for weight in weights]
    length = max(lengths)
    return [-int(-length * weight // 1) for weight in weights]
