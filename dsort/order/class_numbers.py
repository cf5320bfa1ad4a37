"""Numbers records within their classes: how many records of its class come before a record, and how
many there are in all.

A *class* is a set of records with the same label, or all records. The counts that a survey makes of
each shard become one table for all shards; a worker gets the rows of its shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from dsort.data.columns import BytesColumn, Int32s, Int64s
from dsort.data.hashes import earlier_equal, permuted
from dsort.errors import InvariantError

CLASSES_MAX: Final = 1 << 16
"""The limit on classes: each class is a row for each shard that has it."""

Class = tuple[int, bytes]
"""The output of its records, and the value that they have in common."""


class ClassCounts(Struct, frozen=True, eq=False):
    """How many records of each class a shard has; columns of shape ``(n,)``. Over all shards,
    ``first``: how many records of the class are in earlier shards; ``total``: how many the class
    has."""

    group: Int32s
    name: BytesColumn
    count: Int64s
    first: Int64s
    total: Int64s


class ClassPlaces(Struct, frozen=True, eq=False):
    """For each record: its place among all records of its class, which depends on the seed, and the
    number of these; shapes ``(n,)``."""

    place: Int64s
    total: Int64s


def class_seed(seed: str, group: int, name: bytes) -> int:
    """The seed of the places of one class."""
    import xxhash  # not loaded by help texts, which load this module

    outer = xxhash.xxh3_64_intdigest(f"class {seed}".encode("utf-8", "surrogateescape"))
    return xxhash.xxh3_64_intdigest(b"%d\0%b" % (group, name), seed=outer)


def count_classes(group: Int32s, names: BytesColumn) -> list[tuple[Class, int]]:
    """How many records each class has, in the order of their first records."""
    found: dict[Class, int] = {}
    for key in _classes(group, names):
        found[key] = found.get(key, 0) + 1
    return [*found.items()]


def _classes(group: Int32s, names: BytesColumn) -> list[Class]:
    if not len(names.blob):
        return [(each, b"") for each in group.tolist()]
    return [*zip(group.tolist(), names.tolist(), strict=True)]


class ClassCounter:
    """Numbers the records of one shard, some at a time, in input order."""

    def __init__(self, shard: str, counts: ClassCounts, seed: str) -> None:
        self.shard = shard
        self.counts = counts
        keys = _classes(counts.group, counts.name)
        self._rows = {key: row for row, key in enumerate(keys)}
        self._seeds = np.array([class_seed(seed, *key) for key in keys], np.uint64)
        self._seen = np.zeros(len(keys), np.int64)
        self._uncounted = 0

    def places(self, group: Int32s, names: BytesColumn) -> ClassPlaces:
        """The places of the next records."""
        if not self._rows:  # a damaged table: the damage is found again behind these records
            self._uncounted += len(group)
            return ClassPlaces(np.zeros(len(group), np.int64), np.ones(len(group), np.int64))
        try:
            classes = [self._rows[key] for key in _classes(group, names)]
        except KeyError as error:
            raise self._changed(f"has a record of the class {error}") from None
        row = np.array(classes, np.int64)
        number = self.counts.first[row] + self._seen[row] + earlier_equal(row)
        self._seen += np.bincount(row, minlength=len(self._seen))
        total = self.counts.total[row]
        return ClassPlaces(permuted(number, total, self._seeds[row]), total)

    def finish(self) -> None:
        """``InvariantError`` if the records are not those that were counted."""
        if self._uncounted or not np.array_equal(self._seen, self.counts.count):
            raise self._changed(f"has {int(self._seen.sum()) + self._uncounted} records")

    def _changed(self, what: str) -> InvariantError:
        counted = int(self.counts.count.sum())
        return InvariantError(
            f"shard {self.shard} {what}, unlike the {counted} records of a survey"
        )


def classes_of_all(counts: Sequence[Sequence[tuple[Class, int]]]) -> tuple[Int64s, ClassCounts]:
    """Return (start of each shard's rows, and the end of the last; the rows). ``counts``: the
    classes of all shards, in input order."""
    totals: dict[Class, int] = {}
    keys: list[Class] = []
    own: list[int] = []
    first: list[int] = []
    for shard in counts:
        for key, count in shard:
            before = totals.get(key, 0)
            keys.append(key)
            own.append(count)
            first.append(before)
            totals[key] = before + count
    table = ClassCounts(
        group=np.array([group for group, _ in keys], np.int32),
        name=BytesColumn.of([name for _, name in keys]),
        count=np.array(own, np.int64),
        first=np.array(first, np.int64),
        total=np.array([totals[key] for key in keys], np.int64),
    )
    return np.cumsum([0, *map(len, counts)]), table
