"""Requests about the lots that records draw (random numbers), and files of borders and of classes.

If outputs have exact numbers of records, the index of the stage ``drawn`` has two more columns: the
class of each record, and its lot in the class (see ``transforms.outputs``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from dsort.data.columns import Int32s, Int64s, UInt64s
from dsort.data.index import KEY_HASH, ORDINAL
from dsort.data.shares import lots_of
from dsort.errors import damaged
from dsort.order.class_numbers import ClassCounts
from dsort.scratch.columns import ColumnFile, columns_bytes
from dsort.scratch.index import IndexStore
from dsort.scratch.positions import POSITION_SHARD
from dsort.transforms.outputs import BORDERS_MAX, Borders, positions_of


def borders_bytes(borders: Borders) -> bytes:
    """The content of a file of borders."""
    lot, position = borders.lot.reshape(-1), borders.position.reshape(-1)
    return columns_bytes({"classes": borders.classes, "lot": lot, "position": position})


def borders_of(file: ColumnFile, what: str, outputs: int) -> Borders:
    """The borders in a file, which may have been in a bucket. ``StorageError`` if they are not for
    so many ``outputs``."""
    classes, lot, position = (file.array(name) for name in ("classes", "lot", "position"))
    sizes = {len(lot), len(position), len(classes) * (outputs - 1)}
    are_numbers = all(each.dtype == np.uint64 for each in (classes, lot, position))
    if len(sizes) > 1 or not are_numbers or (classes[1:] <= classes[:-1]).any():
        raise damaged(what, "it has no borders of these outputs")
    shape = (len(classes), outputs - 1)
    return Borders(classes, lot.reshape(shape), position.reshape(shape))


Drawn = tuple[UInt64s, UInt64s, UInt64s]


class Draws(Protocol):
    """The lots that the records of some shards draw."""

    def on(self, shards: Int64s) -> Draws:
        """The same draws, for ``shards``."""

    def each(self, store: IndexStore) -> Iterator[Drawn]:
        """Yield (class, lot, position) of the records of each shard."""


class IndexDraws(Struct, frozen=True):
    """The lots in the index of the survey ``stage``, without those of records at positions in the
    file ``drop`` ("": none)."""

    stage: str
    drop: str
    shards: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))

    def on(self, shards: Int64s) -> IndexDraws:
        """See :class:`Draws`."""
        return replace(self, shards=shards)

    def each(self, store: IndexStore) -> Iterator[Drawn]:
        """See :class:`Draws`."""
        for shard in self.shards.tolist():
            classes, lots, ordinal = store.lots(self.stage, shard)
            if self.drop:
                drop = store.positions(self.drop)
                kept = ~drop.contains(np.broadcast_to(shard, len(ordinal)), ordinal)
                classes, lots, ordinal = classes[kept], lots[kept], ordinal[kept]
            yield classes, lots, positions_of(shard, ordinal)


class KeyDraws(Struct, frozen=True):
    """The lots that keys draw in their input; the number of the input is the class. ``inputs``: the
    number of each shard's input; ``names``: of the inputs (see ``data.shares``)."""

    stage: str
    seed: str
    names: tuple[str, ...]
    inputs: Int32s
    shards: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))

    def on(self, shards: Int64s) -> KeyDraws:
        """See :class:`Draws`."""
        assert not len(self.shards), "these are of some shards already"
        return replace(self, shards=shards, inputs=self.inputs[shards])

    def each(self, store: IndexStore) -> Iterator[Drawn]:
        """See :class:`Draws`."""
        for shard, number in zip(self.shards.tolist(), self.inputs.tolist(), strict=True):
            found = store.key_hashes(self.stage, shard)
            lots = lots_of(found[KEY_HASH], self.seed, self.names[number])
            classes = np.full(len(found), number, np.uint64)
            yield classes, lots, positions_of(found[POSITION_SHARD], found[ORDINAL])


