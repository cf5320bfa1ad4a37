"""The order in which a loader reads, its position in it, and figures about it."""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Final, Literal

import numpy as np
import xxhash
from msgspec import Struct

from dsort.data.columns import Int64s, offsets_of
from dsort.data.hashes import permuted
from dsort.errors import SpecError, SpecProblem

__all__ = [
    "EpochOrder",
    "LoaderCheck",
    "OrderKind",
    "Position",
    "Remainder",
    "Steps",
    "check_batches",
]

_WINDOW: Final = re.compile(r"window\(([1-9][0-9]{0,5})\)")
_WINDOWS_KEPT: Final = 4
_SHARDS, _WINDOWS, _RECORDS = 1, 2, 3


class OrderKind(Struct, frozen=True):
    """The kind of order. ``window``: the number of shards that are read side by side; 0: shards in
    the order of the dataset. ``is_of_records``: one permutation of all records, which reads no
    shard forward."""

    window: int
    is_of_records: bool = False

    @classmethod
    def parse(cls, text: str) -> OrderKind:
        """``sequential``, ``shards``, ``window(k)`` or ``records``. ``SpecError`` for anything
        else."""
        if text == "sequential":
            return cls(0)
        if text == "shards":
            return cls(1)
        if text == "records":
            return cls(0, is_of_records=True)
        found = _WINDOW.fullmatch(text)
        if found is None:
            hint = "sequential, shards, records or window(k), such as window(8)"
            raise SpecError([SpecProblem("order", f"there is no order {text}", hint)])
        return cls(int(found[1]))

    def __str__(self) -> str:
        names = {0: "records" if self.is_of_records else "sequential", 1: "shards"}
        return names.get(self.window, f"window({self.window})")


class EpochOrder:
    """The order of one epoch. ``counts``: the records of each shard, shape ``(shards,)``."""

    def __init__(self, counts: Int64s, digest: str, seed: int, epoch: int, kind: OrderKind) -> None:
        self.counts = counts
        self.digest = digest
        self.seed = seed
        self.epoch = epoch
        self.kind = kind
        count = len(counts)
        self._shards = np.arange(count, dtype=np.int64)
        if self.kind.window:
            self._shards = self._permuted(count, _SHARDS, 0)
        self._ends = offsets_of(self.counts[self._shards])
        self._windows: OrderedDict[int, tuple[Int64s, Int64s]] = OrderedDict()

    @property
    def records(self) -> int:
        """The number of places."""
        return int(self._ends[-1])

    def locate(self, places: Int64s) -> tuple[Int64s, Int64s]:
        """(shard, number in the shard) of the record at each place, shapes ``(n,)``."""
        if self.kind.is_of_records:
            places = self._drawn(places, self.records, _RECORDS, 0)
        if self.kind.window <= 1:
            at = np.searchsorted(self._ends, places, "right") - 1
            return self._shards[at], places - self._ends[at]
        width = self.kind.window
        at = np.searchsorted(self._ends, places, "right") - 1
        windows = at // width
        shards, numbers = np.empty_like(places), np.empty_like(places)
        for window in np.unique(windows).tolist():
            inside = windows == window
            of_place, number = self._window(window)
            rest = places[inside] - self._ends[window * width]
            shards[inside] = self._shards[window * width + of_place[rest]]
            numbers[inside] = number[rest]
        return shards, numbers

    def _window(self, window: int) -> tuple[Int64s, Int64s]:
        """For each place of a window: (number of the shard in the window, number of the record in
        the shard)."""
        known = self._windows.get(window)
        if known is not None:
            return known
        first = window * self.kind.window
        ends = self._ends[first : first + self.kind.window + 1] - self._ends[first]
        drawn = self._permuted(int(ends[-1]), _WINDOWS, window)
        shard = np.searchsorted(ends, drawn, "right") - 1
        # A stable sort keeps the places of a shard in order, so the shard is read forward.
        by_shard = np.argsort(shard, kind="stable")
        number = np.empty_like(shard)
        number[by_shard] = np.arange(len(shard)) - ends[shard[by_shard]]
        self._windows[window] = shard, number
        while len(self._windows) > _WINDOWS_KEPT:
            self._windows.popitem(last=False)
        return shard, number

    def _permuted(self, total: int, what: int, number: int) -> Int64s:
        """A random permutation of ``total`` numbers for this epoch. ``what`` and ``number`` name
        its purpose; each purpose has its own permutation."""
        return self._drawn(np.arange(total, dtype=np.int64), total, what, number)

    def _drawn(self, places: Int64s, total: int, what: int, number: int) -> Int64s:
        """The numbers at ``places`` of the permutation that ``_permuted`` describes."""
        text = f"{self.digest}\0{self.seed}\0{self.epoch}\0{what}\0{number}"
        seed = np.uint64(xxhash.xxh3_64_intdigest(text.encode()))
        count = len(places)
        return permuted(places, np.full(count, total), np.full(count, seed))


