"""Finds records with equal keys or contents again: which of them are left out, and which new keys
the others get."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash

from dsort.data.columns import Bools, Int64s, UInt64s
from dsort.data.hashes import hash_keys
from dsort.data.members import MemberTable
from dsort.data.records import STRAY_SALT, FormedRecords
from dsort.moves.input_shard import ShardBytes
from dsort.order.sort import stable_argsort


def others_of(same: UInt64s, counting: Bools, *, keep_last: bool) -> Int64s:
    """The rows to leave out: those of the ``counting`` rows whose number in ``same`` an earlier row
    has (a later one with ``keep_last``). 0 equals nothing, not even another 0."""
    rows = np.flatnonzero(counting & (same != 0))
    if keep_last:
        rows = rows[::-1]
    return rows[later_duplicates(same[rows])[0]]


def later_duplicates(key_hash: UInt64s) -> tuple[Int64s, Int64s]:
    """(rows whose key an earlier row has, in row order; the number of earlier rows that have
    it)."""
    order = stable_argsort(key_hash)
    hashes = key_hash[order]
    again = np.zeros(len(order), np.bool_)
    again[1:] = hashes[1:] == hashes[:-1]
    first = np.maximum.accumulate(np.where(again, 0, np.arange(len(order))))
    later = np.flatnonzero(again)
    by_row = np.argsort(order[later])
    return order[later][by_row], (later - first[later])[by_row]


def contents_of(
    shard: ShardBytes, records: FormedRecords, members: MemberTable, extensions: Sequence[str]
) -> UInt64s:
    """For each record a number for its content in the members with ``extensions`` (none: in all
    members); equal contents give equal numbers, and 0 means that it has no such member."""
    found = []
    for record in range(len(records)):
        own = {}
        for row in records.member_rows[
            records.member_offsets[record] : records.member_offsets[record + 1]
        ].tolist():
            name = members.names[row][int(records.key_bytes[row]) :].removeprefix(b".")
            own[name] = shard.content(members, row)
        named = {each.encode("utf-8", "surrogateescape") for each in extensions}
        parts = sorted(item for item in own.items() if not named or item[0] in named)
        text = b"".join(b"%d,%d,%b%b" % (len(n), len(data), n, data) for n, data in parts)
        found.append(xxhash.xxh3_64_intdigest(text) if parts else 0)
    return np.array(found, np.uint64)


def free_keys(keys: list[bytes], nth: list[int], taken: UInt64s) -> list[bytes]:
    """A new unique key for each of ``keys``: ``key-<nth>``, or with the next free number."""
    first = [key + b"-%d" % number for key, number in zip(keys, nth, strict=True)]
    clashes = _any_taken(first, taken).tolist()
    given: dict[bytes, None] = {}  # a dict, not a set, keeps the order
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
