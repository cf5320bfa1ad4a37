"""Which output each record goes to where numbers are exact: made from the spec and the records."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from dsort.data.columns import Bools, Int32s, UInt64s
from dsort.data.shares import shares_in_classes
from dsort.transforms.outputs import Division


def outputs_asked_for(division: Division, lots: UInt64s, counting: Bools) -> Int32s:
    """The output of each record, in input order; ``lots``: the class and the lot of each, shape
    ``(n, 2)``. Those that are not ``counting`` are in none of the numbers, and get the first."""
    outputs = np.zeros(len(lots), np.int32)
    rows = np.flatnonzero(counting)
    rows = rows[np.lexsort((lots[rows, 1], lots[rows, 0]))]  # ties stay in input order
    totals = np.unique(lots[rows, 0], return_counts=True)[1].tolist()
    weights = [Fraction(str(each)) for each in division.fractions]
    shares = np.array(shares_in_classes(totals, weights, exact=division.exact), np.int64)
    numbers = np.tile(np.arange(len(weights), dtype=np.int32), len(totals))
    outputs[rows] = np.repeat(numbers, shares.reshape(-1))
    return outputs
