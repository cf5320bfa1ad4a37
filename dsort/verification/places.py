"""Where a shuffle by numbers places each input record, worked out again from the inputs.

The permutation is that of the job (``data.permutation``). All else is plain Python: records are
counted and sorted one by one, without the words and partitions that a job sorts with.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping

import numpy as np
from msgspec import Struct, field

from dsort.data.columns import Int32s, Int64s, UInt64s
from dsort.data.hashes import permuted
from dsort.order.base import Record, SortValue
from dsort.order.batches import Batches, batch_hash
from dsort.order.class_numbers import class_seed
from dsort.order.placement import WORDS, Placement


class PlaceFacts(Struct):
    """The facts of each input record that the placement reads, shard by shard."""

    placement: Placement
    _names: dict[bytes, int] = field(default_factory=dict)
    _classes: dict[int, array[int]] = field(default_factory=dict)
    _ranks: dict[int, array[int]] = field(default_factory=dict)
    _values: dict[int, array[float]] = field(default_factory=dict)

    def look(self, shard: int, records: Iterable[Record]) -> None:
        """Read the facts of the ``records`` of the input shard with this ordinal."""
        classes, ranks, values = array("i"), array("b"), array("d")
        for record in records:
            found = self.placement.expected(record) or SortValue(1, None)
            ranks.append(found.rank)
            name = found.value if isinstance(found.value, bytes) else b""
            classes.append(self._names.setdefault(name, len(self._names)))
            values.append(found.value if isinstance(found.value, (int, float)) else 0.0)
        self._classes[shard], self._ranks[shard], self._values[shard] = classes, ranks, values

    def places(self, group: Int32s | None, hashes: UInt64s, seed: str) -> UInt64s:
        """A number for each record, in input order, by which the records of each output are
        ordered. ``group``: the output of each record; ``hashes``: its hash in the shuffle."""
        rows = range(len(hashes))
        classes = [each for shard in sorted(self._classes) for each in self._classes[shard]]
        groups = [0] * len(rows) if group is None else group.tolist()
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
