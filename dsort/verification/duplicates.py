"""Records of one key or content, found anew: which are left out, and what the others are called."""

from __future__ import annotations

import numpy as np

from dsort.data.columns import Bools, Int64s, UInt64s
from dsort.data.hashes import hash_keys
from dsort.data.records import STRAY_SALT
from dsort.order.sort import stable_argsort


def others_of(same: UInt64s, counting: Bools, *, keep_last: bool) -> Int64s:
    """The rows, of those that count, whose number in ``same`` another one has that stays; 0 is
    nobody's like."""
    rows = np.flatnonzero(counting & (same != 0))
    if keep_last:
        rows = rows[::-1]
    return rows[later_duplicates(same[rows])[0]]


def later_duplicates(key_hash: UInt64s) -> tuple[Int64s, Int64s]:
    """(rows whose key an earlier row has, in row order; how many earlier rows have it)."""
    order = stable_argsort(key_hash)
    hashes = key_hash[order]
    again = np.zeros(len(order), np.bool_)
    again[1:] = hashes[1:] == hashes[:-1]
    first = np.maximum.accumulate(np.where(again, 0, np.arange(len(order))))
    later = np.flatnonzero(again)
    by_row = np.argsort(order[later])
    return order[later][by_row], (later - first[later])[by_row]


def free_keys(keys: list[bytes], nth: list[int], taken: UInt64s) -> list[bytes]:
    """A key of its own for each of ``keys``: ``key-<nth>``, or the next number that is free."""
    first = [key + b"-%d" % number for key, number in zip(keys, nth, strict=True)]
    clashes = _any_taken(first, taken).tolist()
    given: dict[bytes, None] = {}  # in the order given
    for key, number, candidate, clash in zip(keys, nth, first, clashes, strict=True):
        while clash or candidate in given:
            number += 1
            candidate = key + b"-%d" % number
            clash = bool(_any_taken([candidate], taken)[0])
        given[candidate] = None
    return list(given)


def _any_taken(keys: list[bytes], taken: UInt64s) -> Bools:
    hashes = hash_keys(keys, len(keys))
    return np.isin(hashes, taken) | np.isin(hashes ^ STRAY_SALT, taken)
