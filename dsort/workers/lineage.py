"""The lineage of records: their places in the input shards, and the form in which the creator of an
output shard stores them.
"""

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
from dsort.workers.batch import Batch, Operator

LINEAGE: Final = "lineage"
"""Names the lineage among the kinds of sidecars."""


def lineage_bytes(found: Sequence[Table]) -> bytes:
    """The stored form of the lineage of an output shard. ``found``: the lineage of its pieces."""
    rows = Table.concat(found, LINEAGE_COLUMNS)
    return columns_bytes(rows.arrays(is_private=False))


def lineage_of(data: bytes, what: str, *, inputs: int) -> Table:
    """Read the rows that ``lineage_bytes`` stored. ``inputs``: the number of input shards.
    ``StorageError`` if the rows are damaged."""
    file = ColumnFile(data, what)
    rows = Table.read(file, LINEAGE_COLUMNS, 0, file.count(SHARD.text))
    shard = rows[SHARD]
    if len(rows) and not 0 <= shard.min() <= shard.max() < inputs:
        raise StorageError(f"{what} is damaged: it names other input shards")
    return rows


class NoteOrigins(Operator):
    """Notes the places that records had in their shard."""

    in_rows = True

    @staticmethod
    def is_needed(pipeline: Pipeline) -> bool:
        """Whether the job keeps lineage."""
        return pipeline.result.keeps_lineage

    def apply(self, batch: Batch) -> None:
        """Note the origins of the records of a batch."""
        batch.found = batch.found.beside(_origins_of(batch.read, batch.records, self.pipeline))


def _origins_of(read: MemberTable, records: FormedRecords, pipeline: Pipeline) -> Table:
    """The places of ``records`` in the shard whose members were ``read``; -1 for new records."""
    nowhere = np.full(len(records), -1, np.int64)
    # Steps made the records, or they are rows, whose values are in several columns.
    if pipeline.makes_records or pipeline.moves_rows or not len(records):
        return origins_table(nowhere, records.payload_bytes)
    whole = read.range_start >= 0
    starts = np.where(whole, read.range_start, read.payload_start)
    lengths = np.where(whole, read.range_length, read.payload_bytes)
    first, rows = records.member_offsets[:-1], records.member_rows
    ours = rows < len(starts)  # members that were added to records are behind those that were read
    rows = np.minimum(rows, len(starts) - 1)
    never = np.iinfo(np.int64).max
    start = np.minimum.reduceat(np.where(ours, starts[rows], never), first)
    end = np.maximum.reduceat(np.where(ours, starts[rows] + lengths[rows], 0), first)
    return origins_table(start, end - start)


def origins_table(start: Int64s, size_bytes: Int64s) -> Table:
    """The columns of origins."""
    return Table(len(start), {ORIGIN_START.text: start, ORIGIN_BYTES.text: size_bytes})
