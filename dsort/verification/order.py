"""Checks the order of the outputs: sort keys, made from their own records, may not go backwards.

The comparison is plain and slow on purpose (a microsecond a record): Python compares values one
after the other, without the words and partitions that a job sorts with.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from dsort.data.columns import Bools
from dsort.moves.input_shard import ShardBytes
from dsort.order.base import Algorithm, Record, SortValue
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

    def __init__(self, pipeline: Pipeline, algorithm: Algorithm, *, has_keys: bool = True) -> None:
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
