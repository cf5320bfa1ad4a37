"""The lineage of records on its way: where they were, and what a creator stores of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from dsort.data.columns import Int64s
from dsort.data.index import ORIGIN_BYTES, ORIGIN_START, SHARD
from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords
from dsort.data.table import Table
from dsort.errors import StorageError
from dsort.pipeline.pipeline import Pipeline
from dsort.scratch.columns import ColumnFile, columns_bytes
from dsort.scratch.ordered import LINEAGE as LINEAGE_COLUMNS

LINEAGE: Final = "lineage"
"""In place of a kind of sidecars."""


def origins_of(read: MemberTable, records: FormedRecords, pipeline: Pipeline) -> Table:
    """Where ``records`` are in the shard whose members were ``read``."""
    nowhere = np.full(len(records), -1, np.int64)
    if pipeline.makes_records or not len(records):  # steps made them: they never were in it
        return origins_table(nowhere, records.payload_bytes)
    whole = read.range_start >= 0
    starts = np.where(whole, read.range_start, read.payload_start)
    lengths = np.where(whole, read.range_length, read.payload_bytes)
    first, rows = records.member_offsets[:-1], records.member_rows
    ours = rows < len(starts)  # members that records lacked are behind those that were read
    rows = np.minimum(rows, len(starts) - 1)
    never = np.iinfo(np.int64).max
    start = np.minimum.reduceat(np.where(ours, starts[rows], never), first)
    end = np.maximum.reduceat(np.where(ours, starts[rows] + lengths[rows], 0), first)
    return origins_table(start, end - start)


def origins_table(start: Int64s, size_bytes: Int64s) -> Table:
    """The columns of origins."""
    return Table(len(start), {ORIGIN_START.text: start, ORIGIN_BYTES.text: size_bytes})


def lineage_bytes(found: Sequence[Table]) -> bytes:
    """What is stored of the lineage of an output shard, from that of its pieces."""
    rows = Table.concat(found, LINEAGE_COLUMNS)
    return columns_bytes(rows.arrays(is_private=False))


def lineage_of(data: bytes, what: str, *, inputs: int) -> Table:
    """The rows that ``write_lineage`` stored, of so many input shards. ``StorageError`` if they are
    damaged."""
    file = ColumnFile(data, what)
    rows = Table.read(file, LINEAGE_COLUMNS, 0, file.count(SHARD.text))
    shard = rows[SHARD]
    if len(rows) and not 0 <= shard.min() <= shard.max() < inputs:
        raise StorageError(f"{what} is damaged: it names other input shards")
    return rows
