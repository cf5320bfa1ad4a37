"""What nodes are asked about the lots that records draw, and how they are stored.

The index of the stage ``drawn`` of a job whose outputs get exact numbers of records has two columns
more: the class of each record, and its lot in it (see ``transforms.borders``)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsort.data.columns import Int32s, Int64s, UInt64s
from dsort.errors import StorageError
from dsort.scratch.columns import ColumnFile, columns_bytes
from dsort.scratch.index import IndexStore
from dsort.transforms.borders import BORDERS_MAX, Borders, positions_of

__all__ = ["ClassCounts", "LotSteps", "borders_bytes", "borders_of"]


def borders_bytes(borders: Borders) -> bytes:
    """A file of borders."""
    lot, position = borders.lot.reshape(-1), borders.position.reshape(-1)
    return columns_bytes({"classes": borders.classes, "lot": lot, "position": position})


def borders_of(file: ColumnFile, what: str, outputs: int) -> Borders:
    """The borders in a file, which may have been in a bucket. ``StorageError`` if it has none for
    so many ``outputs``."""
    classes, lot, position = (file.array(name) for name in ("classes", "lot", "position"))
    sizes = {len(lot), len(position), len(classes) * (outputs - 1)}
    are_numbers = all(each.dtype == np.uint64 for each in (classes, lot, position))
    if len(sizes) > 1 or not are_numbers or (classes[1:] <= classes[:-1]).any():
        hint = "the job cannot be resumed; start it again"
        raise StorageError(f"{what} is damaged: it has no borders of these outputs", hint=hint)
    shape = (len(classes), outputs - 1)
    return Borders(classes, lot.reshape(shape), position.reshape(shape))


@dataclass(frozen=True, slots=True)
class _Drawn:
    """The lots of one shard's records, those left out that are at positions in the file ``drop``
    ("": none)."""

    stage: str
    drop: str

    def of(self, store: IndexStore, shard: int) -> tuple[UInt64s, UInt64s, UInt64s]:
        """(class, lot, position) of each."""
        classes, lots, ordinal = store.lots(self.stage, shard)
        if self.drop:
            kept = ~store.positions(self.drop).hold(np.broadcast_to(shard, len(ordinal)), ordinal)
            classes, lots, ordinal = classes[kept], lots[kept], ordinal[kept]
        return classes, lots, positions_of(shard, ordinal)


@dataclass(frozen=True, slots=True)
class ClassCounts:
    """(the classes of the records of some shards, ascending; how many each has); of more than
    ``BORDERS_MAX`` only the first one more."""

    stage: str
    shards: Int64s
    drop: str

    def answer(self, store: IndexStore) -> tuple[UInt64s, Int64s]:
        known, counts = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        for shard in self.shards.tolist():
            found, own = np.unique(
                _Drawn(self.stage, self.drop).of(store, shard)[0], return_counts=True
            )
            known, inverse = np.unique(np.concatenate([known, found]), return_inverse=True)
            sums = np.zeros(len(known), np.int64)
            np.add.at(sums, inverse, np.concatenate([counts, own]))
            known, counts = known[: BORDERS_MAX + 1], sums[: BORDERS_MAX + 1]
        return known, counts


@dataclass(frozen=True, slots=True)
class LotSteps:
    """How many records of some shards lie in each of ``2**bits`` steps of ``2**shift`` from ``low``
    on, for each border that is searched: of lots, or, where ``tied`` says which lot, of positions.

    ``classes``: all of them. ``searched``: by class and border, the row of ``low`` and ``tied``, or
    -1. The answer has a row for each of these."""

    stage: str
    shards: Int64s
    drop: str
    classes: UInt64s
    searched: Int32s
    low: UInt64s
    shift: int
    bits: int
    tied: UInt64s | None = None

    def answer(self, store: IndexStore) -> Int64s:
        counts = np.zeros(len(self.low) << self.bits, np.int64)
        for shard in self.shards.tolist():
            classes, lots, positions = _Drawn(self.stage, self.drop).of(store, shard)
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
