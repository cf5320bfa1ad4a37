"""Duplicate keys: one record key in two or more records of the job.

They are found by the hash column of the record key alone, whatever the sort key. Keys are compared,
so that hash collisions do not count. The earliest record (by input position) keeps the key.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from dsort.data.columns import Bools, BytesColumn, Int64s, UInt64s, equal_ranges, stable_argsort
from dsort.data.hashes import hash_keys
from dsort.data.records import STRAY_SALT


class Duplicates(Struct, frozen=True, eq=False):
    """The later records of each repeated key, in the order of ``rows``.

    ``rows``: row numbers of the searched columns; ``nth``: 1 for the second record of a key, 2 for
    the third, …
    """

    rows: Int64s
    nth: Int64s

    def __len__(self) -> int:
        return len(self.rows)

    def with_known(
        self, keys: BytesColumn, key_hash: UInt64s, known: BytesColumn, known_hash: UInt64s
    ) -> Duplicates:
        """These duplicates, and all records of the columns ``keys`` and ``key_hash`` whose key is
        among the ``known`` ones, which count as earlier than the first record."""
        if not len(known):
            return self
        there = {*zip(known_hash.tolist(), known.tolist(), strict=True)}
        rows = np.flatnonzero(np.isin(key_hash, known_hash)).tolist()
        of_known = [row for row in rows if (int(key_hash[row]), keys[row]) in there]
        nth = dict(zip(self.rows.tolist(), self.nth.tolist(), strict=True))
        for row in of_known:
            nth[row] = nth.get(row, 0) + 1
        return _in_row_order(np.array([*nth], np.int64), np.array([*nth.values()], np.int64))


def repeated_hashes(key_hash: UInt64s) -> UInt64s:
    """The hashes that occur more than once, sorted, shape ``(k,)``."""
    ordered = np.sort(key_hash)
    twice: UInt64s = ordered[1:][ordered[1:] == ordered[:-1]]
    # np.unique loads numpy.ma: 50 million instructions, for each worker of each job.
    found: UInt64s = twice[np.append(True, twice[1:] != twice[:-1])] if len(twice) else twice
    return found


def words_as_bytes(words: UInt64s) -> BytesColumn:
    """Each word as its 8 bytes, for ``find_duplicates``."""
    ends = np.arange(0, 8 * len(words) + 1, 8, dtype=np.int64)
    return BytesColumn(ends, np.ascontiguousarray(words).view(np.uint8))


def find_duplicates(keys: BytesColumn, key_hash: UInt64s, *, keep_last: bool = False) -> Duplicates:
    """The records, in input order, whose key an earlier one has (``keep_last``: a later one).
    Exact: records with equal hashes are compared by their keys."""
    if keep_last:
        back = np.arange(len(key_hash))[::-1]
        found = find_duplicates(keys.take(back), key_hash[back])
        return Duplicates((len(key_hash) - 1 - found.rows)[::-1], found.nth[::-1])
    order = stable_argsort(key_hash)
    hashes = key_hash[order]
    same_hash = np.flatnonzero(hashes[1:] == hashes[:-1])
    if len(same_hash) == 0:
        return Duplicates(np.zeros(0, np.int64), np.zeros(0, np.int64))
    a, b = order[same_hash], order[same_hash + 1]
    lengths = keys.lengths
    equal = lengths[a] == lengths[b]
    starts = keys.offsets[:-1]
    equal &= equal_ranges(keys.blob, starts[a], starts[b], np.where(equal, lengths[a], 0))
    if not equal.all():
        return _by_identity(keys, key_hash, order)
    continues = np.zeros(len(order), np.bool_)
    continues[same_hash + 1] = True
    run_start = np.maximum.accumulate(np.where(continues, 0, np.arange(len(order))))
    later = np.flatnonzero(continues)
    return _in_row_order(order[later], later - run_start[later])


def _by_identity(keys: BytesColumn, key_hash: UInt64s, order: Int64s) -> Duplicates:
    """The slow, plain way, for the case that two keys have one 64-bit hash. A stray is not equal to
    a record with the same key, as its hash differs."""
    seen: dict[tuple[int, bytes], int] = {}
    rows, nth = [], []
    for row in order.tolist():
        identity = int(key_hash[row]), keys[row]
        times = seen.get(identity, 0)
        seen[identity] = times + 1
        if times:
            rows.append(row)
            nth.append(times)
    return _in_row_order(np.array(rows, np.int64), np.array(nth, np.int64))


def _in_row_order(rows: Int64s, nth: Int64s) -> Duplicates:
    by_row = np.argsort(rows, kind="stable")
    return Duplicates(rows[by_row], nth[by_row])


def new_keys(keys: list[bytes], nth: Int64s, taken: UInt64s) -> list[bytes]:
    """A free key ``key-1``, ``key-2``, … for each duplicate, in the order given.

    ``taken``: the hashes of all keys of the job, sorted, salted for strays as in the index. A
    number is skipped if a record or a stray has the key with it.
    """
    given: set[bytes] = set()
    fresh = []
    first = [key + b"-%d" % number for key, number in zip(keys, nth.tolist(), strict=True)]
    clashes = _among(hash_keys(first, len(first)), taken).tolist()
    for key, candidate, number, clash in zip(keys, first, nth.tolist(), clashes, strict=True):
        while clash or candidate in given:
            number += 1
            candidate = key + b"-%d" % number
            clash = bool(_among(hash_keys([candidate], 1), taken)[0])
        given.add(candidate)
        fresh.append(candidate)
    return fresh


def _among(hashes: UInt64s, taken: UInt64s) -> Bools:
    found = np.zeros(len(hashes), np.bool_)
    if len(taken):
        for identities in (hashes, hashes ^ STRAY_SALT):
            at = np.searchsorted(taken, identities)
            found |= taken[np.minimum(at, len(taken) - 1)] == identities
    return found