class DrawnClasses(Struct, frozen=True):
    """Requests (the classes of the records of some shards, ascending; the number of records of
    each). Of more than ``BORDERS_MAX`` classes, only one more than that is returned."""

    draws: IndexDraws

    def answer(self, store: IndexStore) -> tuple[UInt64s, Int64s]:
        known, counts = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        for classes, _, _ in self.draws.each(store):
            found, own = np.unique(classes, return_counts=True)
            known, inverse = np.unique(np.concatenate([known, found]), return_inverse=True)
            sums = np.zeros(len(known), np.int64)
            np.add.at(sums, inverse, np.concatenate([counts, own]))
            known, counts = known[: BORDERS_MAX + 1], sums[: BORDERS_MAX + 1]
        return known, counts


class LotSteps(Struct, frozen=True):
    """Requests, for each border that is searched, how many records of some shards are in each of
    ``2**bits`` steps of ``2**shift`` from ``low`` on. The values are lots; or, for records with the
    lot ``tied``, positions.

    ``classes``: all of them. ``searched``: by class and border, the row of ``low`` and ``tied``, or
    -1. The answer has one row for each row of ``low``."""

    draws: Draws
    classes: UInt64s
    searched: Int32s
    low: UInt64s
    shift: int
    bits: int
    tied: UInt64s | None = None

    def answer(self, store: IndexStore) -> Int64s:
        counts = np.zeros(len(self.low) << self.bits, np.int64)
        for classes, lots, positions in self.draws.each(store):
            at = np.searchsorted(self.classes, classes)
            for border in range(self.searched.shape[1]):
                row = self.searched[at, border]
                some = np.flatnonzero(row >= 0)
                row, value = row[some], (lots if self.tied is None else positions)[some]
                inside = value >= self.low[row]
                if self.tied is not None:
                    inside &= lots[some] == self.tied[row]
                row, value = row[inside], value[inside]
                step = (value - self.low[row]) >> np.uint64(self.shift)
                near = step < np.uint64(1 << self.bits)
                place = (row[near].astype(np.int64) << self.bits) + step[near].astype(np.int64)
                counts += np.bincount(place, minlength=len(counts))
        return counts.reshape(-1, 1 << self.bits)


def class_table_bytes(offsets: Int64s, classes: ClassCounts) -> bytes:
    """The content of the file. ``offsets``: where the rows of each shard begin, and the end."""
    return columns_bytes(
        {
            "offsets": offsets,
            "group": classes.group,
            "name": classes.name,
            "count": classes.count,
            "first": classes.first,
            "total": classes.total,
        }
    )


def classes_of_shard(file: ColumnFile, shard: int) -> ClassCounts:
    """The rows of one shard."""
    start, stop = file.array("offsets", shard, shard + 2).tolist()
    return ClassCounts(
        group=file.array("group", start, stop),
        name=file.bytes_column("name", start, stop),
        count=file.array("count", start, stop),
        first=file.array("first", start, stop),
        total=file.array("total", start, stop),
    )


def check_class_table(data: bytes, what: str, *, shards: int) -> None:
    """``StorageError`` unless ``data`` is such a file, for so many shards. Needed for a file that
    is read back from a bucket."""
    file = ColumnFile(data, what)
    offsets = file.array("offsets")
    rows = int(offsets[-1]) if len(offsets) == shards + 1 else -1
    if rows < 0 or offsets[0] != 0 or (np.diff(offsets) < 0).any():
        raise damaged(what, "it is about other shards")
    numbers = {name: file.array(name, 0, rows) for name in ("count", "first", "total")}
    if any(column.dtype != np.int64 for column in (offsets, *numbers.values())):
        raise damaged(what, "it has numbers of another kind")
    if file.array("group", 0, rows).dtype != np.int32:
        raise damaged(what, "it has numbers of another kind")
    if (np.diff(file.bytes_column("name", 0, rows).offsets) < 0).any():
        raise damaged(what, "names end before they begin")
    count, first, total = numbers.values()
    fits = (count > 0) & (first >= 0) & (first <= total - count) & (total < 1 << 53)
    if not fits.all():
        raise damaged(what, "it has counts that are none")
