"""Every record once: which input record is which output record, and what is left on either side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsort.data.columns import Bools, Int64s, UInt64s
from dsort.order.sort import stable_argsort
from dsort.verification.inputs import InputTable

__all__ = ["Leftovers", "match_records", "occurrences", "sort_out"]


def match_records(inputs: InputTable, digests: UInt64s, words: UInt64s | None) -> Int64s:
    """For each output record (``digests``, shape ``(n, 2)``) the row of the expected input record
    that it is, or -1; no input row twice.

    Records that are alike to the last byte cannot be told apart. Their output rows, in output
    order, are given their input rows in the order in which those should come out (by ``words``,
    the sort keys of a shuffle, then by input row): if any assignment is in order, this one is.
    """
    rows = np.flatnonzero(inputs.expected)
    if words is not None:
        rows = rows[stable_argsort(words[rows])]
    rows = rows[stable_argsort(inputs.digests[rows, 0])]
    source = np.full(len(digests), -1, np.int64)
    if len(rows) == 0 or len(digests) == 0:
        return source
    order = stable_argsort(digests[:, 0])
    there, here = inputs.digests[rows, 0], digests[order, 0]
    at = np.searchsorted(there, here) + occurrences(here)
    found = np.minimum(at, len(rows) - 1)
    same = (at < len(rows)) & (inputs.digests[rows[found]] == digests[order]).all(axis=1)
    source[order[same]] = rows[found[same]]
    return source


def occurrences(ordered: UInt64s) -> Int64s:
    """How many equal values stand before each value of a sorted column."""
    return np.arange(len(ordered)) - np.searchsorted(ordered, ordered)


@dataclass(frozen=True, slots=True, eq=False)
class Leftovers:
    """What has no partner. Output rows but for ``missing``, each in one of these."""

    missing: Int64s  # input rows: no output has that key and was not matched
    changed: Int64s  # the record of that key has other bytes
    changed_from: Int64s  # the input row that each of ``changed`` should be
    split: Int64s  # there are more records of that key than in the inputs, each with other bytes
    doubled: Int64s  # the same record is there once more
    dropped: Int64s  # the same record is in the inputs, but should have been dropped
    foreign: Int64s  # nothing like it is in the inputs


def sort_out(inputs: InputTable, key_hash: UInt64s, digests: UInt64s, source: Int64s) -> Leftovers:
    """Sort out what ``match_records`` left over."""
    used = np.zeros(len(inputs), np.bool_)
    used[source[source >= 0]] = True
    lost = np.flatnonzero(inputs.expected & ~used)
    extra = np.flatnonzero(source < 0)
    lost = lost[stable_argsort(inputs.key_hash[lost])]
    lost_keys = inputs.key_hash[lost]
    extra_keys = np.sort(key_hash[extra])

    lost_of_key = _count(lost_keys, key_hash[extra])
    extra_of_key = _count(extra_keys, key_hash[extra])
    paired = lost_of_key > 0
    split = paired & (extra_of_key > lost_of_key)
    changed = extra[paired & ~split]
    nth = _nth_of_key(key_hash[changed])
    partner = lost[np.searchsorted(lost_keys, key_hash[changed]) + nth]
    missing = lost[occurrences(lost_keys) >= _count(extra_keys, lost_keys)]

    alone = extra[~paired]
    known_expected = _among(digests[alone], inputs.digests[inputs.expected])
    known_dropped = _among(digests[alone], inputs.digests[~inputs.expected])
    return Leftovers(
        missing=np.sort(missing),
        changed=changed,
        changed_from=partner,
        split=extra[split],
        doubled=alone[known_expected],
        dropped=alone[known_dropped & ~known_expected],
        foreign=alone[~known_expected & ~known_dropped],
    )


def _count(ordered: UInt64s, wanted: UInt64s) -> Int64s:
    """How often each of ``wanted`` is in the sorted column."""
    return np.searchsorted(ordered, wanted, "right") - np.searchsorted(ordered, wanted, "left")


def _nth_of_key(keys: UInt64s) -> Int64s:
    """How many rows before each row have its key."""
    order = stable_argsort(keys)
    nth = np.empty(len(keys), np.int64)
    nth[order] = occurrences(keys[order])
    return nth


def _among(digests: UInt64s, known: UInt64s) -> Bools:
    """Which of ``digests`` are in ``known``; few against many."""
    hits = np.isin(known[:, 0], digests[:, 0])
    both = {tuple(row) for row in known[hits].tolist()}
    return np.array([tuple(row) in both for row in digests.tolist()], np.bool_)
