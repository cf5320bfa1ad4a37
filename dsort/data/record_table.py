"""The records of one input shard, in the form in which algorithms read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dsort.data.columns import Bools, BytesColumn, Int64s, UInt64s, cut_rows
from dsort.data.members import MemberTable
from dsort.data.numbered import are_positions
from dsort.data.records import FormedRecords
from dsort.data.row_bytes import side_by_side
from dsort.data.tally import FITS
from dsort.data.text_sets import repeated_names


class RecordTable(Struct, frozen=True, eq=False):
    """The records of the shard ``shard``. ``read``: returns the content of a member, by table and
    row; ``read_many``: the contents of several members, if one call costs less. ``input``: the
    spec's name for the input of the shard; "" for an input without a name. ``first``: for steps
    that need it, the number of the first record. Records are counted from 0, in input order, over
    all shards, without records that earlier steps left out. ``earlier``: for each record, how many
    earlier records of the shard have its key, shape ``(n,)``; None: all keys differ. ``report``:
    counts events by kind, with names. ``are_rows``: members are cells of tables."""

    shard: str
    members: MemberTable
    records: FormedRecords
    read: Callable[[MemberTable, int], bytes]
    input: str = ""
    first: int = 0
    earlier: Int64s | None = None
    read_many: Callable[[MemberTable, Sequence[int]], list[bytes]] | None = None
    report: Callable[[str, int, Iterable[str]], None] = lambda kind, count, names: None
    are_rows: bool = False

    def __len__(self) -> int:
        return len(self.records)

    def keeping(self, kept: Bools) -> RecordTable:
        """The records where ``kept``, shape ``(n,)``, is true, in their order."""
        return replace(self, records=self.records.keeping(kept))

    @property
    def keys(self) -> BytesColumn:
        """The record keys."""
        return self.records.keys

    @property
    def first_names(self) -> BytesColumn:
        """The name of each record's first member."""
        records = self.records
        return self.members.names.take(records.member_rows[records.member_offsets[:-1]])

    @property
    def key_hash(self) -> UInt64s:
        """The hash of each record key, salted for strays."""
        return self.records.key_hash

    @property
    def are_distinct(self) -> bool:
        """Whether all keys are known to differ, because they are positions in the shard."""
        return are_positions(self.keys)

    @property
    def payload_bytes(self) -> Int64s:
        """The size of each record's members, without headers and padding."""
        return self.records.payload_bytes

    def fits(self, what: str, fits: bool) -> None:
        """Report that ``what``, an entry of an option, fits some record. Do nothing if ``fits`` is
        false."""
        if fits:
            self.report(f"{FITS}{what}", 1, ())

    def members_with(self, extension: str) -> Bools:
        """Whether each row of ``records.member_rows`` has exactly this extension, dot included;
        shape ``(m,)``. Vectorised."""
        wanted = np.frombuffer(extension.encode("utf-8", "surrogateescape"), np.uint8)
        members, records = self.members, self.records
        rows = records.member_rows
        lengths = members.names.lengths[rows] - records.key_bytes[rows]
        of_length = np.flatnonzero(lengths == len(wanted))
        starts = members.names.offsets[:-1][rows[of_length]] + records.key_bytes[rows[of_length]]
        span = members.names.blob[starts[:, None] + np.arange(len(wanted))]
        found = np.zeros(len(rows), np.bool_)
        found[of_length[(span == wanted).all(axis=1)]] = True
        return found

    @property
    def record_of(self) -> Int64s:
        """The record of each row of ``records.member_rows``, shape ``(m,)``."""
        return np.repeat(np.arange(len(self)), np.diff(self.records.member_offsets))

    def rows_with(self, extension: str) -> Int64s:
        """For each record, the row of its last member with exactly this extension, dot included; -1
        if it has none."""
        hits = np.flatnonzero(self.members_with(extension))
        found = np.full(len(self), -1, np.int64)
        found[self.record_of[hits]] = self.records.member_rows[hits]
        return found

    def json_alone(self) -> Int64s:
        """For each record whose only member is ``.json``, such as a line, the row of that member;
        -1 for other records. In such a record, an extension that no member has stands for the field
        of that name in the JSON."""
        if self.are_rows:
            return np.full(len(self), -1, np.int64)
        return np.where(np.diff(self.records.member_offsets) == 1, self.rows_with(".json"), -1)

    # -- changes: payload is not changed, and headers get new names later -------------------------

    def keeping_members(self, kept: Bools) -> RecordTable:
        """The records with only the members for which ``kept``, a mask of ``records.member_rows``,
        is true. Records without members are left out."""
        if not len(self) or kept.all():
            return self
        return replace(self, records=self.records.keeping_members(kept, self.members))

    def with_extensions(
        self, rows: Int64s, which: Int64s, extensions: Sequence[str]
    ) -> RecordTable:
        """Change the extensions of the members ``rows`` of the member table: row ``rows[i]`` gets
        ``extensions[which[i]]``, with its dot."""
        if not len(rows):
            return self
        names, count = self.members.names, len(self.members)
        kept_bytes, tail = names.lengths.copy(), np.zeros(count, np.int64)
        kept_bytes[rows], tail[rows] = self.records.key_bytes[rows], which + 1
        texts = [b"", *(each.encode("utf-8", "surrogateescape") for each in extensions)]
        heads = cut_rows(names.blob, names.offsets[:-1], kept_bytes)
        names = side_by_side([heads, BytesColumn.of(texts).take(tail)], count)
        return replace(self, members=replace(self.members, names=names))

    def repeated_names(self) -> Int64s:
        """Positions in ``records.member_rows`` of members whose name is repeated later in the
        record."""
        records = self.records
        return repeated_names(
            self.members.names, records.member_rows, self.record_of, records.key_bytes
        )

    def with_keys(self, keys: BytesColumn) -> RecordTable:
        """The same records with new keys, shape ``(n,)``, and with members whose names have these
        keys."""
        records, names = self.records, self.members.names
        rows, of_record = records.member_rows, self.record_of
        keys_of_rows = np.zeros(len(self.members), np.int64)
        keys_of_rows[rows] = of_record + 1  # 0: in no record, so the name stays
        extensions = names.suffixes(np.where(keys_of_rows > 0, records.key_bytes, 0))
        prefixes = BytesColumn.concat([BytesColumn.of([b""]), keys]).take(keys_of_rows)
        key_bytes = np.where(keys_of_rows > 0, prefixes.lengths, records.key_bytes)
        members = replace(self.members, names=side_by_side([prefixes, extensions], len(names)))
        return replace(self, members=members, records=records.rekeyed(keys, key_bytes))

    def with_copies(self, counts: Int64s, *, named: bool) -> tuple[RecordTable, Int64s]:
        """Return (the records, each ``counts`` times with its copies side by side, shape ``(n,)``;
        the rows of the member table that were repeated at its end). ``named``: a copy gets its own
        key, ``key~1``, and its own members with matching names. Otherwise a copy is the same record
        again."""
        record = np.repeat(np.arange(len(self)), counts)
        taken = replace(self, records=self.records.taking(record))
        nth = np.arange(len(record)) - np.repeat(np.cumsum(counts) - counts, counts)
        again = np.flatnonzero(nth[taken.record_of] > 0)
        if not named or not len(again):
            return taken, np.zeros(0, np.int64)
        rows = taken.records.member_rows.copy()
        added = rows[again]
        rows[again] = len(self.members) + np.arange(len(again))
        key_bytes = taken.records.key_bytes
        records = replace(
            taken.records,
            member_rows=rows,
            key_bytes=np.append(key_bytes, key_bytes[added]),
        )
        members = self.members.with_rows_again(added)
        keys = BytesColumn.of(
            [
                key + b"~%d" % number if number else key
                for key, number in zip(taken.keys.tolist(), nth.tolist(), strict=True)
            ]
        )
        return replace(self, members=members, records=records).with_keys(keys), added

    def contents(self, rows: Sequence[int]) -> list[bytes]:
        """The contents of the members in ``rows`` of the member table."""
        if self.read_many is None:
            return [self.read(self.members, row) for row in rows]
        return self.read_many(self.members, rows)

    def content(self, row: int) -> bytes:
        """The content of the member in a row of the member table."""
        return self.read(self.members, row)
