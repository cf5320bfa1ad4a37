"""Checks the order of the outputs: sort keys may not go backwards, shuffled records are in place.

Both are plain and slow on purpose (a microsecond a record), without the words and partitions that a
job sorts with."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from msgspec import Struct, field

from dsort.data.columns import Bools, Int32s, Int64s, UInt64s
from dsort.data.hashes import permuted
from dsort.moves.input_shard import ShardBytes
from dsort.order.base import Algorithm, Record, SortValue
from dsort.order.class_numbers import class_seed
from dsort.order.placement import WORDS, Batches, Placement, batch_hash
from dsort.pipeline.pipeline import Pipeline
from dsort.verification.read import ShardRecords


class _Record(Struct, frozen=True):
    """One record of an output shard, as algorithms read it."""

    shard: ShardBytes
    records: ShardRecords
    row: int
    key: bytes
    are_rows: bool

    @property
    def first_name(self) -> bytes:
        """The name of its first member."""
        return self.records.members.names[int(self.records.rows_of(self.row)[0])]

    @property
    def payload_bytes(self) -> int:
        """The total size of its members, without headers and padding."""
        return int(self.records.members.payload_bytes[self.records.rows_of(self.row)].sum())

    @property
    def is_json_alone(self) -> bool:
        """Whether it is a ``.json`` member, and nothing else."""
        rows, records = self.records.rows_of(self.row), self.records
        if len(rows) > 1 or self.are_rows:
            return False
        return records.members.names[rows[0]][int(records.key_bytes[rows[0]]) :] == b".json"

    def content(self, extension: str) -> bytes | None:
        """The content of the last member whose whole extension this is; None if it has none."""
        wanted = extension.encode("utf-8", "surrogateescape")
        members, found = self.records.members, -1
        for row in self.records.rows_of(self.row):
            if members.names[row][int(self.records.key_bytes[row]) :] == wanted:
                found = row
        if found < 0:
            return None
        return self.shard.content(members, found)


def records_read(shard: ShardBytes, records: ShardRecords, pipeline: Pipeline) -> Iterator[Record]:
    """The records of an opened shard, as algorithms read them."""
    for row, key in enumerate(records.keys.tolist()):
        yield _Record(shard, records, row, key, pipeline.moves_rows)


class OrderSeen(Struct, frozen=True, eq=False):
    """``ties``: records whose sort key equals that of the record before them; ``backwards``: rows
    of records that belong before the record before them."""

    ties: Bools
    backwards: list[int]


class OrderWatch:
    """Checks the order of the records of all outputs, shard by shard, each template by itself."""

    def __init__(self, pipeline: Pipeline, algorithm: Algorithm, *, has_keys: bool) -> None:
        """``has_keys``: whether the outputs hold the keys of their records."""
        self._pipeline = pipeline
        self._algorithm = algorithm
        self._unknown = algorithm.decided_by_inputs or (algorithm.asks_for_keys and not has_keys)
        self._last: dict[int, SortValue | None] = {}

    def look(self, group: int, shard: ShardBytes, records: ShardRecords) -> OrderSeen:
        """Check the next shard of a template."""
        ties = np.zeros(len(records), np.bool_)
        backwards: list[int] = []
        if self._unknown:
            return OrderSeen(ties, backwards)
        last = self._last.get(group)
        for record, each in enumerate(records_read(shard, records, self._pipeline)):
            value = self._algorithm.expected(each)
            if last is not None and value is not None:
                if last.comes_after(value, decreasing=self._algorithm.decreasing):
                    backwards.append(record)
                elif last == value:
                    ties[record] = True
            last = value
        self._last[group] = last
        return OrderSeen(ties, backwards)


class HashPlaces(Struct, frozen=True):
    """The places of records that are ordered by their hashes alone."""

    def look(self, shard: int, records: Iterable[Record]) -> None:
        """Read the facts of the ``records`` of the input shard with this ordinal."""

    def places(self, group: Int32s, hashes: UInt64s, seed: str) -> UInt64s:
        """A number for each record, in input order, by which the records of each output are
        ordered. ``group``: the output of each record; ``hashes``: its hash in the shuffle."""
        return hashes


class PlaceFacts(HashPlaces, frozen=True):
    """The places of records by the facts that the placement reads of each, shard by shard."""

    placement: Placement
    _names: dict[bytes, int] = field(default_factory=dict)
    _classes: dict[int, array[int]] = field(default_factory=dict)
    _ranks: dict[int, array[int]] = field(default_factory=dict)
    _values: dict[int, array[float]] = field(default_factory=dict)

    def look(self, shard: int, records: Iterable[Record]) -> None:
        classes, ranks, values = array("i"), array("b"), array("d")
        for record in records:
            found = self.placement.expected(record) or SortValue(1, None)
            ranks.append(found.rank)
            name = found.value if isinstance(found.value, bytes) else b""
            classes.append(self._names.setdefault(name, len(self._names)))
            values.append(found.value if isinstance(found.value, (int, float)) else 0.0)
        self._classes[shard], self._ranks[shard], self._values[shard] = classes, ranks, values

    def places(self, group: Int32s, hashes: UInt64s, seed: str) -> UInt64s:
        classes = [each for shard in sorted(self._classes) for each in self._classes[shard]]
        groups = group.tolist()
        place, total = self._drawn([*zip(groups, classes, strict=True)], seed)
        if not isinstance(self.placement, Batches):
            step = np.uint64(WORDS) // total.astype(np.uint64)
            return place.astype(np.uint64) * step + hashes % step
        return self._in_batches(groups, place.tolist(), total.tolist(), seed)

    def _drawn(self, classes: list[tuple[int, int]], seed: str) -> tuple[Int64s, Int64s]:
        """(place, number of places) of each record in its class."""
        names = [*self._names]
        seen: dict[tuple[int, int], int] = {}
        numbers = []
        for each in classes:
            number = seen.get(each, 0)
            seen[each] = number + 1
            numbers.append(number)
        seeds = {each: class_seed(seed, each[0], names[each[1]]) for each in seen}
        total = np.array([seen[each] for each in classes], np.int64)
        drawn = np.array([seeds[each] for each in classes], np.uint64)
        return permuted(np.array(numbers, np.int64), total, drawn), total

    def _in_batches(
        self, groups: list[int], place: list[int], total: list[int], seed: str
    ) -> UInt64s:
        placement = self.placement
        assert isinstance(placement, Batches), "others have no batches"
        ranks = [each for shard in sorted(self._ranks) for each in self._ranks[shard]]
        values = [each for shard in sorted(self._values) for each in self._values[shard]]
        window, size = placement.window_records, placement.records
        windows: dict[tuple[int, int], list[int]] = {}
        for row, (group, at) in enumerate(zip(groups, place, strict=True)):
            windows.setdefault((group, at // window), []).append(row)
        places = np.zeros(len(place), np.uint64)
        for (group, number), rows in windows.items():
            rows.sort(key=lambda row: (ranks[row], values[row], place[row]))
            word = number * (WORDS // -(-total[rows[0]] // window))
            whole = len(rows) // size
            drawn = sorted(range(whole), key=_hashes(seed, group, word, whole).__getitem__)
            for turn, batch in enumerate([*drawn, whole]):
                own = rows[batch * size : (batch + 1) * size]
                for within, row in enumerate(own):
                    places[row] = number * window + turn * size + within
        return places


def _hashes(seed: str, group: int, word: int, count: int) -> Mapping[int, int]:
    return {batch: batch_hash(seed, group, word, batch) for batch in range(count)}
