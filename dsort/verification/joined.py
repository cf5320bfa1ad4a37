"""Which records of several inputs have to be joined into one record of the result.

Worked out from the keys alone, by other code than that of the job.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from dsort.data.columns import Bools, Int32s, Int64s, UInt64s
from dsort.order.joining import JoinRule
from dsort.order.sort import stable_argsort


class Pieces(Struct, frozen=True, eq=False):
    """The pieces (records of inputs) of each joined record: record ``i`` consists of the pieces
    ``rows[j]`` for ``j`` from ``offsets[i]`` to ``offsets[i + 1] - 1``, in the order of the inputs.
    Pieces are numbered in input order. ``expected``: which joined records have to be in the result,
    shape ``(n,)``. ``first_rows``: the first piece of each shard, and the number of pieces at the
    end."""

    rows: Int64s
    offsets: Int64s
    expected: Bools
    first_rows: Int64s

    def of(self, record: int) -> list[int]:
        """The pieces of one record."""
        first, last = self.offsets[record : record + 2].tolist()
        found: list[int] = self.rows[first:last].tolist()
        return found


def join_pieces(
    rule: JoinRule, key_hash: UInt64s, input_of: Int32s, placed: Bools, first_rows: Int64s
) -> Pieces:
    """The joined records, in the order of their first pieces. ``key_hash`` and ``input_of``: the
    key and the input of each piece, in input order; ``placed``: whether it has an output."""
    rows = np.flatnonzero(placed)
    order = rows[stable_argsort(key_hash[rows])]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = key_hash[order[1:]] != key_hash[order[:-1]]
    again = np.zeros(len(order), np.bool_)  # in input order, pieces of one input are side by side
    again[1:] = ~begins[1:] & (input_of[order[1:]] == input_of[order[:-1]])
    order, begins = order[~again], begins[~again]
    record = np.cumsum(begins) - 1
    count = int(begins.sum())
    expected = np.ones(count, np.bool_)
    for number, nonmatch in enumerate(rule.nonmatch):
        if nonmatch != "none":
            has = np.zeros(count, np.bool_)
            has[record[input_of[order] == number]] = True
            expected &= has
    by_first = np.argsort(order[begins], kind="stable")
    place = np.empty(count, np.int64)
    place[by_first] = np.arange(count)
    by_record = np.argsort(place[record], kind="stable")
    counts = np.bincount(place[record], minlength=count)
    offsets = np.append(0, np.cumsum(counts)).astype(np.int64)
    return Pieces(order[by_record], offsets, expected[by_first], first_rows)


def members_that_stay(conflict: str, record: Int64s, extensions: UInt64s) -> Bools:
    """Which members stay, shape ``(m,)``, for the members of all records one after the other: where
    a record has several with the same extension, the ``first`` or the ``last`` of them. ``record``:
    the record of each member, ``extensions``: the hashes of the extensions, both ``(m,)``."""
    stays = np.ones(len(record), np.bool_)
    if conflict == "error":
        return stays
    order = np.lexsort((extensions, record))  # stable: equal ones keep their order in the record
    same = (record[order[1:]] == record[order[:-1]]) & (
        extensions[order[1:]] == extensions[order[:-1]]
    )
    goes = order[1:][same] if conflict == "first" else order[:-1][same]
    stays[goes] = False
    return stays
