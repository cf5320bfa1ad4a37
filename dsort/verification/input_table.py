"""All records of the inputs of a verified job, as columns."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct

from dsort.data.columns import Bools, Int32s, Int64s, UInt64s
from dsort.order.base import Algorithm
from dsort.order.duplicates import repeated_hashes
from dsort.order.sort import stable_argsort
from dsort.verification.joined import Pieces
from dsort.verification.places import PlaceFacts
from dsort.verification.read import RecordSizes


class InputTable(Struct, frozen=True, eq=False, dict=True):
    """All records of the inputs, in input order; columns have shape ``(n,)``.

    About 30 bytes a record: no names, no sort keys.
    """

    shards: tuple[str, ...]
    first_rows: Int64s  # row of each shard's first record, and n at the end
    key_hash: UInt64s  # of the new key, where a record was renamed
    digests: UInt64s  # shape (n, 2): of the bytes that the record takes in an output shard
    members: Int32s
    group: Int32s | None  # the output, or the template by the key map; -1: none
    expected: Bools  # False: the spec drops the record
    pieces: Pieces | None = None  # set where inputs are joined: then a row is a joined record
    facts: PlaceFacts | None = None  # set where records are placed by their numbers
    are_distinct: tuple[bool, ...] = ()  # for each shard: certainly no two records have one key

    def __len__(self) -> int:
        return len(self.key_hash)

    def shard_of(self, rows: Int64s) -> Int64s:
        """The input ordinals of ``rows``."""
        return np.searchsorted(self.first_rows, rows, side="right") - 1

    @cached_property
    def repeated(self) -> UInt64s:
        """The key hashes that several expected records have, sorted."""
        return repeated_hashes(self.key_hash[self.expected])

    def has(self, digests: UInt64s) -> Bools:
        """Which of ``digests``, shape ``(n, 2)``, belong to an expected record."""
        known = self._digests_sorted
        if len(known) == 0:
            return np.zeros(len(digests), np.bool_)
        at = np.minimum(np.searchsorted(known, digests[:, 0]), len(known) - 1)
        found: Bools = known[at] == digests[:, 0]
        return found

    def of_key(self, key_hash: int) -> RecordSizes:
        """The numbers of members and the digests of the expected records with a key."""
        hashes, rows = self._by_key
        wanted = np.uint64(key_hash)
        low, high = (int(np.searchsorted(hashes, wanted, side)) for side in ("left", "right"))
        sizes: dict[int, set[tuple[int, int]]] = {}
        found = rows[low:high]
        digests = map(tuple, self.digests[found].tolist())
        for size, digest in zip(self.members[found].tolist(), digests, strict=True):
            sizes.setdefault(size, set()).add(digest)
        return {size: frozenset(digests) for size, digests in sizes.items()}

    def hashes(self, algorithm: Algorithm) -> UInt64s | None:
        """The hash by which each record is ordered; None if the algorithm does not order by
        hashes."""
        if self.pieces is not None:  # a joined record comes from several shards
            return algorithm.hashes("", self.key_hash)
        words = np.empty(len(self), np.uint64)
        for ordinal, name in enumerate(self.shards):
            rows = slice(int(self.first_rows[ordinal]), int(self.first_rows[ordinal + 1]))
            distinct = self.are_distinct[ordinal]
            found = algorithm.hashes(name, self.key_hash[rows], are_distinct=distinct)
            if found is None:
                return None
            words[rows] = found
        if self.facts is not None:
            words = self.facts.places(self.group, words, algorithm.seed_text)
        return words if self.shards else None

    @cached_property
    def _digests_sorted(self) -> UInt64s:
        return np.sort(self.digests[self.expected, 0])

    @cached_property
    def _by_key(self) -> tuple[UInt64s, Int64s]:
        rows = np.flatnonzero(self.expected)
        rows = rows[stable_argsort(self.key_hash[rows])]
        return self.key_hash[rows], rows
