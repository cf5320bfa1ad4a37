"""How many records go where, where numbers are exact: made from the spec and the records."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from dsort.data.columns import Bools, Int32s, UInt64s
from dsort.transforms.outputs import Division


def dealt_out(total: int, weights: Sequence[Fraction]) -> list[int]:
    """``total`` in whole parts, in proportion to ``weights``. Each part is rounded down; what is
    left goes, one each, to the parts that lost most, the first of equal ones."""
    exact = [total * weight / sum(weights) for weight in weights]
    parts = [int(each) for each in exact]
    lost = [each % 1 for each in exact]
    for _ in range(total - sum(parts)):
        at = lost.index(max(lost))
        parts[at] += 1
        lost[at] = Fraction(-1)
    return parts


def dealt_out_in_classes(totals: Sequence[int], weights: Sequence[Fraction]) -> list[list[int]]:
    """The parts of each of several ``totals``, which together are those of their sum. What is left
    of a total goes where most is missing yet; of equal ones, to the part that lost most."""
    wanted = dealt_out(sum(totals), weights)
    shares = [weight / sum(weights) for weight in weights]
    parts = [[int(total * share) for share in shares] for total in totals]
    missing = [all_of_it - sum(own) for all_of_it, *own in zip(wanted, *parts, strict=True)]
    for total, own in zip(totals, parts, strict=True):
        lost = [total * share % 1 for share in shares]
        order = sorted(range(len(own)), key=lambda at: (missing[at], lost[at]), reverse=True)
        for at in order[: total - sum(own)]:
            own[at] += 1
            missing[at] -= 1
    return parts


def outputs_asked_for(division: Division, lots: UInt64s, counting: Bools) -> Int32s:
    """The output of each record, in input order; ``lots``: the class and the lot of each, shape
    ``(n, 2)``. Those that are not ``counting`` are in none of the numbers, and get the first."""
    outputs = np.zeros(len(lots), np.int32)
    rows = np.flatnonzero(counting)
    rows = rows[np.lexsort((lots[rows, 1], lots[rows, 0]))]  # ties stay in input order
    totals = np.unique(lots[rows, 0], return_counts=True)[1].tolist()
    weights = [Fraction(str(each)) for each in division.fractions]
    if division.exact:
        parts = dealt_out_in_classes(totals, weights)
    else:
        parts = [dealt_out(total, weights) for total in totals]
    numbers = np.tile(np.arange(len(weights), dtype=np.int32), len(totals))
    outputs[rows] = np.repeat(numbers, np.array(parts, np.int64).reshape(-1))
    return outputs
