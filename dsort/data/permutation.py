"""A permutation of numbers that depends on a seed: defined here once, independent of any library.

A number below ``total`` is a row and a column in a table with about as many of each. In each of 16
rounds, the row or the column is shifted cyclically by a hash of the other one (a Feistel network
over a table that need not be square). The table has fewer spare places than rows; a number that
lands on one goes through all rounds again. Before the rounds, the first two places are swapped or
not: for some tables, rounds alone give only even permutations. Each permutation of up to 7 numbers
is as likely as any other.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dsort.data.columns import Int64s, UInt64s
from dsort.data.hashes import mix

ROUNDS: Final = 16
_HALF: Final = np.uint64(32)


def permuted(numbers: Int64s, totals: Int64s, seeds: UInt64s) -> Int64s:
    """The place of each number among ``totals`` numbers, from 0 on, shapes ``(n,)``. For one total
    and one seed, this is a permutation. Totals are below 2**53. About 0.2 µs a number."""
    rows = np.sqrt(totals.astype(np.float64)).astype(np.int64)
    rows += rows * rows < totals
    columns = -(-totals // np.maximum(rows, 1))
    places = numbers.copy()
    left = np.arange(len(numbers))
    while len(left):
        moved = _moved(places[left], rows[left], columns[left], seeds[left])
        places[left] = moved
        left = left[moved >= totals[left]]
    return places


def _moved(places: Int64s, rows: Int64s, columns: Int64s, seeds: UInt64s) -> Int64s:
    changed = (mix(seeds + np.uint64(ROUNDS)).view(np.int64) & 1) * (rows * columns > 1)
    row, column = np.divmod(np.where(places < 2, places ^ changed, places), columns)
    for number in range(ROUNDS):
        own = mix(seeds + np.uint64(number))
        if number % 2:
            column = (column + _drawn(own, row)) % columns
        else:
            row = (row + _drawn(own, column)) % rows
    found: Int64s = row * columns + column
    return found


def _drawn(seeds: UInt64s, numbers: Int64s) -> Int64s:
    """A hash of 32 bits for each number."""
    return (mix(seeds ^ numbers.view(np.uint64)) >> _HALF).astype(np.int64)
