"""The order of another result (``like``): each record gets the place of its key there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
import xxhash

from dsort.data.columns import BytesColumn, Int32s, Int64s, UInt64s, equal_rows
from dsort.data.index import SortKeys
from dsort.data.numbered import hash_column
from dsort.errors import InputError, KeyMapError
from dsort.naming.names import readable
from dsort.order.base import Algorithm, GivenPlaces, KeyMatch, Record, SortValue
from dsort.sizes import agreed

if TYPE_CHECKING:
    from dsort.data.members import MemberTable
    from dsort.data.record_table import RecordTable
    from dsort.data.records import FormedRecords

NOWHERE: Final = -1
TIES_MAX: Final = 16
"""More keys with the same hash are an attack: each would be compared with all others."""


class KeyPlaces(GivenPlaces, frozen=True):
    """The place of each key in a result. ``shards``, ``counts``: the names of its shards, in its
    order, and their numbers of records. ``words``: the result, as a part of a sentence. ``keys``:
    all keys, in the order of their ``hashes``; ``places``: the number of each key's record, counted
    through all shards. Shapes ``(n,)``."""

    words: str
    shards: tuple[str, ...]
    counts: tuple[int, ...]
    keys: BytesColumn
    hashes: UInt64s
    places: Int64s

    field: ClassVar[str] = "like"
    missing_hint: ClassVar[str] = "ekm_missing_key: warn leaves such records out, and counts them"
    twice_hint: ClassVar[str] = (
        "deduplicate: {by: key} keeps the first record of each key; a rekey step makes new keys"
    )

    @classmethod
    def of(cls, words: str, shards: Iterable[tuple[str, Sequence[bytes]]]) -> KeyPlaces:
        """The places of the keys of ``shards``, each with its name. ``InputError`` if a key is in
        them twice."""
        columns = [(name, BytesColumn.of(keys)) for name, keys in shards]
        column = BytesColumn.concat([keys for _, keys in columns])
        hashes = hash_column(column)
        places = np.argsort(hashes, kind="stable")
        names, counts = zip(*((name, len(keys)) for name, keys in columns), strict=True)
        found = cls(words, names, counts, column.take(places), hashes[places], places)
        found._refuse_twice()
        return found

    def __len__(self) -> int:
        return len(self.places)

    def __bool__(self) -> bool:
        return True

    def ordering(self, own: Algorithm) -> Algorithm:
        """Records come in the order of the result, whatever the algorithm of the spec is."""
        return Like(self)

    def match(
        self, records: FormedRecords, members: MemberTable, *, are_joined: bool = False
    ) -> KeyMatch:
        """The group 0 for records whose keys the result has."""
        groups = np.minimum(self.lookup(records.keys), 0).astype(np.int32)
        return KeyMatch(groups, groups < 0, np.zeros(len(groups), np.bool_))

    def expected(
        self, records: FormedRecords, members: MemberTable, *, are_joined: bool = False
    ) -> Int32s:
        """The groups of :meth:`match`, found by a dict of keys."""
        found = [0 if key in self.place_of else NOWHERE for key in records.keys.tolist()]
        return np.array(found, np.int32)

    def _refuse_twice(self) -> None:
        # Hashes are sorted, and equal keys have equal hashes, so they are fewer than ``_ties`` rows
        # apart.
        for lag in range(1, min(self._ties, TIES_MAX + 1)):
            tied = np.flatnonzero(self.hashes[lag:] == self.hashes[:-lag])
            same = tied[self.keys.are_equal(tied, tied + lag)]
            if len(same):
                row = int(same[0])
                first, second = sorted(self.places[[row, row + lag]].tolist())
                raise InputError(
                    f"key {readable(self.keys[row])} is twice in {self.words}: in "
                    f"{self.shard_of(first)} and in {self.shard_of(second)}",
                    hint="name a result in which each key occurs once",
                )
        if self._ties > TIES_MAX:
            raise InputError(f"more than {TIES_MAX} keys of {self.words} have the same hash")

    @cached_property
    def _ties(self) -> int:
        """The largest number of keys with the same hash."""
        # The complement differs from the first hash, so the first run begins with it.
        begins = np.flatnonzero(np.diff(self.hashes, prepend=~self.hashes[:1]))
        return int(np.diff(begins, append=len(self.hashes)).max(initial=0))

    def lookup(self, keys: BytesColumn) -> Int64s:
        """The place of each of ``keys``, or ``NOWHERE``."""
        found = np.full(len(keys), NOWHERE, np.int64)
        if not len(self):
            return found
        hashes = hash_column(keys)
        first = np.searchsorted(self.hashes, hashes)
        for lag in range(self._ties):
            at = np.minimum(first + lag, len(self) - 1)
            rows = np.flatnonzero(self.hashes[at] == hashes)
            rows = rows[equal_rows(self.keys.take(at[rows]), keys.take(rows))]
            found[rows] = self.places[at[rows]]
        return found

    def shard_of(self, place: int) -> str:
        """The name of the shard with the record at ``place``."""
        ends = np.cumsum(self.counts)
        return self.shards[int(np.searchsorted(ends, place, side="right"))]

    @property
    def step(self) -> np.uint64:
        """The difference between neighbouring sort keys, which are spread over all words."""
        return np.uint64(((1 << 64) - 1) // max(len(self), 1))

    def refuse_missing(self, found: Iterable[SortKeys]) -> None:
        """``KeyMapError`` that names the first key of the result that no record has."""
        is_missing = np.ones(len(self), np.bool_)
        for keys in found:
            assert keys.words is not None, "places are words"
            is_missing[(keys.words // self.step).astype(np.int64)] = False
        what = "deduplicate leaves out a record"  # the index has that record
        missing = np.flatnonzero(is_missing)
        for place in missing[:1].tolist():
            key = readable(self.keys[int(np.flatnonzero(self.places == place)[0])])
            count = agreed(f"{len(missing):,} [record|records]", len(missing))
            what = f"inputs lack {count}: {key} of shard {self.shard_of(place)}"
        hint = "add the records to the inputs, or name a result whose records are all there"
        raise KeyMapError(f"{what} of {self.words}", hint=hint)

    @cached_property
    def place_of(self) -> dict[bytes, int]:
        """The place of each key, for looking up one at a time."""
        return dict(zip(self.keys.tolist(), self.places.tolist(), strict=True))

    def digest(self) -> str:
        """A digest that is the same for places that order and cut all records in the same way."""
        state = xxhash.xxh3_128(repr((self.shards, self.counts)).encode(errors="surrogateescape"))
        for column in (self.keys.offsets, self.keys.blob, self.places):
            state.update(np.ascontiguousarray(column).data.cast("B"))
        return state.hexdigest()


class Like(Algorithm, frozen=True, kw_only=False):
    """By the places of the keys in another result. No spec names it: ``like`` does."""

    known: KeyPlaces

    kind: ClassVar[str] = "like"
    summary: ClassVar[str] = ""
    words: ClassVar[str] = "as another result, by key"
    spreads_evenly: ClassVar[bool] = True
    needs_keys: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    @property
    def has_texts(self) -> bool:
        """False: places are words."""
        return False

    def sort_keys(self, records: RecordTable) -> SortKeys:
        """The places, spread over all words. Records without a place are dropped later."""
        places = np.maximum(self.known.lookup(records.keys), 0).astype(np.uint64)
        return SortKeys(len(records), words=places * self.known.step)

    def expected(self, record: Record) -> SortValue | None:
        """The place."""
        return SortValue(1, self.known.place_of.get(record.key, NOWHERE))