Remainder = Literal["drop_last", "pad", "wrap"]


class Position(Struct, frozen=True):
    """How far a stream was read: ``records_seen`` records of ``epoch``, by all ranks together."""

    epoch: int
    records_seen: int


class Steps(Struct, frozen=True):
    """The steps of the rest of an epoch of ``records`` records, from ``begin`` on. ``batch_size``:
    samples of one rank and step."""

    records: int
    begin: Position
    rank: int
    world_size: int
    batch_size: int
    remainder: Remainder

    @property
    def global_batch(self) -> int:
        """The number of places of one step."""
        return self.world_size * self.batch_size

    @property
    def count(self) -> int:
        """The number of steps: the same for all ranks."""
        left = self.records - self.begin.records_seen
        if self.remainder == "drop_last":
            return left // self.global_batch
        return -(-left // self.global_batch)

    def places(self, first: int, stop: int, stride: int = 1) -> Int64s:
        """The places that this rank reads in the steps ``range(first, stop, stride)``, in order,
        shape ``(steps * batch_size,)``. Places from ``records`` on fill up the last step."""
        steps = np.arange(first, stop, stride, dtype=np.int64)
        begins = self.begin.records_seen + steps * self.global_batch + self.rank * self.batch_size
        return (begins[:, np.newaxis] + np.arange(self.batch_size)).reshape(-1)

    def after(self, steps: int) -> Position:
        """The position after ``steps`` steps."""
        seen = self.begin.records_seen + steps * self.global_batch
        if steps < self.count:
            return Position(self.begin.epoch, seen)
        if self.remainder == "wrap":
            return Position(self.begin.epoch + seen // self.records, seen % self.records)
        return Position(self.begin.epoch + 1, 0)


class LoaderCheck(Struct, frozen=True):
    """How well the next ``steps`` steps are mixed, counted over all ranks.

    ``records``: the places that were counted. ``coverage``: the share of the epoch's records among
    them, 0..1. ``duplicates``: how many places repeat the record of an earlier place, which a
    padded last step does. ``shards_a_step``: the average number of shards that the records of a
    step come from. ``neighbours``: the share of records that come directly after their neighbour in
    the shard: 1 for reading in sequence, about 1/k for a window of k shards of one size.
    """

    steps: int
    records: int
    coverage: float
    duplicates: int
    shards_a_step: float
    neighbours: float

    def __str__(self) -> str:
        return (
            f"{self.steps:,} steps, {self.records:,} records: {self.coverage:.2%} of the epoch, "
            f"{self.duplicates:,} twice; {self.shards_a_step:.1f} shards a step, "
            f"{self.neighbours:.0%} beside their neighbours"
        )


def check_batches(
    shards: Int64s, rows: Int64s, step_records: int, epoch_records: int
) -> LoaderCheck:
    """The figures of whole steps. ``shards`` and ``rows``: the record at each place, shapes
    ``(n,)``. ``step_records``: the number of places of a step."""
    places = len(shards)
    width = int(rows.max()) + 1 if places else 1
    distinct = len(np.unique(shards * width + rows))
    steps = places // step_records
    per_step = [len(np.unique(part)) for part in np.split(shards, steps)] if steps else []
    follows = (np.diff(shards) == 0) & (np.diff(rows) == 1)
    return LoaderCheck(
        steps=steps,
        records=places,
        coverage=distinct / epoch_records,
        duplicates=places - distinct,
        shards_a_step=float(np.mean(per_step)) if per_step else 0.0,
        neighbours=float(follows.mean()) if places > 1 else 0.0,
    )
