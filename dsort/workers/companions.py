"""What a creator stores beside an output shard: the bytes of its sidecars, and its lineage.

For sidecars, the shard is scanned while it is written. Payload is skipped: from each megabyte, only
the bytes that the scanner needs are copied and scanned. Lineage is the places of records in the
input shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from dsort.containers.base import Container, Scan
from dsort.data.columns import BytesColumn, Int64s
from dsort.data.index import ORIGIN_BYTES, ORIGIN_START, SHARD
from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords
from dsort.data.table import Table
from dsort.errors import StorageError
from dsort.pipeline.pipeline import Pipeline
from dsort.scratch.columns import Column, ColumnFile, columns_bytes
from dsort.scratch.tables import LINEAGE as LINEAGE_COLUMNS
from dsort.storage.bucket import Bucket
from dsort.workers.batch import Batch, Operator

if TYPE_CHECKING:
    from dsort.sidecars.shard_index import EnergonSample

SAMPLES: Final = "samples"
"""Used like a kind of sidecar: the rows that an output shard adds to the database of Energon."""
HELD_BYTES = 1 << 20


class MemberWatch:
    """Finds the members of one output shard, whose bytes it receives in order."""

    def __init__(self, container: Container, shard: str, size_bytes: int) -> None:
        self._scan = Scan(container.scanner(shard, size_bytes))
        self._at = 0  # offset of the next byte to be fed
        self._held = bytearray()  # the bytes before ``_at``, from the first that the scan needs on

    def feed(self, slices: Sequence[memoryview]) -> None:
        """Take the next bytes."""
        for piece in slices:
            self._take(piece)
            self._at += len(piece)

    def _take(self, piece: memoryview) -> None:
        while (need := self._scan.need) is not None:
            # The place in this piece of the first byte that is needed and not held yet.
            first = need.offset + len(self._held) - self._at
            if first >= len(piece):
                return
            missing = max(HELD_BYTES, need.at_least) - len(self._held)
            self._held += piece[first : first + missing]
            if len(piece) - first >= missing:
                self._scan_held(need.offset)

    def members(self) -> MemberTable:
        """The members, once all bytes were fed."""
        while (need := self._scan.need) is not None and len(self._held) >= need.at_least:
            self._scan_held(need.offset)
        return self._scan.table

    def _scan_held(self, offset: int) -> None:
        """Scan the held bytes, and keep those that the scan needs again."""
        self._scan.feed(self._held, offset)
        need = self._scan.need
        self._held = bytearray() if need is None else self._held[need.offset - offset :]


def staged_sidecar(prefix: str, ordinal: int, kind: str) -> str:
    """The place where the bytes of a sidecar of output shard ``ordinal`` wait for their name."""
    return f"{prefix}{ordinal}.{kind}"


def write_sidecars(
    bucket: Bucket,
    prefix: str,
    kinds: Sequence[str],
    *,
    ordinal: int,
    shard: str,
    members: MemberTable,
    file_bytes: int,
) -> None:
    """Store the sidecars of one output shard that is written."""
    from dsort.sidecars.kinds import kinds_of
    from dsort.sidecars.shard_index import energon_samples

    for each in kinds_of(kinds):
        data = each.of_shard(shard, members, file_bytes)
        bucket.write(staged_sidecar(prefix, ordinal, each.kind), data)
    if "energon" in kinds:
        data = _samples_bytes(list(energon_samples(members)))
        bucket.write(staged_sidecar(prefix, ordinal, SAMPLES), data)


def _samples_bytes(samples: Sequence[EnergonSample]) -> bytes:
    parts = [part for sample in samples for part in sample.parts]
    columns: dict[str, Column] = {
        "keys": BytesColumn.of([sample.key for sample in samples]),
        "offset": _numbers(sample.offset for sample in samples),
        "size_bytes": _numbers(sample.size_bytes for sample in samples),
        "parts": _numbers(len(sample.parts) for sample in samples),
        "extensions": BytesColumn.of([part.extension for part in parts]),
        "part_offset": _numbers(part.offset for part in parts),
        "part_bytes": _numbers(part.size_bytes for part in parts),
    }
    return columns_bytes(columns)


def _numbers(values: Iterator[int]) -> Int64s:
    return np.fromiter(values, np.int64)


def samples_of(data: bytes, what: str) -> Iterator[EnergonSample]:
    """The samples that ``write_sidecars`` stored. ``StorageError`` if they are damaged."""
    from dsort.sidecars.shard_index import EnergonSample, Part

    file = ColumnFile(data, what)
    bounds = [0, *np.cumsum(file.array("parts")).tolist()]
    extensions = file.bytes_column("extensions").tolist()
    starts, sizes = file.array("part_offset").tolist(), file.array("part_bytes").tolist()
    rows = zip(
        file.bytes_column("keys").tolist(),
        file.array("offset").tolist(),
        file.array("size_bytes").tolist(),
        pairwise(bounds),
        strict=True,
    )
    for key, offset, size_bytes, (first, last) in rows:
        parts = zip(extensions[first:last], starts[first:last], sizes[first:last], strict=True)
        yield EnergonSample(key, offset, size_bytes, tuple(Part(*each, b"") for each in parts))


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
        raise StorageError(f"{what} is damaged: it names unknown input shards")
    return rows


class NoteOrigins(Operator):
    """Notes the places that records had in their shard."""

    in_rows = True

    def apply(self, batch: Batch) -> None:
        """Note the origins of the records of a batch."""
        batch.found = batch.found.beside(_origins_of(batch.read, batch.records, self.pipeline))


def _origins_of(read: MemberTable, records: FormedRecords, pipeline: Pipeline) -> Table:
    """The places of ``records`` in the shard, which had the members ``read``; -1 for new
    records."""
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
    # Added members must not decide where a record begins.
    never = np.iinfo(np.int64).max
    start = np.minimum.reduceat(np.where(ours, starts[rows], never), first)
    end = np.maximum.reduceat(np.where(ours, starts[rows] + lengths[rows], 0), first)
    return origins_table(start, end - start)


def origins_table(start: Int64s, size_bytes: Int64s) -> Table:
    """The columns of origins."""
    return Table(len(start), {ORIGIN_START.text: start, ORIGIN_BYTES.text: size_bytes})
