"""The names of members: unsafe and repeated ones are replaced, and headers get the new names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from dsort.containers.base import Container
from dsort.containers.facets import Names, Overwriting
from dsort.data.columns import Bools, BytesColumn, Int64s, equal_ranges
from dsort.data.index import KEYS, ORDINAL
from dsort.data.members import MemberKind, MemberTable, stored_bytes_of
from dsort.data.records import FormedRecords
from dsort.data.row_bytes import RowBytes, column_of, side_by_side, spread
from dsort.data.segments import NewNames
from dsort.data.tally import Tally
from dsort.errors import UnsafeNameError
from dsort.moves.bare import BARE
from dsort.moves.input_shard import ShardBytes
from dsort.moves.slices import overwrite_names
from dsort.naming.names import readable
from dsort.naming.safe_names import new_safe_names, safe_name, unsafe_links, unsafe_rows
from dsort.scratch.index import IndexStore
from dsort.sizes import agreed
from dsort.workers.batch import Batch, Operator
from dsort.workers.tasks import ExtractTask, WorkerSetup


def headers_of(shard: ShardBytes, members: MemberTable, row: int) -> bytes:
    """All bytes of a member before its payload."""
    start, end = int(members.range_start[row]), int(members.payload_start[row])
    return members.literals.get(row, b"") + shard.at(start, end - start)


def with_new_headers(
    container: Container, members: MemberTable, headers: Mapping[int, bytes]
) -> MemberTable:
    """``members`` with the new ``headers`` (by row), and with entries that match these headers. The
    names of ``members`` are new already."""
    literals = {**members.literals, **headers}
    rows = np.fromiter(headers, np.int64, len(headers))
    start, length = _payload_ranges(members, rows)
    changed = replace(members, literals=literals, range_start=start, range_length=length)
    return _with_entries(container, changed, BytesColumn.of([*headers.values()]), rows)


def _payload_ranges(members: MemberTable, rows: Int64s) -> tuple[Int64s, Int64s]:
    """The starts and lengths of the ranges of all members. The ranges of ``rows`` have no
    headers."""
    start, length = members.range_start.copy(), members.range_length.copy()
    length[rows] -= members.payload_start[rows] - start[rows]
    start[rows] = members.payload_start[rows]
    return start, length


def _with_entries(
    container: Container, members: MemberTable, headers: BytesColumn, rows: Int64s
) -> MemberTable:
    """``members`` with entries that match the new ``headers`` of ``rows``."""
    if not (container.entries and members.entries and len(rows)):
        return members
    entries = container.entries.renewed(headers, members.entries.take(rows))
    return replace(members, entries=members.entries.replaced(rows, entries))


def with_new_names(
    shard: ShardBytes, members: MemberTable, named: MemberTable, rows: Int64s
) -> MemberTable:
    """Give the members of ``named`` headers with their names. ``named``: ``members`` with other
    names. Only ``rows`` get new headers."""
    if named is members or shard.container is BARE:  # bare members have no headers yet
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
    """Return (``named`` with headers that have its names; ``records`` as they are stored then).
    ``named`` is ``members`` with other names.

    A name that fits in the existing header is written over the old one. The record stays a piece of
    the shard, with the same length. ``in_place``: such names are written at once into the bytes of
    ``shard``, which has no other reader. If it is false, they are written when records are copied
    (``FormedRecords.new_names``). All other members get new headers, as literals.
    """
    if named is members or shard.container is BARE:
        return named, records
    rows = _changed(members, named, records.member_rows)
    names = shard.container.names
    overwriting = names and names.overwriting
    fitting = np.zeros(len(rows), np.bool_)
    if overwriting:
        fitting = _overwritable(overwriting, shard, members, named, rows)
    written = _with_literals(shard, members, named, rows[~fitting])
    if written is not named:
        records = records.stored_as(written)
    rows = rows[fitting]
    if not (overwriting and len(rows)):
        return written, records
    if in_place:
        at = written.payload_start[rows] - overwriting.block_bytes
        data = np.frombuffer(shard.whole, np.uint8)
        overwrite_names(overwriting, data, at, written.names.take(rows))
        return written, records
    new_names = _new_names(overwriting, written, records, rows)
    return written, replace(records, new_names=new_names)


class WriteNames(Operator):
    """Writes the new names of members into their headers."""

    in_runs = True
    in_rows = True

    def __init__(self, setup: WorkerSetup, store: IndexStore) -> None:
        super().__init__(setup, store)
        self._hashes_content = setup.pipeline.result.hashes_content
        self._reads_ranges = setup.movement.way.reads_ranges

    def apply(self, batch: Batch) -> None:
        """Write the names that the members of a batch have into their headers."""
        if batch.named is batch.members:
            return
        shard, is_mapped = batch.shard, batch.shard.is_mapped
        must_be_read = self._hashes_content if is_mapped else not shard.is_whole
        # Records that are read by range are large: headers as literals are small beside them.
        must_be_read |= self._reads_ranges
        # The headers of copies are bytes of their record, which must not be written over.
        if must_be_read or batch.task.copies is not None:
            # Content hashes, and windows of a shard, are read from the original bytes, so the new
            # names have to be literals.
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
    """The rows among ``rows`` that have another name in ``named``."""
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
    """The length of the headers in the shard, for each of ``rows``."""
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
    """``named`` with new headers for ``rows``. Their old headers are in ``members``."""
    if not len(rows):
        return named
    container = shard.container
    headers = container.renamed(_headers(shard, members, rows), named.names.take(rows))
    changed = np.zeros(len(members), np.bool_)
    changed[rows] = True
    literals = spread(headers, rows, len(members))
    others = {row: each for row, each in members.literals.items() if not changed[row]}
    if others:
        kept = column_of(others, len(members))
        literals = side_by_side([kept, literals], len(members))
    start, length = _payload_ranges(members, rows)
    written = replace(named, literals=RowBytes(literals), range_start=start, range_length=length)
    return _with_entries(container, written, headers, rows)


def _overwritable(
    overwriting: Overwriting,
    shard: ShardBytes,
    members: MemberTable,
    named: MemberTable,
    rows: Int64s,
) -> Bools:
    """Whether the new name of each of ``rows`` can be written over the old one."""
    header_bytes = _header_bytes(members, rows)
    if members.literals:
        has_literal = column_of(members.literals, len(members)).lengths[rows] > 0
        header_bytes = np.where(has_literal, 0, header_bytes)
    return overwriting.fits(
        header_bytes,
        named.names.take(rows),
        lambda some: _headers(shard, members, rows[some]),
    )


def _new_names(
    overwriting: Overwriting, members: MemberTable, records: FormedRecords, rows: Int64s
) -> NewNames:
    """The names of ``rows`` by record, and the places in the record where they are written."""
    own = records.member_rows
    is_new = np.zeros(len(members), np.bool_)
    is_new[rows] = True
    picked = np.flatnonzero(is_new[own])
    stored = stored_bytes_of(members, own)
    before = np.cumsum(stored) - stored
    counts = np.diff(records.member_offsets)
    before -= np.repeat(before[records.member_offsets[:-1]], counts)
    header_bytes = _header_bytes(members, own[picked])
    at = before[picked] + header_bytes - overwriting.block_bytes
    offsets = np.searchsorted(picked, records.member_offsets).astype(np.int64)
    return NewNames(offsets, at, members.names.take(own[picked]))


class UnsafeNames(Struct, frozen=True):
    """The unsafe members of one shard: ``rows`` have unsafe names; ``targets`` (row → target) are
    those of unsafe symbolic links; ``others`` (row → name) are unsafe names that only some readers
    see."""

    rows: list[int]
    targets: dict[int, bytes]
    others: dict[int, bytes] = field(default_factory=dict)

    @property
    def all_rows(self) -> list[int]:
        """The rows of all unsafe members, ascending."""
        return sorted({*self.rows, *self.targets, *self.others})

    def __len__(self) -> int:
        return len(self.all_rows)


def settle_unsafe_names(
    reaction: str, shard: ShardBytes, members: MemberTable, tally: Tally
) -> MemberTable:
    """``members`` with the names that the job allows. ``reaction``: warn, rename or abort."""
    found = _find_unsafe(shard, members)
    if not len(found):
        return members
    settled = _with_safe_names(shard, members, found) if reaction == "rename" else members
    names = [f"{shard.name}: {text}" for text in _shown_changes(members, settled, found)]
    if reaction == "abort":
        first = names[0].removeprefix(f"{shard.name}: ")
        raise UnsafeNameError(
            f"shard {shard.name} has {len(found)} "
            f"{agreed('[member that leads|members that lead]', len(found))} out of the directory "
            f"that the shard is unpacked in, the first is {first}",
            hint="unsafe_names: rename makes their names safe, warn keeps them as they are",
        )
    kind = "unsafe_names_renamed" if reaction == "rename" else "unsafe_names"
    tally.add(kind, len(found), names)
    return settled


def _find_unsafe(shard: ShardBytes, members: MemberTable) -> UnsafeNames:
    """The unsafe members. If the container has no names of its own, no member is unsafe, because
    names only repeat the keys of records."""
    names = shard.container.names
    if not names or (members.own.record_of is not None and shard.container is not BARE):
        return UnsafeNames([], {})
    rows, others = unsafe_rows(members.names), {}
    for row in members.notes.unsafe_prefixes:
        if name := names.other_of(headers_of(shard, members, row)):
            others[row] = name
    return UnsafeNames(rows, _unsafe_targets(names, shard, members, rows), others)


def _unsafe_targets(
    in_headers: Names, shard: ShardBytes, members: MemberTable, rows: list[int]
) -> dict[int, bytes]:
    """Row → target of the links that are unsafe once ``rows`` have safe names."""
    symlinks = np.flatnonzero(members.kind == MemberKind.SYMLINK).tolist()
    if not symlinks:
        return {}
    new_names = new_safe_names(members.names, rows)
    targets, links = {}, []
    for row in symlinks:
        headers = headers_of(shard, members, row)
        targets[row] = in_headers.target_of(headers)
        links.append((row, new_names.get(row, members.names[row]), targets[row]))
        if other := in_headers.other_of(headers):
            links.append((row, safe_name(other), targets[row]))
    return {row: targets[row] for row in unsafe_links(links)}


def _with_safe_names(shard: ShardBytes, members: MemberTable, found: UnsafeNames) -> MemberTable:
    """``members`` with safe names and targets in place of the unsafe ones in ``found``."""
    if not len(found):
        return members
    names = new_safe_names(members.names, found.rows)
    headers = {row: headers_of(shard, members, row) for row in found.all_rows}
    in_headers = shard.container.names
    assert in_headers is not None  # else no name is unsafe
    for row, target in found.targets.items():
        headers[row] = in_headers.retargeted(headers[row], safe_name(target))
    # ``others`` get the name that other readers see
    new = {row: names.get(row, members.names[row]) for row in sorted({*names, *found.others})}
    if new:
        old = BytesColumn.of([headers[row] for row in new])
        renamed = in_headers.renamed(old, BytesColumn.of([*new.values()]))
        headers.update(zip(new, renamed.tolist(), strict=True))
    all_names, own = members.names, members.own
    if names:
        texts = all_names.tolist()
        for row, name in names.items():
            texts[row] = name
        all_names = BytesColumn.of(texts)
        if own.key_bytes is not None:  # extensions do not change
            longer_by = all_names.lengths - members.names.lengths
            own = replace(own, key_bytes=own.key_bytes + longer_by)
    named = replace(members, names=all_names, own=own)
    return with_new_headers(shard.container, named, headers)


def _shown_changes(before: MemberTable, after: MemberTable, found: UnsafeNames) -> Iterator[str]:
    """A text for each unsafe member: the name, its target, and the new name if it has one."""
    for row in found.all_rows:
        old, new = before.names[row], after.names[row]
        text = readable(old)
        if row in found.others:
            text += f" ({readable(found.others[row])} for some readers)"
        if row in found.targets:
            text += f" (a link to {readable(found.targets[row])})"
        yield text if old == new else f"{text} → {readable(new)}"


class RenameKeys(Operator):
    """Gives records the new keys that a survey has found for them."""

    in_runs = True
    in_rows = True

    def apply(self, batch: Batch) -> None:
        """Rename the records, and log their old and new keys."""
        if not batch.task.stage.renames:
            return
        changes: list[str] = []
        batch.named, batch.records = _renamed(
            self.store, batch.task, batch.named, batch.records, changes
        )
        batch.log.write_names("duplicate_keys_renamed", changes, len(changes))


def _renamed(
    store: IndexStore,
    task: ExtractTask,
    members: MemberTable,
    records: FormedRecords,
    changes: list[str],
) -> tuple[MemberTable, FormedRecords]:
    """The member table with the new names, and the same records with their new keys. Adds a text
    for each new key to ``changes``."""
    found = store.positions(task.stage.renames).of_shard(task.shard, [KEYS], records=len(records))
    if not len(found):
        return members, records
    names = members.names.tolist()
    key_bytes = records.key_bytes.tolist()
    keys_of = dict(zip(found[ORDINAL].tolist(), found[KEYS].tolist(), strict=True))
    for ordinal, new_key in keys_of.items():
        changes.append(f"{task.name}: {readable(records.keys[ordinal])} → {readable(new_key)}")
        for row in records.rows_of(ordinal):
            names[row] = new_key + names[row][key_bytes[row] :]
    named = replace(members, names=BytesColumn.of(names))
    return named, records.with_keys(keys_of, named)
