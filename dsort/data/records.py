"""Members → records: groups the members that share a key, whatever their order in the shard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from dsort.data.columns import (
    Bools,
    BytesColumn,
    Int64s,
    UInt64s,
    are_all_rows,
    cut_rows,
    equal_ranges,
    last_true,
    offsets_of,
    row_numbers,
    rows_of_runs,
    run_sums,
)
from dsort.data.hashes import any_twice, hash_keys, mix
from dsort.data.members import MemberKind, MemberTable, packed_entries, stored_bytes_of
from dsort.data.numbered import DIGITS, NumberedColumn, hash_column
from dsort.data.segments import NO_NEW_NAMES, NewNames, Segments, segments_of
from dsort.data.text_sets import (
    as_table,
    first_equals,
    marks_stand_alike,
    names_come_again,
    repeated_names,
    rows_equal_earlier,
)

_SLASH, _DOT = 0x2F, 0x2E


class SplitNames(Struct, frozen=True, eq=False):
    """For each member name: the length of the record key in bytes; whether it is a stray.

    The extension is ``name[key_bytes + 1:]``, empty for strays. Shapes ``(n,)``.
    """

    key_bytes: Int64s
    stray: NDArray[np.bool_]


# A record key is everything up to the first dot of the last component of a member's name. The rule
# is WebDataset's (`base_plus_ext`) and AIStore's: the directory part belongs to the key, and dots
# in directories do not count. A name without such a dot, or whose last component begins with it (a
# hidden file), has no extension: it is a *stray*, and its key is the whole name.
def split_name(name: bytes) -> tuple[bytes, bytes]:
    """(record key, extension without its dot) of one name; the extension of a stray is empty."""
    base = name.rfind(b"/") + 1
    dot = name.find(b".", base)
    if dot <= base:  # no dot, or a hidden file, whose name begins with it
        return name, b""
    return name[:dot], name[dot + 1 :]


def split_names(names: BytesColumn) -> SplitNames:
    """:func:`split_name` for a column, vectorised."""
    width = names.width
    if width is not None and marks_stand_alike(names, width, b"/."):  # so all names split alike
        key, _ = split_name(names[0])
        stray = len(key) == width
        key_bytes = np.broadcast_to(np.int64(len(key)), (len(names),))
        return SplitNames(key_bytes, np.full(len(names), stray))
    starts, ends = names.offsets[:-1], names.offsets[1:]
    slashes = np.flatnonzero(names.blob == _SLASH)
    dots = np.flatnonzero(names.blob == _DOT)
    base = starts
    if len(slashes):
        last = np.searchsorted(slashes, ends) - 1
        slash = slashes[np.maximum(last, 0)]
        base = np.where((last >= 0) & (slash >= starts), slash + 1, starts)
    if len(dots) == 0:
        return SplitNames(ends - starts, np.ones(len(names), np.bool_))
    at = np.searchsorted(dots, base)
    dot = dots[np.minimum(at, len(dots) - 1)]
    stray = (at == len(dots)) | (dot >= ends) | (dot == base)
    return SplitNames(np.where(stray, ends, dot) - starts, stray)


LAST_IS_KEPT: Final = ("ignore", "warn")
"""The reactions ``duplicated_records`` under which :func:`form_records` keeps the last member."""

STRAY_SALT = np.uint64(0x5BD1E9955BD1E995)
"""Makes the hash of a stray ``a`` differ from that of a record with key ``a``."""


class FormedRecords(Struct, frozen=True, eq=False):
    """The records of one shard, rows ``(n,)``, and the members in them, rows ``(m,)``.

    ``member_rows`` are row numbers of the member table, grouped by record in order of appearance;
    record ``i`` has ``member_rows[member_offsets[i] : member_offsets[i + 1]]``.
    """

    keys: BytesColumn
    key_hash: UInt64s
    member_offsets: Int64s
    member_rows: Int64s
    key_bytes: Int64s  # of each row of the *member table*: the length of the key in its name
    payload_bytes: Int64s
    stored_bytes: Int64s
    non_adjacent: int = 0  # groups that were joined to an earlier group
    strays: tuple[int, ...] = ()  # member table rows that are strays by kind or name
    dropped: tuple[int, ...] = ()  # the strays that were left out
    repeated: tuple[int, ...] = ()  # rows whose name is repeated later in their group
    new_names: NewNames = NO_NEW_NAMES  # these replace the names in the headers of members

    def __len__(self) -> int:
        return len(self.key_hash)

    def rows_of(self, record: int) -> list[int]:
        """The member table rows of one record."""
        first, last = self.member_offsets[record : record + 2].tolist()
        rows: list[int] = self.member_rows[first:last].tolist()
        return rows

    def with_keys(self, new_keys: Mapping[int, bytes], members: MemberTable) -> FormedRecords:
        """The same records, some with new keys (by record). ``members`` have matching names."""
        keys, key_hash, key_bytes = self.keys.tolist(), self.key_hash.copy(), self.key_bytes.copy()
        for record, key in new_keys.items():
            old_hash, new_hash = hash_keys([keys[record], key], 2)
            key_hash[record] ^= old_hash ^ new_hash  # keeps the salt of a stray
            keys[record] = key
            key_bytes[self.rows_of(record)] = len(key)
        stored_bytes = run_sums(stored_bytes_of(members, self.member_rows), self.member_offsets)
        return replace(
            self,
            keys=BytesColumn.of(keys),
            key_hash=key_hash,
            key_bytes=key_bytes,
            stored_bytes=stored_bytes,
        )

    def keeping(self, kept: Bools) -> FormedRecords:
        """The records where ``kept``, shape ``(n,)``, is true, in their order."""
        return self.taking(np.flatnonzero(kept))

    def taking(self, rows: Int64s) -> FormedRecords:
        """The records in ``rows``, each as often as it occurs there."""
        counts = np.diff(self.member_offsets)[rows]
        picked, offsets = rows_of_runs(self.member_offsets[rows], counts)
        return replace(
            self,
            keys=self.keys.take(rows),
            key_hash=self.key_hash[rows],
            member_offsets=offsets,
            member_rows=self.member_rows[picked],
            payload_bytes=self.payload_bytes[rows],
            stored_bytes=self.stored_bytes[rows],
        )

    def keeping_members(self, kept: Bools, members: MemberTable) -> FormedRecords:
        """The records with only the members for which ``kept``, shape ``(m,)``, is true. Records
        without a member left are removed."""
        counts = np.add.reduceat(kept, self.member_offsets[:-1], dtype=np.int64)
        records = self.keeping(counts > 0)
        offsets = offsets_of(counts[counts > 0])
        rows = self.member_rows[kept]
        return replace(
            records,
            member_offsets=offsets,
            member_rows=rows,
            payload_bytes=run_sums(members.payload_bytes[rows], offsets),
            stored_bytes=run_sums(stored_bytes_of(members, rows), offsets),
        )

    def with_members(self, of_record: Int64s, members: MemberTable) -> FormedRecords:
        """The same records with the last rows of the table ``members`` added: each becomes the last
        member of the record in ``of_record``, shape ``(rows,)``."""
        new = np.arange(len(members) - len(of_record), len(members))
        owners = np.repeat(np.arange(len(self)), np.diff(self.member_offsets))
        order = np.argsort(np.append(owners, of_record), kind="stable")
        rows = np.append(self.member_rows, new)[order]
        counts = np.diff(self.member_offsets) + np.bincount(of_record, minlength=len(self))
        offsets = offsets_of(counts)
        return replace(
            self,
            member_offsets=offsets,
            member_rows=rows,
            key_bytes=np.append(self.key_bytes, self.keys.lengths[of_record]),
            payload_bytes=run_sums(members.payload_bytes[rows], offsets),
            stored_bytes=run_sums(stored_bytes_of(members, rows), offsets),
        )

    def rekeyed(self, keys: BytesColumn, key_bytes: Int64s) -> FormedRecords:
        """The same records, all with new ``keys``; ``key_bytes``: the new value of the field."""
        key_hash = hash_column(keys)
        if self.strays:
            first = self.member_rows[self.member_offsets[:-1]]
            stray = np.isin(first, np.array(self.strays, np.int64))
            key_hash = np.where(stray, key_hash ^ STRAY_SALT, key_hash)
        return replace(self, keys=keys, key_hash=key_hash, key_bytes=key_bytes)

    def stored_as(self, members: MemberTable) -> FormedRecords:
        """The same records with the stored sizes of ``members``, a table of the same rows."""
        stored_bytes = run_sums(stored_bytes_of(members, self.member_rows), self.member_offsets)
        return replace(self, stored_bytes=stored_bytes)

    def entries(self, members: MemberTable) -> BytesColumn | None:
        """The packed entries of each record; None if the members have none."""
        if members.entries is None:
            return None
        stored = stored_bytes_of(members, np.arange(len(members)))
        return packed_entries(members.entries, stored, self.member_rows, self.member_offsets)

    def segments(self, members: MemberTable) -> Segments:
        """The byte ranges of each record in the shard, adjacent ones joined."""
        segments = segments_of(members, self.member_rows, self.member_offsets)
        return replace(segments, names=self.new_names) if len(self.new_names) else segments


# A *group* is a run of members with one key; strays between them are skipped. For webdataset, a
# group is a sample. The groups of one key become one record, in the place of the first group, if no
# two of them have an extension in common. If two have, all groups stay separate records, because
# combining them would be a guess. So `a.jpg b.jpg a.cls` has one record `a`, and `a.jpg a.cls b.jpg
# a.jpg a.cls` has two. A name that is repeated within one group begins another group, as it begins
# another record for a reader of the shard (`adjacent_records`): so records of one key that a job
# wrote side by side stay separate. With `keep_last`, such a group stays one record, and has only
# the last member of each name.
#
# All this is one pass of vectorised steps over the member table. Oddities (strays, repeated names,
# members that are not adjacent) are handled here by the spec's reactions and counted; the caller
# decides what a count means (warn or abort).
def form_records(
    members: MemberTable, stray_members: str, *, keep_last: bool = False
) -> FormedRecords:
    """Group the members of one shard into records. ``keep_last``: if members of one group have the
    same name, keep the last one and leave out the others (``repeated``).

    ``stray_members``: the reaction to strays. ``keep`` makes a separate record of each file or
    symlink without an extension, and leaves out directories and devices. ``drop`` leaves out all
    strays. ``abort`` keeps all of them, so that the caller can name them and refuse the shard.
    ``stray_members`` is ignored if the container itself separates the records.
    """
    if members.own.record_of is not None:
        return _records_of_container(members, members.own.record_of)
    split = split_names(members.names)
    stray, kept = _sort_out_strays(members, split.stray, stray_members)
    rows, key_bytes = np.flatnonzero(kept), split.key_bytes
    if stray.any():
        key_bytes = np.where(stray, members.names.lengths, key_bytes)
    grouped = _grouped(members.names, rows, key_bytes, stray, np.zeros(0, np.int64))
    rows, record_of = grouped.rows, grouped.record_of
    repeated = repeated_names(members.names, rows, record_of, key_bytes)
    repeated_rows = rows[repeated]
    if len(repeated) and keep_last:
        keep = np.ones(len(rows), np.bool_)
        keep[repeated] = False
        rows, record_of = rows[keep], record_of[keep]
    elif len(repeated):
        cuts = rows[names_come_again(members.names, rows, record_of, repeated)]
        grouped = _grouped(members.names, np.flatnonzero(kept), key_bytes, stray, cuts)
        rows, record_of = grouped.rows, grouped.record_of
    offsets = np.append(np.flatnonzero(np.diff(record_of, prepend=-1)), len(rows))
    return FormedRecords(
        keys=grouped.keys,
        key_hash=grouped.key_hash,
        member_offsets=offsets,
        member_rows=rows,
        key_bytes=key_bytes,
        payload_bytes=run_sums(members.payload_bytes[rows], offsets),
        stored_bytes=run_sums(stored_bytes_of(members, rows), offsets),
        non_adjacent=grouped.non_adjacent,
        strays=tuple(np.flatnonzero(stray | ~kept).tolist()),
        dropped=tuple(np.flatnonzero(~kept).tolist()),
        repeated=tuple(repeated_rows.tolist()),
    )


class _Grouped(Struct, frozen=True, eq=False):
    """Records ``(n,)``, and the member rows ``(m,)`` in them, by record."""

    rows: Int64s
    record_of: Int64s
    keys: BytesColumn
    key_hash: UInt64s
    non_adjacent: int


def _grouped(
    names: BytesColumn, rows: Int64s, key_bytes: Int64s, stray: Bools, cuts: Int64s
) -> _Grouped:
    """Group the members ``rows`` by record; a new group begins at each of the rows ``cuts``."""
    starts = starts_record(names, rows, key_bytes, stray)
    cut = np.isin(rows, cuts) if len(cuts) else np.zeros(len(rows), np.bool_)
    starts |= cut
    record_of = np.cumsum(starts) - 1
    first_rows = rows[starts]
    is_stray = stray[first_rows]
    keys = _key_column(names, first_rows, key_bytes)
    key_hash = hash_column(keys)
    if is_stray.any():
        key_hash = np.where(is_stray, key_hash ^ STRAY_SALT, key_hash)
    if not any_twice(key_hash):
        return _Grouped(rows, record_of, keys, key_hash, 0)
    bounds = np.append(np.flatnonzero(starts), len(rows))
    merged = _merge_by_key(names, rows, bounds, is_stray, cut[starts], keys, key_hash)
    record_of = merged.record_of[record_of]
    by_record = np.argsort(record_of, kind="stable")
    return _Grouped(
        rows[by_record],
        record_of[by_record],
        keys.take(merged.first),
        key_hash[merged.first],
        len(keys) - len(merged.first),
    )


def form_run(members: MemberTable, begins: Int64s) -> FormedRecords | None:
    """The records of several shards, whose members follow one another in one table. ``begins``: the
    row where each shard begins. All members are files. None if a shard has a stray, or a repeated
    key or name: the caller has to form the records of each shard by themselves, by the reactions of
    the spec."""
    names, count = members.names, len(members)
    split = split_names(names)
    if split.stray.any():
        return None
    rows = np.arange(count)
    starts = starts_record(names, rows, split.key_bytes, split.stray)
    starts[begins[begins < count]] = True
    first = np.flatnonzero(starts)
    keys = _key_column(names, first, split.key_bytes)
    key_hash = hash_column(keys)
    # Equal keys in different shards are no repetition.
    shard_of = np.searchsorted(begins, first, side="right").astype(np.uint64)
    if any_twice(key_hash ^ mix(shard_of)):
        return None
    if len(repeated_names(names, rows, np.cumsum(starts) - 1, split.key_bytes)):
        return None
    offsets = np.append(first, count)
    return FormedRecords(
        keys=keys,
        key_hash=key_hash,
        member_offsets=offsets,
        member_rows=rows,
        key_bytes=split.key_bytes,
        payload_bytes=run_sums(members.payload_bytes, offsets),
        stored_bytes=run_sums(stored_bytes_of(members, rows), offsets),
    )


def _records_of_container(members: MemberTable, record_of: Int64s) -> FormedRecords:
    """The records that the container itself has separated, whatever the names of members."""
    assert members.own.key_bytes is not None
    count = len(members)
    rows = row_numbers(count)
    stored_bytes, payload_bytes = stored_bytes_of(members, rows), members.payload_bytes
    if count and int(record_of[-1]) == count - 1:  # ascending from 0 on: one member each
        first, offsets = rows, row_numbers(count + 1)
    else:
        first = np.flatnonzero(np.diff(record_of, prepend=-1))
        offsets = np.append(first, count).astype(np.int64)
        stored_bytes, payload_bytes = (
            run_sums(stored_bytes, offsets),
            run_sums(payload_bytes, offsets),
        )
    keys = _key_column(members.names, first, members.own.key_bytes)
    return FormedRecords(
        keys=keys,
        key_hash=hash_column(keys),
        member_offsets=offsets,
        member_rows=rows,
        key_bytes=members.own.key_bytes,
        payload_bytes=payload_bytes,
        stored_bytes=stored_bytes,
    )


def _sort_out_strays(members: MemberTable, nameless: Bools, policy: str) -> tuple[Bools, Bools]:
    """Return (rows that are records of their own, rows that are kept at all)."""
    special = (members.kind == MemberKind.DIRECTORY) | (members.kind == MemberKind.DEVICE)
    alone = nameless | special
    if policy == "drop":
        return alone, ~(alone | (members.kind == MemberKind.SYMLINK))
    if policy == "abort":
        return alone, np.ones(len(members), np.bool_)
    return alone, ~special


def starts_record(names: BytesColumn, rows: Int64s, key_bytes: Int64s, stray: Bools) -> Bools:
    """Whether each of the kept rows has another key than the kept row before it."""
    starts = np.ones(len(rows), np.bool_)
    if len(rows) < 2:
        return starts
    table = as_table(names, rows, key_bytes)
    if table is not None and not stray.any():
        same_keys = rows_equal_earlier(names, table.width, 0, table.key_bytes, 1)
        if same_keys is not None:
            starts[1:] = ~same_keys
            return starts
    lengths = key_bytes[rows]
    begin = names.offsets[:-1][rows]
    same = (lengths[1:] == lengths[:-1]) & ~stray[rows[1:]] & ~stray[rows[:-1]]
    pairs = np.flatnonzero(same)
    same[pairs] = equal_ranges(names.blob, begin[pairs], begin[pairs + 1], lengths[pairs])
    starts[1:] = ~same
    return starts


def _key_column(names: BytesColumn, rows: Int64s, key_bytes: Int64s) -> BytesColumn:
    """The first ``key_bytes`` bytes of each of ``rows``."""
    is_all = are_all_rows(rows, len(names))
    lengths = key_bytes if is_all else key_bytes[rows]
    width, key_width = names.width, int(lengths[0]) if len(lengths) else 0
    if lengths.strides != (0,) and not bool((lengths == key_width).all()):
        width = None
    if isinstance(names, NumberedColumn) and width and key_width == len(names.before) + DIGITS:
        return (names if is_all else names.take(rows)).without_end()
    if width is not None and key_width:
        blob = np.ascontiguousarray(names.blob)
        texts: NDArray[np.void] = np.ndarray((len(names),), f"V{key_width}", blob.data, 0, (width,))
        ends = np.arange(0, (len(rows) + 1) * key_width, key_width, dtype=np.int64)
        return BytesColumn(ends, texts[rows].view(np.uint8))
    return cut_rows(names.blob, names.offsets[:-1][rows], lengths)


class _Merged(Struct, frozen=True, eq=False):
    first: Int64s  # the first piece of each record, in input order; the record has its key
    record_of: Int64s  # the record of each piece


def _merge_by_key(
    names: BytesColumn,
    rows: Int64s,
    bounds: Int64s,
    stray: Bools,
    begins: Bools,
    keys: BytesColumn,
    key_hash: UInt64s,
) -> _Merged:
    """Join pieces of one key if they certainly belong together (see ``form_records``).

    Piece ``i`` has the members ``rows[bounds[i]:bounds[i + 1]]``; strays are pieces of one member.
    ``begins``: for each piece, whether it begins a group in any case.
    """
    count = len(keys)
    same_key = first_equals(keys, key_hash)
    order = np.argsort(same_key, kind="stable")  # by key, pieces in shard order
    again = np.zeros(count, np.bool_)
    again[1:] = same_key[order[1:]] == same_key[order[:-1]]
    rank = np.where(stray, np.arange(count), np.cumsum(~stray))
    # There are only strays between an adjacent piece and the one before it.
    adjacent = again & ~begins[order]
    adjacent[1:] &= rank[order[1:]] == rank[order[:-1]] + 1
    group = np.empty(count, np.int64)
    group[order] = order[last_true(~adjacent)]
    apart = _share_a_name(names, rows, bounds, same_key, group, np.unique(order[again & ~adjacent]))
    record = np.where(apart[same_key], group, same_key)
    first, record_of = np.unique(record, return_inverse=True)
    return _Merged(first, record_of.astype(np.int64))


def _share_a_name(
    names: BytesColumn,
    rows: Int64s,
    bounds: Int64s,
    same_key: Int64s,
    group: Int64s,
    later: Int64s,
) -> Bools:
    """For the first piece of each key: whether two groups of this key share a name. ``later``:
    pieces that begin a group of their key other than the first."""
    apart = np.zeros(len(same_key), np.bool_)
    in_question = np.zeros(len(same_key), np.bool_)
    in_question[same_key[later]] = True
    pieces = np.flatnonzero(in_question[same_key])
    widths = bounds[pieces + 1] - bounds[pieces]
    ends = np.cumsum(widths)
    own = np.arange(int(ends[-1]) if len(ends) else 0)
    own_rows = rows[own + np.repeat(bounds[pieces] - (ends - widths), widths)]
    piece = np.repeat(pieces, widths)
    taken = names.take(own_rows)
    same_name = first_equals(taken, hash_keys(taken.tolist(), len(taken)))
    # Equal names have equal keys, except for directories and devices, which are always strays.
    shared = (group[piece[same_name]] != group[piece]) & (
        same_key[piece[same_name]] == same_key[piece]
    )
    apart[same_key[piece[shared]]] = True
    return apart
