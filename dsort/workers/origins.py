"""The origins of records: their places in their input shards."""

from __future__ import annotations

import numpy as np

from dsort.data.columns import Int64s
from dsort.data.index import ORIGIN_BYTES, ORIGIN_START
from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords
from dsort.data.table import Table
from dsort.pipeline.pipeline import Pipeline
from dsort.workers.batch import Batch, Operator


class NoteOrigins(Operator):
    """Notes the places that records had in their shard."""

    in_rows = True

    @staticmethod
    def is_needed(pipeline: Pipeline) -> bool:
        """Whether the job keeps lineage."""
        return pipeline.keeps_lineage

    def apply(self, batch: Batch) -> None:
        """Note the origins of the records of a batch."""
        batch.origins = _origins_of(batch.read, batch.records, self.pipeline)


def _origins_of(read: MemberTable, records: FormedRecords, pipeline: Pipeline) -> Table:
    """The places of ``records`` in the shard whose members were ``read``; -1 for new records."""
    nowhere = np.full(len(records), -1, np.int64)
    if pipeline.makes_records or not len(records):  # steps made the records: they have no place
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
