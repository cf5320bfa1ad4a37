"""The headers of members: as a shard has them, and new ones in their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from dsort.containers.base import Container
from dsort.data.columns import Bools, BytesColumn, Int64s, equal_ranges
from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords, stored_bytes_of
from dsort.data.row_bytes import RowBytes, column_of, side_by_side, spread
from dsort.data.segments import NewNames
from dsort.moves.bare import BARE
from dsort.moves.input_shard import ShardBytes
from dsort.moves.slices import overwrite_names
from dsort.scratch.index import IndexStore
from dsort.workers.batch import Batch, Operator
from dsort.workers.tasks import WorkerSetup


def headers_of(shard: ShardBytes, members: MemberTable, row: int) -> bytes:
    """All bytes of a member before its payload."""
    start, end = int(members.range_start[row]), int(members.payload_start[row])
    return members.literals.get(row, b"") + shard.at(start, end - start)


def with_new_headers(
    container: Container, members: MemberTable, headers: Mapping[int, bytes]
) -> MemberTable:
    """``members``, whose names are the new ones, with ``headers`` (by row) in place of their own,
    and entries to match."""
    literals = {**members.literals, **headers}
    rows = np.fromiter(headers, np.int64, len(headers))
    range_start, range_length = members.range_start.copy(), members.range_length.copy()
    range_length[rows] -= members.payload_start[rows] - range_start[rows]
    range_start[rows] = members.payload_start[rows]
    changed = replace(
        members, literals=literals, range_start=range_start, range_length=range_length
    )
    if members.entries is None:
        return changed
    entries = members.entries.tolist()
    for row in headers:
        entries[row] = container.entry_for(headers[row], entries[row])
    return replace(changed, entries=BytesColumn.of(entries))


def with_new_names(
    shard: ShardBytes, members: MemberTable, named: MemberTable, rows: Int64s
) -> MemberTable:
    """The table ``named``, which is ``members`` with other names, with headers that say so. Only
    ``rows`` of it are asked for."""
    if named is members or shard.container is BARE:  # where names stand in no header yet
        return named
    return _with_literals(shard, members, named, _changed(members, named, rows))


def with_names_written(
    shard: ShardBytes,
    members: MemberTable,
    named: MemberTable,
    records: FormedRecords,
    *,
    in_place: bool,
) -> tuple[MemberTable, FormedRecords]:
    """(``named``, which is ``members`` with other names, with headers that say so; ``records`` as
    they are stored then).

    Names that fit in the headers that are there are written over the old ones, which leaves the
    records what they are: pieces of the shard, and as long as before. ``in_place``: here and now,
    in the bytes of ``shard``, which nobody else reads; else whoever copies the records does it
    (``FormedRecords.new_names``). All others get new headers, as literals.
    """
    if named is members or shard.container is BARE:
        return named, records
    rows = _changed(members, named, records.member_rows)
    fitting = _overwritable(shard, members, named, rows)
    written = _with_literals(shard, members, named, rows[~fitting])
    if written is not named:
        records = records.stored_as(written)
    rows = rows[fitting]
    if not len(rows):
        return written, records
    if in_place:
        assert shard.whole is not None
        at = written.payload_start[rows] - shard.container.name_block_bytes
        data = np.frombuffer(shard.whole, np.uint8)
        overwrite_names(shard.container, data, at, written.names.take(rows))
        return written, records
    new_names = _new_names(shard, written, records, rows)
    return written, replace(records, new_names=new_names)


class WriteNames(Operator):
    """Writes the new names of members into their headers."""

    in_runs = True
    in_rows = True

    def __init__(self, setup: WorkerSetup, store: IndexStore) -> None:
        super().__init__(setup, store)
        self._hashes_content = setup.pipeline.hashes_content
        self._reads_ranges = setup.movement.way.reads_ranges

    def apply(self, batch: Batch) -> None:
        """Make the headers of a batch say the names that its members have."""
        if batch.named is batch.members:
            return
        shard, is_mapped = batch.shard, batch.shard.is_mapped
        must_be_read = self._hashes_content if is_mapped else shard.whole is None
        # Records that are read by range are large: headers as literals are next to nothing.
        must_be_read |= self._reads_ranges
        # The headers of copies are bytes of their record, which must not be written over.
        if must_be_read or batch.task.copies is not None:
            # The hash of a record is taken here; of a shard in windows, each is read anew.
            rows = batch.records.member_rows
            written = with_new_names(shard, batch.members, batch.named, rows)
            records = batch.records.stored_as(written)
        else:
            written, records = with_names_written(
                shard, batch.members, batch.named, batch.records, in_place=not is_mapped
            )
        batch.members = batch.named = written
        batch.records = records


def _changed(members: MemberTable, named: MemberTable, rows: Int64s) -> Int64s:
    """Those of ``rows`` that have another name in ``named``."""
    old, new = members.names, named.names
    lengths = old.lengths[rows]
    same = lengths == new.lengths[rows]
    alike = rows[same]
    blob = np.concatenate([old.blob, new.blob])
    first, second = old.offsets[alike], new.offsets[alike] + len(old.blob)
    same[same] = equal_ranges(blob, first, second, lengths[same])
    changed: Int64s = rows[~same]
    return changed


def _header_bytes(members: MemberTable, rows: Int64s) -> Int64s:
    """How much of each of ``rows`` is headers, in the shard."""
    header_bytes: Int64s = members.payload_start[rows] - members.range_start[rows]
    return header_bytes


def _headers(shard: ShardBytes, members: MemberTable, rows: Int64s) -> BytesColumn:
    """:func:`headers_of` of each of ``rows``."""
    in_shard = shard.ranges(members.range_start[rows], _header_bytes(members, rows))
    if not members.literals:
        return in_shard
    literals = column_of(members.literals, len(members)).take(rows)
    return side_by_side([literals, in_shard], len(rows))


def _with_literals(
    shard: ShardBytes, members: MemberTable, named: MemberTable, rows: Int64s
) -> MemberTable:
    """``named`` with new headers for ``rows``, whose own are those in ``members``."""
    if not len(rows):
        return named
    container = shard.container
    headers = container.renamed_headers(_headers(shard, members, rows), named.names.take(rows))
    changed = np.zeros(len(members), np.bool_)
    changed[rows] = True
    literals = spread(headers, rows, len(members))
    others = {row: each for row, each in members.literals.items() if not changed[row]}
    if others:
        kept = column_of(others, len(members))
        literals = side_by_side([kept, literals], len(members))
    start, length = members.range_start.copy(), members.range_length.copy()
    length[rows] -= members.payload_start[rows] - start[rows]
    start[rows] = members.payload_start[rows]
    written = replace(named, literals=RowBytes(literals), range_start=start, range_length=length)
    if members.entries is None:
        return written
    entries = container.entries_for(headers, members.entries.take(rows))
    order = np.arange(len(members))
    order[rows] = np.arange(len(rows)) + len(members)
    entries = BytesColumn.concat([members.entries, entries]).take(order)
    return replace(written, entries=entries)


def _overwritable(
    shard: ShardBytes, members: MemberTable, named: MemberTable, rows: Int64s
) -> Bools:
    """Which of ``rows`` can have their new names written over the old ones."""
    if not shard.container.name_block_bytes:
        return np.zeros(len(rows), np.bool_)
    header_bytes = _header_bytes(members, rows)
    if members.literals:
        has_literal = column_of(members.literals, len(members)).lengths[rows] > 0
        header_bytes = np.where(has_literal, 0, header_bytes)
    return shard.container.overwritable(
        header_bytes,
        named.names.take(rows),
        lambda some: _headers(shard, members, rows[some]),
    )


def _new_names(
    shard: ShardBytes, members: MemberTable, records: FormedRecords, rows: Int64s
) -> NewNames:
    """The names of ``rows`` by record, and where in it they go."""
    own = records.member_rows
    is_new = np.zeros(len(members), np.bool_)
    is_new[rows] = True
    picked = np.flatnonzero(is_new[own])
    stored = stored_bytes_of(members, own)
    before = np.cumsum(stored) - stored
    counts = np.diff(records.member_offsets)
    before -= np.repeat(before[records.member_offsets[:-1]], counts)
    header_bytes = _header_bytes(members, own[picked])
    at = before[picked] + header_bytes - shard.container.name_block_bytes
    offsets = np.searchsorted(picked, records.member_offsets).astype(np.int64)
    return NewNames(offsets, at, members.names.take(own[picked]))
