"""Which records of several inputs have to be one in the result: made from their keys alone, in a
way of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsort.data.columns import Bools, Int32s, Int64s, UInt64s
from dsort.data.joins import JoinRule
from dsort.order.sort import stable_argsort


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """What joined records are made of: record ``i`` of the pieces ``rows[j]`` for ``j`` from
    ``offsets[i]`` to ``offsets[i + 1] - 1``, in the order of the inputs. Pieces are numbered in
    input order. ``expected``: which records have to be there, shape ``(n,)``. ``first_rows``: the
    first piece of each shard, and how many there are at the end."""

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
    """The records that the pieces with these keys, of these inputs, in input order, make; in the
    order of their first pieces. ``placed``: which pieces have an output at all."""
    rows = np.flatnonzero(placed)
    order = rows[stable_argsort(key_hash[rows])]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = key_hash[order[1:]] != key_hash[order[:-1]]
    again = np.zeros(len(order), np.bool_)  # input order: those of one input are side by side
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
    """Which members stay, of those of all records one after the other: of a record that has several
    of one extension, the ``first`` or the ``last``. Shapes ``(m,)``; ``extensions``: their
    hashes."""
    stays = np.ones(len(record), np.bool_)
    if conflict == "error":
        return stays
    order = np.lexsort((extensions, record))  # stable: as they follow each other in the record
    same = (record[order[1:]] == record[order[:-1]]) & (
        extensions[order[1:]] == extensions[order[:-1]]
    )
    goes = order[1:][same] if conflict == "first" else order[:-1][same]
    stays[goes] = False
    return stays
