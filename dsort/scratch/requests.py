"""Requests to scratch nodes, and their answers, which are read from the node's own scratch files.

Payload travels in blocks of up to ``spill.BLOCK_BYTES``, never record by record."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dsort.data.columns import BytesColumn, Int64s, UInt64s
from dsort.data.index import (
    KEY_HASH,
    KEYS,
    ORDINAL,
    ROW,
    SAME_MORE,
    SortKeys,
)
from dsort.data.table import Table
from dsort.order.class_numbers import count_classes
from dsort.scratch.columns import ColumnFile
from dsort.scratch.index import IndexStore, PartitionRows
from dsort.scratch.logs import ShardCreated, read_created_logs
from dsort.scratch.ordered import OrderedRows
from dsort.scratch.positions import POSITION_SHARD, POSITIONS


def known_keys_file(number: int) -> str:
    """The name of a file that a ``KnownKeysTask`` writes."""
    return f"known-{number}.col"


class PartitionRowsOf(Struct, frozen=True):
    """The rows of each of ``partitions`` from some shards; shards without rows are left out."""

    stage: str
    shards: Int64s
    partitions: tuple[int, ...]

    def answer(self, store: IndexStore) -> list[list[tuple[int, PartitionRows]]]:
        shards = self.shards.tolist()
        return [store.partition_rows(self.stage, shards, each) for each in self.partitions]


FOUND: Final = (KEY_HASH, POSITION_SHARD, ORDINAL, ROW)
"""The columns of the records that a search by hashes finds."""


class KeyHashes(Struct, frozen=True):
    """The records whose key hash is ``low <= hash < high`` (high 0: no upper end)."""

    stage: str
    shards: Int64s
    low: int
    high: int

    def answer(self, store: IndexStore) -> Table:
        shards = self.shards.tolist()
        found = [store.key_hashes(self.stage, shard, self.low, self.high) for shard in shards]
        return Table.concat(found, FOUND)


class SameHashes(Struct, frozen=True):
    """The same for hashes of content (``SAME_HASH``), whose first half is the hash; only records
    that are compared by content."""

    stage: str
    shards: Int64s
    low: int
    high: int

    def answer(self, store: IndexStore) -> Table:
        shards = self.shards.tolist()
        found = [store.same_hashes(self.stage, shard, self.low, self.high) for shard in shards]
        return Table.concat(found, (*FOUND, SAME_MORE))


class KnownKeysOf(Struct, frozen=True):
    """Keys that the result already has: the keys with one of the ``hashes``, which are sorted, in
    the files ``numbers``."""

    numbers: tuple[int, ...]
    hashes: UInt64s

    def answer(self, store: IndexStore) -> Table:
        found = [self._found(store.columns(known_keys_file(number))) for number in self.numbers]
        return Table.concat(found, (KEY_HASH, KEYS))

    def _found(self, file: ColumnFile) -> Table:
        known = file.array("key_hash")
        first = np.searchsorted(known, self.hashes, side="left")
        counts = np.searchsorted(known, self.hashes, side="right") - first
        starts = np.repeat(first - (np.cumsum(counts) - counts), counts)
        rows = starts + np.arange(int(counts.sum()))
        return Table.read(file, (KEY_HASH, KEYS), 0, len(known)).take(rows)


class DistinctKeyHashes(Struct, frozen=True):
    """The hashes of all record keys of some shards, each once, in ascending order."""

    stage: str
    shards: Int64s

    def answer(self, store: IndexStore) -> UInt64s:
        hashes = [store.key_hashes(self.stage, shard)[KEY_HASH] for shard in self.shards.tolist()]
        return np.unique(np.concatenate([np.zeros(0, np.uint64), *hashes]))


class PositionsOf(Struct, frozen=True):
    """The positions in a file that a worker has written."""

    name: str

    def answer(self, store: IndexStore) -> Table:
        file = store.columns(self.name)
        return Table.read(file, (*POSITIONS, KEYS), 0, file.count(POSITION_SHARD.text))


class KeysOf(Struct, frozen=True):
    """The record keys of some rows of some shards: ``rows[i]`` are rows of ``shards[i]``."""

    stage: str
    shards: tuple[int, ...]
    rows: tuple[Int64s, ...]

    def answer(self, store: IndexStore) -> BytesColumn:
        return BytesColumn.concat(
            store.keys(self.stage, shard, rows)
            for shard, rows in zip(self.shards, self.rows, strict=True)
        )


class KeysAt(Struct, frozen=True):
    """The record keys of a shard at some ``ordinals``, which are ascending. ``file``: the shard
    whose index file has the rows of this one."""

    stage: str
    file: int
    shard: int
    ordinals: Int64s

    def answer(self, store: IndexStore) -> BytesColumn:
        return store.keys_at(self.stage, self.file, self.shard, self.ordinals)


class Sampled(Struct, frozen=True, eq=False):
    """Evenly spaced records of one shard, and the number of bytes that each stands for."""

    shard: int
    sort: SortKeys
    ordinal: Int64s
    weight_bytes: Int64s


class Sample(Struct, frozen=True):
    """Up to ``rows_max`` records of each shard."""

    stage: str
    shards: Int64s
    rows_max: int

    def answer(self, store: IndexStore) -> list[Sampled]:
        found = []
        for shard in self.shards.tolist():
            sort, ordinal, weight = store.survey_sample(self.stage, shard, self.rows_max)
            if sort.count:
                found.append(Sampled(shard, sort, ordinal, weight))
        return found


class ClassCountsOf(Struct, frozen=True):
    """How many records of each class each shard has, from a survey whose sort keys are classes:
    ((output, class), number), in order of appearance."""

    stage: str
    shards: Int64s

    def answer(self, store: IndexStore) -> list[list[tuple[tuple[int, bytes], int]]]:
        found = []
        for shard in self.shards.tolist():
            sort = store.sort_keys(self.stage, shard)
            names = BytesColumn.empty(sort.count) if sort.text is None else sort.text
            found.append(count_classes(sort.group, names))
        return found


class OrderedRowsOf(Struct, frozen=True):
    """Rows ``start:stop`` of a partition in output order (stop -1: to the end)."""

    partition: int
    start: int = 0
    stop: int = -1

    def answer(self, store: IndexStore) -> OrderedRows:
        return store.ordered(self.partition, self.start, None if self.stop < 0 else self.stop)


class LineageOf(Struct, frozen=True):
    """The origins of rows ``start:stop`` of a partition in output order."""

    partition: int
    start: int
    stop: int

    def answer(self, store: IndexStore) -> Table:
        return store.lineage_rows(self.partition, self.start, self.stop)


class StoredBytesOf(Struct, frozen=True):
    """The bytes that rows ``start:stop`` of a partition, in output order, take in an output
    shard."""

    partition: int
    start: int
    stop: int

    def answer(self, store: IndexStore) -> Int64s:
        return store.stored_bytes(self.partition, self.start, self.stop)


class Indexed(Struct, frozen=True):
    """Whether each of some shards has a whole index file on this node: an array of booleans."""

    stage: str
    shards: Int64s

    def answer(self, store: IndexStore) -> NDArray[np.bool_]:
        found = (store.has_shard(self.stage, shard) for shard in self.shards.tolist())
        return np.fromiter(found, np.bool_, len(self.shards))


class Numbered(Struct, frozen=True):
    """Whether the keys of each shard's records are only their positions: an array of booleans."""

    stage: str
    shards: Int64s

    def answer(self, store: IndexStore) -> NDArray[np.bool_]:
        found = (store.are_numbered(self.stage, shard) for shard in self.shards.tolist())
        return np.fromiter(found, np.bool_, len(self.shards))


