"""The index of a shard of rows as it grows: its rows and the blocks that hold them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from dsort.data.columns import BytesColumn, Int32s, Int64s, UInt64s
from dsort.data.index import (
    BLOCK_LENGTH,
    BLOCK_ROWS,
    BLOCK_START,
    CLASS,
    CONTENT_HASH,
    KEY_HASH,
    LOT,
    SortKeys,
    record_index,
)
from dsort.data.repeats import HashesSeen
from dsort.data.segments import Segments
from dsort.data.table import Column, Table
from dsort.workers.sort_keys import ShardSortKeys

CELL_OVERHEAD_BYTES = 4
"""What a cell takes besides its value, an offset for the most part."""


@dataclass(slots=True)
class TableRows:
    """What is known of the rows of one shard so far: a list of columns for each column."""

    keys: list[BytesColumn] = field(default_factory=list)
    key_hash: list[UInt64s] = field(default_factory=list)
    sort: list[SortKeys] = field(default_factory=list)
    partition: list[Int32s] = field(default_factory=list)
    ordinal: list[Int64s] = field(default_factory=list)
    payload_bytes: list[Int64s] = field(default_factory=list)
    content_hash: list[UInt64s] = field(default_factory=list)
    lots: list[UInt64s] = field(default_factory=list)
    columns: int = 0
    left_out: Counter[str] = field(default_factory=Counter)  # by steps, of each kind
    dropped: Counter[str] = field(default_factory=Counter)  # by each step, and for want of a place
    read: int = 0
    counts: tuple[int, ...] = ()  # how many came to each step that asks for positions
    sort_keys: ShardSortKeys | None = None
    hashes_seen: HashesSeen = field(default_factory=HashesSeen)

    def index(self) -> tuple[Table, Int32s]:
        """The index of all rows, in input order, and the partition of each."""
        none = np.zeros(0, np.int64)
        keys = BytesColumn.concat(self.keys) if self.keys else BytesColumn.of([])
        payload = np.concatenate([none, *self.payload_bytes])
        count = len(payload)
        stored = payload + CELL_OVERHEAD_BYTES * self.columns
        segments = Segments(
            np.arange(count + 1, dtype=np.int64),
            np.cumsum(stored) - stored,
            stored,
            np.zeros(0, np.uint8),
        )
        index = record_index(
            ordinal=np.concatenate([none, *self.ordinal]),
            keys=keys,
            sort=SortKeys.concat(self.sort) if self.sort else SortKeys(0),
            members=np.ones(count, np.int32),
            payload_bytes=payload,
            stored_bytes=stored,
            ranges=segments,
        )
        more: dict[str, Column] = {
            KEY_HASH.text: np.concatenate([np.zeros(0, np.uint64), *self.key_hash])
        }
        if self.content_hash:
            more[CONTENT_HASH.text] = np.concatenate(self.content_hash)
        if self.lots:
            lots = np.concatenate(self.lots)
            more |= {CLASS.text: lots[:, 0], LOT.text: lots[:, 1]}
        index = index.beside(Table(count, more))
        return index, np.concatenate([np.zeros(0, np.int32), *self.partition])


@dataclass(slots=True)
class SpilledBlocks:
    """The blocks that were spilled, in the order of the rows."""

    partition: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    size_bytes: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def add(self, partition: int, start: int, size_bytes: int, rows: int) -> None:
        self.partition.append(partition)
        self.start.append(start)
        self.size_bytes.append(size_bytes)
        self.rows.append(rows)

    def by_partition(self, partitions: int) -> tuple[Table, Int64s]:
        """(the blocks by partition, where each partition's begin)."""
        partition = np.array(self.partition, np.int64)
        order = np.argsort(partition, kind="stable")
        columns: dict[str, Column] = {
            BLOCK_START.text: np.array(self.start, np.int64),
            BLOCK_LENGTH.text: np.array(self.size_bytes, np.int64),
            BLOCK_ROWS.text: np.array(self.rows, np.int64),
        }
        offsets = np.searchsorted(partition[order], np.arange(partitions + 1)).astype(np.int64)
        return Table(len(partition), columns).take(order), offsets
