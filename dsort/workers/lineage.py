"""The lineage of records on its way: where they were, and what a creator stores of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from dsort.data.columns import BytesColumn
from dsort.data.index import Origins
from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords
from dsort.scratch.columns import ColumnFile, columns_bytes
from dsort.scratch.nodes import ScratchNodes
from dsort.scratch.ordered import LineageRows
from dsort.scratch.requests import LineageOf
from dsort.storage.bucket import Bucket
from dsort.workers.sidecars import staged_sidecar
from dsort.workers.tasks import CreateTask, WorkerSetup

__all__ = ["LINEAGE", "lineage_of", "origins_of", "write_lineage"]

LINEAGE: Final = "lineage"
"""In place of a kind of sidecars."""


def origins_of(read: MemberTable, records: FormedRecords, setup: WorkerSetup) -> Origins:
    """Where ``records`` are in the shard whose members were ``read``."""
    nowhere = np.full(len(records), -1, np.int64)
    if setup.makes_records or not len(records):  # steps made them: they never were in it
        return Origins(records.keys, nowhere, records.payload_bytes)
    whole = read.range_start >= 0
    starts = np.where(whole, read.range_start, read.payload_start)
    lengths = np.where(whole, read.range_length, read.payload_bytes)
    first, rows = records.member_offsets[:-1], records.member_rows
    ours = rows < len(starts)  # members that records lacked are behind those that were read
    rows = np.minimum(rows, len(starts) - 1)
    never = np.iinfo(np.int64).max
    start = np.minimum.reduceat(np.where(ours, starts[rows], never), first)
    end = np.maximum.reduceat(np.where(ours, starts[rows] + lengths[rows], 0), first)
    return Origins(records.keys, start, end - start)


def write_lineage(bucket: Bucket, nodes: ScratchNodes, task: CreateTask, ordinal: int) -> None:
    """Store the lineage of output shard ``ordinal``, whose pieces are all in ``task``."""
    node_of: Mapping[int, str] = dict(task.nodes)
    found: list[LineageRows] = [
        nodes.ask(
            node_of[piece.partition], LineageOf(piece.partition, piece.row_start, piece.row_stop)
        )
        for piece in task.pieces
        if piece.ordinal == ordinal and piece.partition >= 0
    ]
    bucket.write(staged_sidecar(task.sidecars_prefix, ordinal, LINEAGE), _rows_bytes(found))


def _rows_bytes(parts: Sequence[LineageRows]) -> bytes:
    origins = Origins.concat([part.origins for part in parts])
    return columns_bytes(
        {
            "shard": np.concatenate([np.zeros(0, np.int32), *(part.shard for part in parts)]),
            "stored_bytes": np.concatenate(
                [np.zeros(0, np.int64), *(part.stored_bytes for part in parts)]
            ),
            "content_hash": np.concatenate(
                [np.zeros(0, np.uint64), *(part.content_hash for part in parts)]
            ),
            "keys": origins.keys,
            "origin_start": origins.start,
            "origin_bytes": origins.size_bytes,
        }
    )


def lineage_of(data: bytes, what: str) -> LineageRows:
    """The rows that ``write_lineage`` stored. ``StorageError`` if they are damaged."""
    file = ColumnFile(data, what)
    shard = file.array("shard")
    count = len(shard)
    keys: BytesColumn = file.bytes_column("keys", 0, count)
    return LineageRows(
        shard=shard,
        stored_bytes=file.array("stored_bytes", 0, count),
        content_hash=file.array("content_hash", 0, count),
        origins=Origins(
            keys, file.array("origin_start", 0, count), file.array("origin_bytes", 0, count)
        ),
    )