class CreatedLogs(Struct, frozen=True):
    """The output shards that workers of this node have staged, in any task."""

    def answer(self, store: IndexStore) -> list[ShardCreated]:
        return read_created_logs(store.scratch)


class LineFiles(Struct, frozen=True):
    """The size in bytes of each file of lines (see ``logs``) of one stage, by number."""

    stage: str

    def answer(self, store: IndexStore) -> dict[int, int]:
        start, end, found = f"{self.stage}-", ".jsonl", {}
        for name in store.scratch.names():
            number = name.removeprefix(start).removesuffix(end)
            if name == f"{start}{number}{end}" and number.isdecimal():
                found[int(number)] = store.scratch.size_bytes(name)
        return found


class LinesOf(Struct, frozen=True):
    """Ranges of files of lines, joined: (file, first byte, number of bytes)."""

    ranges: tuple[tuple[str, int, int], ...]

    def answer(self, store: IndexStore) -> bytes:
        pieces = []
        for name, start, length in self.ranges:
            with open(store.scratch.open_to_read(name), "rb") as file:
                file.seek(start)
                pieces.append(file.read(length))
        return b"".join(pieces)


class FreeBytes(Struct, frozen=True):
    """The free bytes on the file system of the node's scratch, and the number of its device."""

    def answer(self, store: IndexStore) -> tuple[int, int]:
        return store.scratch.free_bytes(), store.scratch.device()


class SpillBlocksOf(Struct, frozen=True):
    """Requests the places in the spill of the rows of one partition from some shards."""

    shards: Int64s
    partition: int

    def answer(self, store: IndexStore) -> list[Table]:
        return [store.spill_blocks("index", each, self.partition) for each in self.shards.tolist()]
