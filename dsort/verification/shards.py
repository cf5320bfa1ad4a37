"""Reads shards again: once, in order, through one buffer that all of them share.

A shard that fits in the buffer is read in one piece. For a larger one, the headers are read first,
then its bytes, window by window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
import xxhash
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from dsort.data.columns import Bools, BytesColumn, Int32s, Int64s, UInt64s
from dsort.data.hashes import FileDigests, hash_keys
from dsort.data.members import MemberKind, MemberTable
from dsort.data.records import STRAY_SALT, FormedRecords, split_names
from dsort.data.segments import Segments
from dsort.moves.input_shard import ShardBytes
from dsort.moves.slices import slices_of
from dsort.order.equal_keys import repeated_hashes
from dsort.pipeline.pipeline import OutputForm, Pipeline
from dsort.verification.plain import (
    bare_members,
    with_member_defaults,
    without_final_newlines,
)

DIGEST_BYTES = 16
_GAP_BYTES_MAX = 1 << 20


class Checksums:
    """XXH3-64 and the ``wanted`` digests of a whole shard, computed while its bytes are read in
    order."""

    def __init__(self, shard: ShardBytes, wanted: Sequence[str]) -> None:
        self._shard = shard
        self._xxh3 = xxhash.xxh3_64()
        self._digests = FileDigests(wanted)
        self._at = 0
        if shard.codec is not None:
            shard.watch = self._take

    def cover(self, view: memoryview, base: int) -> None:
        """Add the bytes of ``view``, which begins at byte ``base``. Bytes that were added before
        are left out, gaps are read. A shard that is decoded adds the bytes of its file itself."""
        if not self._shard.is_as_stored:
            return
        if base > self._at:
            self._read_gap(base)
        self._take(view[self._at - base :])

    def finish(self) -> tuple[str, str]:
        """(XXH3-64, the text of the ``FileDigests``); reads the bytes that are still missing."""
        if self._shard.is_as_stored:
            self._read_gap(self._shard.size_bytes)
        for piece in self._shard.file_pieces(self._at):  # of a file that cannot be decoded
            self._take(piece)
        return self._xxh3.hexdigest(), self._digests.text()

    def _take(self, view: memoryview | bytes) -> None:
        self._xxh3.update(view)
        self._digests.update(view)
        self._at += len(view)

    def _read_gap(self, end: int) -> None:
        while self._at < end:
            size = min(end - self._at, _GAP_BYTES_MAX)
            self._take(memoryview(self._shard.at(self._at, size)))


def member_digests(
    shard: ShardBytes,
    members: MemberTable,
    *,
    names: Sequence[bytes],
    seen: Callable[[memoryview, int], None],
) -> UInt64s:
    """XXH3-128 of the bytes that each member takes in an output shard: headers, payload and
    padding; shape ``(n, 2)``. ``names``: a name for each member, which becomes part of its digest.
    ``seen`` is called with the bytes that were read, and the place of the first of them."""
    count = len(members)
    offsets = np.arange(count + 1, dtype=np.int64)
    no_bytes = np.zeros(0, np.uint8)
    ranges = Segments(offsets, members.range_start, members.range_length, no_bytes)
    heads = _heads(members, names)
    tails = [members.tails.get(row, b"") for row in range(count)] if members.tails else []
    found: list[bytes] = []
    for window in shard.windows(ranges):
        if window.stop == window.row:
            state = xxhash.xxh3_128(heads[window.row] if heads else b"")
            at = int(ranges.start[window.row])
            for piece in shard.stream(ranges, window.row):
                seen(piece, at)
                state.update(piece)
                at += len(piece)
            state.update(tails[window.row] if tails else b"")
            found.append(state.digest())
            continue
        seen(window.view, window.base)
        slices = slices_of(window.view, ranges.run(window.row, window.stop), window.base)
        if heads or tails:
            some = range(window.row, window.stop)
            found.extend(
                _digest_between(heads[row] if heads else b"", piece, tails[row] if tails else b"")
                for row, piece in zip(some, slices, strict=True)
            )
        else:
            found.extend(map(xxhash.xxh3_128_digest, slices))
    return _columns(found)


def joined_digests(digests: UInt64s, offsets: Int64s) -> UInt64s:
    """One digest for each run ``digests[offsets[i]:offsets[i + 1]]``, shape ``(n, 2)``."""
    blob = digests.tobytes()
    bounds = (offsets * DIGEST_BYTES).tolist()
    return _columns([xxhash.xxh3_128_digest(blob[a:b]) for a, b in pairwise(bounds)])


class ComparedBytes(Struct, frozen=True):
    """The things that must be equal in an input record and its output record.

    ``converted``: only names and payloads must be equal, because headers differ; otherwise all
    stored bytes must be. ``keyed``: the key must be equal, too; a record that is only numbered gets
    another key when it moves. ``stripped``: payloads are compared without a line feed at their end.
    ``defaults``: the payloads of members that records lack, which a conversion adds. ``mixed``:
    some records are converted, others are not. ``apart``: the extension of a member of which
    only the name is compared. In rows, this is the column of keys."""

    converted: bool = False
    keyed: bool = True
    stripped: bool = False
    defaults: tuple[tuple[str, bytes], ...] = ()
    mixed: bool = False
    apart: bytes = b""

    @staticmethod
    def of(
        pipeline: Pipeline, form: OutputForm, key_field: str = "", *, rows_have_keys: bool = False
    ) -> ComparedBytes:
        """The parts of records that an output must keep. ``rows_have_keys``: if rows stay rows,
        whether they have their keys."""
        inputs, there = pipeline.reading.containers, form.container
        containers = [each.container for each in pipeline.outputs]
        converts = form.is_late or any(each != there for each in inputs)
        converted, apart = converts or pipeline.makes_records, b""
        keyed = not there.numbers_records or (converts and there.keeps_keys)
        if there.is_columnar and pipeline.reads_rows:
            keyed, converted = rows_have_keys, True  # cells are members, in any order
            apart = f".{key_field}".encode() if key_field else b""
        return ComparedBytes(
            converted,
            keyed,
            converted and there.strips_final_newline,
            there.member_defaults if converted else (),
            converts and any(each in containers for each in inputs),
            apart,
        )

    def members(self, shard: ShardBytes, members: MemberTable, stray_members: str) -> MemberTable:
        """The members of a scanned shard in the form in which they are compared."""
        if not self.converted:
            return members
        # Links stay in records that are not converted, and an output does not show which these are.
        bare = bare_members(shard, members, "drop" if self.mixed else stray_members)
        return without_final_newlines(shard, bare) if self.stripped else bare

    def records(
        self, members: MemberTable, records: FormedRecords
    ) -> tuple[MemberTable, FormedRecords]:
        """Input records with the members that a conversion adds to them."""
        if not self.defaults:
            return members, records
        return with_member_defaults(members, records, self.defaults)

    def digests(
        self,
        shard: ShardBytes,
        members: MemberTable,
        key_bytes: Int64s,
        seen: Callable[[memoryview, int], None] = lambda view, base: None,
    ) -> UInt64s:
        """The digest of each member, shape ``(n, 2)``. ``key_bytes``: the length of the key of its
        record, with which its name begins."""
        names: list[bytes] = []
        if self.converted:
            names = members.names.tolist()
            if not self.keyed:
                pairs = zip(names, key_bytes.tolist(), strict=True)
                names = [name[length:] for name, length in pairs]
        found = member_digests(shard, members, names=names, seen=seen)
        if self.apart:
            # The name has the key, which a row of nulls has nowhere else.
            lengths = key_bytes.tolist()
            given = enumerate(members.names.tolist())
            rows = [row for row, name in given if name[lengths[row] :] == self.apart]
            found[rows] = _columns([xxhash.xxh3_128_digest(names[row]) for row in rows])
        return found

    def record_digests(self, digests: UInt64s, offsets: Int64s) -> UInt64s:
        """The digest of each record, shape ``(n, 2)``; the members of record ``i`` have
        ``digests[offsets[i]:offsets[i + 1]]``. After a conversion the order of members does not
        count, because each container has its own."""
        if self.converted:
            record_of = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
            digests = digests[np.lexsort((digests[:, 1], digests[:, 0], record_of))]
        return joined_digests(digests, offsets)


STORED_BYTES = ComparedBytes()


def digest_of(digests: UInt64s, compared: ComparedBytes = STORED_BYTES) -> tuple[int, int]:
    """The digest of a record whose members have ``digests``."""
    high, low = compared.record_digests(digests, np.array([0, len(digests)]))[0].tolist()
    return high, low


def _heads(members: MemberTable, names: Sequence[bytes]) -> list[bytes]:
    """The bytes before the range of each member; [] if no member has any."""
    literals = members.literals
    # The length in front tells where the name ends and the literal begins.
    if names:
        pairs = enumerate(names)
        return [b"%d/%b" % (len(name), name) + literals.get(row, b"") for row, name in pairs]
    return [literals.get(row, b"") for row in range(len(members))] if literals else []


def _digest_between(head: bytes, piece: memoryview, tail: bytes) -> bytes:
    if not head and not tail:
        return bytes(xxhash.xxh3_128_digest(piece))
    state = xxhash.xxh3_128(head)
    state.update(piece)
    state.update(tail)
    return bytes(state.digest())


def _columns(digests: list[bytes]) -> UInt64s:
    whole: NDArray[np.uint64] = np.frombuffer(b"".join(digests), ">u8").astype(np.uint64)
    return whole.reshape(-1, 2)


RecordSizes = Mapping[int, frozenset[tuple[int, int]]]
"""Number of members → the digests of the records that have this number of members."""


class KnownRecords(Protocol):
    """The facts of the inputs by which records are found."""

    @property
    def repeated(self) -> UInt64s:
        """The hashes of keys that several records have, sorted."""

    def has(self, digests: UInt64s) -> Bools:
        """Which of ``digests``, shape ``(n, 2)``, belong to a record."""

    def of_key(self, key_hash: int) -> RecordSizes:
        """The numbers of members and the digests of the records with that key."""


class ShardRecords(Struct, frozen=True, eq=False):
    """The records of one shard, rows ``(n,)``; record ``i`` has the members ``member_rows[j]`` for
    ``j`` from ``member_offsets[i]`` to ``member_offsets[i + 1] - 1``."""

    members: MemberTable
    member_digests: UInt64s  # of each member in the table, shape (m, 2)
    member_rows: Int64s
    member_offsets: Int64s
    key_bytes: Int64s  # of each member in the table: the length of the key in its name
    keys: BytesColumn
    key_hash: UInt64s
    digests: UInt64s  # shape (n, 2)

    def __len__(self) -> int:
        return len(self.key_hash)

    def rows_of(self, record: int) -> list[int]:
        """The member table rows of one record."""
        first, last = self.member_offsets[record : record + 2].tolist()
        rows: list[int] = self.member_rows[first:last].tolist()
        return rows


# -- outputs -------------------------------------------------------------------------------------


def output_key_bytes(members: MemberTable) -> tuple[Int64s, Bools]:
    """For each name in an output shard: (length of its key, whether it is a stray, that is, a name
    without extension)."""
    if members.own.key_bytes is not None:
        return members.own.key_bytes, np.zeros(len(members), np.bool_)
    split = split_names(members.names)
    special = (members.kind == MemberKind.DIRECTORY) | (members.kind == MemberKind.DEVICE)
    stray = split.stray | special
    return np.where(stray, members.names.lengths, split.key_bytes), stray


# The records of an input are formed by the job's policies, those of an output from its members as
# they are stored. An output does not mark where a record ends: members side by side with one key
# are one record, and a repeated name begins another one. But records of one key may be side by side
# and have no name in common: then the inputs decide which records to look for.
def output_records(
    members: MemberTable,
    member_digests: UInt64s,
    known: KnownRecords,
    compared: ComparedBytes,
) -> ShardRecords:
    """The records of an output shard, in the order in which they are stored. ``known``: the
    inputs."""
    names = members.names.tolist()
    key_bytes, stray = output_key_bytes(members)
    keys = [name[:length] for name, length in zip(names, key_bytes.tolist(), strict=True)]
    key_hash = hash_keys(keys, len(keys))
    key_hash = np.where(stray, key_hash ^ STRAY_SALT, key_hash)
    starts = np.ones(len(members), np.bool_)
    if members.own.record_of is not None:
        starts[1:] = members.own.record_of[1:] != members.own.record_of[:-1]
    else:
        starts[1:] = key_hash[1:] != key_hash[:-1]
        runs = starts.copy()
        _cut_where_names_come_again(starts, hash_keys(names, len(names)))
        if len(known.repeated):
            _cut_as_known(starts, runs, key_hash, member_digests, known, compared)
    offsets = _bounds(starts)
    return ShardRecords(
        members=members,
        member_digests=member_digests,
        member_rows=np.arange(len(members), dtype=np.int64),
        member_offsets=offsets,
        key_bytes=key_bytes,
        keys=BytesColumn.of([keys[row] for row in offsets[:-1].tolist()]),
        key_hash=key_hash[offsets[:-1]],
        digests=compared.record_digests(member_digests, offsets),
    )


def _bounds(starts: Bools) -> Int64s:
    """The row where each run begins, and the row after the last one."""
    return np.append(np.flatnonzero(starts), len(starts)).astype(np.int64)


def _cut_where_names_come_again(starts: Bools, name_hash: UInt64s) -> None:
    """Set ``starts`` at each member whose name an earlier member of the same record has."""
    again = np.isin(name_hash, repeated_hashes(name_hash))
    if not again.any():
        return
    bounds = _bounds(starts)
    for run in np.unique((np.cumsum(starts) - 1)[again]).tolist():
        first, last = bounds[run : run + 2].tolist()
        seen: set[int] = set()
        for row, name in enumerate(name_hash[first:last].tolist(), first):
            if name in seen:
                starts[row] = True
                seen.clear()
            seen.add(name)


def _cut_as_known(
    starts: Bools,
    runs: Bools,
    key_hash: UInt64s,
    digests: UInt64s,
    known: KnownRecords,
    compared: ComparedBytes,
) -> None:
    """Cut a run of one key again if one of its records is not among the inputs."""
    bounds = _bounds(starts)
    doubtful = bounds[:-1][~known.has(compared.record_digests(digests, bounds))]
    doubtful = doubtful[np.isin(key_hash[doubtful], known.repeated)]
    ends = _bounds(runs)
    for run in np.unique((np.cumsum(runs) - 1)[doubtful]).tolist():
        first, last = ends[run : run + 2].tolist()
        sizes = known.of_key(int(key_hash[first]))
        cuts = _known_cuts(starts[first:last], digests[first:last], sizes, compared)
        starts[first:last] = False
        starts[[first + cut for cut in cuts]] = True


def _known_cuts(
    starts: Bools, digests: UInt64s, sizes: RecordSizes, compared: ComparedBytes
) -> list[int]:
    """Where the records of one run begin. Each record is the longest one of the inputs that fits at
    its start; if none fits, the record ends at the next cut in ``starts``."""
    longest_first = sorted(sizes, reverse=True)
    other_cuts = _bounds(starts).tolist()
    cuts, at = [], 0
    while at < len(starts):
        cuts.append(at)
        for size in longest_first:
            if (
                at + size <= len(starts)
                and digest_of(digests[at : at + size], compared) in sizes[size]
            ):
                at += size
                break
        else:
            at = next(cut for cut in other_cuts if cut > at)
    return cuts


def ways_of(compared: Sequence[ComparedBytes]) -> list[list[ComparedBytes]]:
    """The different ways of comparing, in groups. One reading of a shard serves a whole group."""
    found: dict[tuple[object, ...], list[ComparedBytes]] = {}
    for each in dict.fromkeys(compared):
        found.setdefault((each.converted, each.stripped, each.defaults), []).append(each)
    return list(found.values())


def as_compared(
    shard: ShardBytes, members: MemberTable, records: FormedRecords, way: ComparedBytes
) -> ShardRecords:
    """The records of an input shard, with their digests as ``way`` makes them."""
    digests, offsets = way.digests(shard, members, records.key_bytes), records.member_offsets
    return ShardRecords(
        members=members,
        member_digests=digests,
        member_rows=records.member_rows,
        member_offsets=offsets,
        key_bytes=records.key_bytes,
        keys=records.keys,
        key_hash=records.key_hash,
        digests=way.record_digests(digests[records.member_rows], offsets),
    )


def combined(
    one: ShardRecords,
    other: ShardRecords,
    compared: Sequence[ComparedBytes],
    way: ComparedBytes,
    group: Int32s,
) -> ShardRecords:
    """``one``, with the digests of ``other`` for the records of outputs that are compared in that
    ``way``. Both have the same members. ``compared``: how each output is compared; ``group``: the
    output of each record."""
    is_other = _compared_so(compared, way, group)
    of_rows = np.repeat(is_other, np.diff(one.member_offsets))
    digests = one.member_digests.copy()
    digests[one.member_rows[of_rows]] = other.member_digests[other.member_rows[of_rows]]
    by_record = np.where(is_other[:, None], other.digests, one.digests)
    return replace(one, member_digests=digests, digests=by_record)


def digests_by_output(
    compared: Sequence[ComparedBytes], digests: UInt64s, bounds: Int64s, group: Int32s
) -> UInt64s:
    """The digest of each record, made in the way in which its output is compared. The members of
    record ``i`` have ``digests[bounds[i]:bounds[i + 1]]``. ``group``: the output of each record."""
    ways = [*dict.fromkeys(compared)]
    found = ways[0].record_digests(digests, bounds)
    for way in ways[1:]:
        is_other = _compared_so(compared, way, group)
        found = np.where(is_other[:, None], way.record_digests(digests, bounds), found)
    return found


def _compared_so(compared: Sequence[ComparedBytes], way: ComparedBytes, group: Int32s) -> Bools:
    found: Bools = np.array([each == way for each in compared])[np.maximum(group, 0)]
    return found
