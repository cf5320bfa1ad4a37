"""The order of another result: records come in the places that their keys have there (``like``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
import xxhash
from msgspec import Struct

from dsort.data.columns import BytesColumn, Int64s, UInt64s, equal_rows
from dsort.data.index import SortKeys
from dsort.data.numbered import hash_column
from dsort.errors import InputError
from dsort.naming.names import readable
from dsort.order.base import Algorithm, Record, SortValue

if TYPE_CHECKING:
    from dsort.data.record_table import RecordTable

NOWHERE: Final = -1
TIES_MAX: Final = 16
"""More keys with one hash are chosen to have it, and each would be compared with all others."""


class KeyPlaces(Struct, frozen=True, eq=False, dict=True):
    """The place of each key in a result. ``names``, ``counts``: of its shards, in its order.
    ``keys``: all keys, in the order of their ``hashes``; ``places``: the number of the record of
    each, counted through all shards. Shapes ``(n,)``. ``result``: the result, in words."""

    result: str
    names: tuple[str, ...]
    counts: tuple[int, ...]
    keys: BytesColumn
    hashes: UInt64s
    places: Int64s

    @classmethod
    def of(cls, result: str, shards: Iterable[tuple[str, Sequence[bytes]]]) -> KeyPlaces:
        """The places of the keys of ``shards``, each with its name. ``InputError`` if a key is in
        them twice."""
        names, counts, columns = list[str](), list[int](), list[BytesColumn]()
        for name, keys in shards:
            names.append(name)
            counts.append(len(keys))
            columns.append(BytesColumn.of(keys))
        column = BytesColumn.concat(columns)
        hashes = hash_column(column)
        places = np.argsort(hashes, kind="stable")
        found = cls(
            result, tuple(names), tuple(counts), column.take(places), hashes[places], places
        )
        found._refuse_twice()
        return found

    def __len__(self) -> int:
        return len(self.places)

    def _refuse_twice(self) -> None:
        for lag in range(1, min(self._ties, TIES_MAX + 1)):
            tied = np.flatnonzero(self.hashes[lag:] == self.hashes[:-lag])
            same = tied[equal_rows(self.keys.take(tied), self.keys.take(tied + lag))]
            if len(same):
                row = int(same[0])
                first, second = sorted(self.places[[row, row + lag]].tolist())
                raise InputError(
                    f"key {readable(self.keys[row])} is twice in {self.result}: in "
                    f"{self.shard_of(first)} and in {self.shard_of(second)}",
                    hint="like takes a result in which each key is once",
                )
        if self._ties > TIES_MAX:
            raise InputError(f"more than {TIES_MAX} keys of {self.result} have one hash")

    @cached_property
    def _ties(self) -> int:
        """How many keys have the same hash, at most."""
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
        return self.names[int(np.searchsorted(ends, place, side="right"))]

    def key_at(self, place: int) -> bytes:
        """The key of the record at ``place``."""
        return self.keys[int(np.flatnonzero(self.places == place)[0])]

    @cached_property
    def place_of(self) -> dict[bytes, int]:
        """The place of each key, for looking up one at a time."""
        return dict(zip(self.keys.tolist(), self.places.tolist(), strict=True))

    def digest(self) -> str:
        """A digest that is the same for places that order and cut all records the same."""
        state = xxhash.xxh3_128(repr((self.names, self.counts)).encode(errors="surrogateescape"))
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

    @property
    def _step(self) -> int:
        return ((1 << 64) - 1) // max(len(self.known), 1)

    def sort_keys(self, records: RecordTable) -> SortKeys:
        """The places, spread over all words. Records without a place are dropped later."""
        places = np.maximum(self.known.lookup(records.keys), 0).astype(np.uint64)
        return SortKeys(len(records), words=places * np.uint64(self._step))

    def places_of(self, keys: SortKeys) -> Int64s:
        """The places that have these sort keys."""
        assert keys.words is not None, "places are words"
        return (keys.words // np.uint64(self._step)).astype(np.int64)

    def expected(self, record: Record) -> SortValue | None:
        """The place."""
        return SortValue(1, self.known.place_of.get(record.key, NOWHERE))
