"""Repeats a job's changes of the members of a shard, one record at a time.

``workers`` does the same by columns, for all records at once. That code is not used here, so that
its mistakes are found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dsort.containers.columnar.cells import cells_of_rows
from dsort.containers.columnar.columns import batch_of_records, cell_decoders, row_contents
from dsort.containers.columnar.schema import plain_schema, schema_bytes, schema_of
from dsort.data.columns import BytesColumn, Int64s
from dsort.data.hashes import hash_keys
from dsort.data.members import MemberKind, MemberTable
from dsort.data.records import FormedRecords, form_records
from dsort.errors import CorruptShardError, ObjectNotFoundError, StrayMemberError
from dsort.job.setup.tables import made_schema, table_schema
from dsort.job.setup.user_code import CodeAgain
from dsort.moves.bare import BARE, payload_table
from dsort.moves.input_shard import ShardBytes
from dsort.naming.names import KEY_COLUMN, readable
from dsort.naming.safe_names import new_safe_names, safe_name, unsafe_links, unsafe_rows
from dsort.pipeline.compile import steps_of
from dsort.spec.model import JobSpec
from dsort.storage.bucket import Bucket
from dsort.transforms.base import Step
from dsort.transforms.rekey import JoinKey, Rekey

# -- names ---------------------------------------------------------------------------------------


def with_names(shard: ShardBytes, members: MemberTable, names: Mapping[int, bytes]) -> MemberTable:
    """``members`` with the same payloads. The rows in ``names`` have new names, and headers that
    fit them."""
    if not names:
        return members
    named = _named(members, names)
    if shard.container is BARE:
        return named
    old = BytesColumn.of(_headers(shard, members, names))
    new = shard.container.renamed(old, BytesColumn.of(list(names.values())))
    return _with_headers(named, dict(zip(names, new.tolist(), strict=True)))


def with_names_of_steps(
    shard: ShardBytes, members: MemberTable, named: MemberTable, rows: Int64s
) -> MemberTable:
    """The table ``named``, which steps have made from ``members``, with headers that fit its names.
    ``rows``: the members that are in a record."""
    if named is members or shard.container is BARE:
        return named
    old, new = members.names.tolist(), named.names.tolist()
    return with_names(
        shard, named, {row: new[row] for row in rows.tolist() if old[row] != new[row]}
    )


def with_new_keys(
    shard: ShardBytes,
    members: MemberTable,
    records: FormedRecords,
    new_keys: Mapping[int, bytes],
) -> tuple[MemberTable, FormedRecords]:
    """The members and records of one input shard in the form that they must have in outputs;
    ``new_keys`` are by the ordinal of the record."""
    if not new_keys:
        return members, records
    keys = records.keys.tolist()
    key_hash, key_bytes = records.key_hash.copy(), records.key_bytes.copy()
    bare = hash_keys(keys, len(keys))
    names = {}
    for record, new_key in new_keys.items():
        salt = bare[record] ^ key_hash[record]  # not 0 for a stray, whose hash has other bits
        key_hash[record] = hash_keys([new_key], 1)[0] ^ salt
        keys[record] = new_key
        for row in records.rows_of(record):
            names[row] = new_key + members.names[row][int(key_bytes[row]) :]
            key_bytes[row] = len(new_key)
    changed = replace(records, keys=BytesColumn.of(keys), key_hash=key_hash, key_bytes=key_bytes)
    return with_names(shard, members, names), changed


def with_safe_names(shard: ShardBytes, members: MemberTable) -> MemberTable:
    """``members`` with safe names and links, which stay inside the directory where they are
    unpacked."""
    container = shard.container
    if members.own.record_of is not None and container is not BARE:
        return members  # their names are not stored in shards
    in_headers = container.names
    if in_headers is None:
        return members
    names = dict(new_safe_names(members.names, unsafe_rows(members.names)))
    symlinks = np.flatnonzero(members.kind == MemberKind.SYMLINK).tolist()
    prefixed = members.notes.unsafe_prefixes
    looked_at = {*names, *symlinks, *prefixed}
    headers = dict(zip(looked_at, _headers(shard, members, looked_at), strict=True))
    links, targets = [], {}
    for row in symlinks:
        targets[row] = in_headers.target_of(headers[row])
        links.append((row, names.get(row, members.names[row]), targets[row]))
        if other := in_headers.other_of(headers[row]):
            links.append((row, safe_name(other), targets[row]))
    new_headers = {
        row: in_headers.retargeted(headers[row], safe_name(targets[row]))
        for row in unsafe_links(links)
    }
    for row in prefixed:
        if in_headers.other_of(headers[row]):
            names.setdefault(row, members.names[row])  # it keeps the name that all others read
    old = BytesColumn.of([new_headers.get(row, headers[row]) for row in names])
    new = in_headers.renamed(old, BytesColumn.of([*names.values()]))
    new_headers.update(zip(names, new.tolist(), strict=True))
    named = _named(members, names)
    if members.own.key_bytes is not None:  # the key has grown, the extension has not
        longer_by = named.names.lengths - members.names.lengths
        own = replace(members.own, key_bytes=members.own.key_bytes + longer_by)
        named = replace(named, own=own)
    return _with_headers(named, new_headers)


def _named(members: MemberTable, names: Mapping[int, bytes]) -> MemberTable:
    texts = members.names.tolist()
    for row, name in names.items():
        texts[row] = name
    return replace(members, names=BytesColumn.of(texts))


def _headers(shard: ShardBytes, members: MemberTable, rows: Iterable[int]) -> list[bytes]:
    """All bytes before the payload of each of ``rows``."""
    starts, ends = members.range_start.tolist(), members.payload_start.tolist()
    literals = members.literals
    return [literals.get(row, b"") + shard.at(starts[row], ends[row] - starts[row]) for row in rows]


def _with_headers(members: MemberTable, headers: Mapping[int, bytes]) -> MemberTable:
    """``members`` with ``headers`` (by row) before their payloads, in place of their own."""
    if not headers:
        return members
    rows = list(headers)
    start, length = members.range_start.copy(), members.range_length.copy()
    length[rows] -= members.payload_start[rows] - start[rows]
    start[rows] = members.payload_start[rows]
    literals = {**members.literals, **headers}
    return replace(members, literals=literals, range_start=start, range_length=length)


# -- copies --------------------------------------------------------------------------------------


def copied(
    shard: ShardBytes, members: MemberTable, records: FormedRecords, counts: Int64s
) -> tuple[MemberTable, FormedRecords]:
    """Each record as many times as its number in ``counts``, copies side by side. The keys of the
    copies of ``key`` are ``key~1``, ``key~2``... where the container has names for records."""
    if (counts == 1).all():
        return members, records
    is_named = shard.container.names is not None
    keys, offsets = records.keys.tolist(), records.member_offsets.tolist()
    rows = records.member_rows.tolist()
    taken: list[int] = []
    new_keys: dict[int, bytes] = {}
    new_rows: list[list[int]] = []
    added: list[int] = []
    for record, count in enumerate(counts.tolist()):
        own = rows[offsets[record] : offsets[record + 1]]
        for number in range(count):
            if number and is_named:
                new_keys[len(taken)] = keys[record] + b"~%d" % number
                first = len(members) + len(added)
                new_rows.append([*range(first, first + len(own))])
                added += own
            else:
                new_rows.append(own)
            taken.append(record)
    sources = np.array(taken, np.int64)
    again = np.array(added, np.int64)
    members = members.with_rows_again(again)
    found = replace(
        records,
        keys=records.keys.take(sources),
        key_hash=records.key_hash[sources],
        member_offsets=np.cumsum([0, *map(len, new_rows)]),
        member_rows=np.array([row for each in new_rows for row in each], np.int64),
        key_bytes=np.append(records.key_bytes, records.key_bytes[again]),
        payload_bytes=records.payload_bytes[sources],
        stored_bytes=records.stored_bytes[sources],
    )
    members, found = with_new_keys(shard, members, found, new_keys)
    # A copy is placed by the hash of its key alone, even if it is the copy of a stray.
    key_hash = found.key_hash.copy()
    key_hash[list(new_keys)] = hash_keys(new_keys.values(), len(new_keys))
    return members, replace(found, key_hash=key_hash)


# -- conversion ----------------------------------------------------------------------------------


def bare_members(shard: ShardBytes, members: MemberTable, stray_members: str) -> MemberTable:
    """The names and payloads of the members of a scanned shard. Changes ``shard``, too, which has
    no headers afterwards. ``StrayMemberError`` for links, unless the spec leaves them out."""
    is_link = np.isin(members.kind, (MemberKind.SYMLINK, MemberKind.HARDLINK))
    links = np.flatnonzero(is_link).tolist()
    if links and stray_members != "drop":
        raise StrayMemberError(
            f"shard {shard.name} has {len(links)} links, the first is "
            f"{readable(members.names[links[0]])}; a job that converts shards cannot keep them",
            hint="stray_members: drop leaves them out",
        )
    bare = payload_table(shard, members)
    shard.container = BARE
    return bare


def without_final_newlines(shard: ShardBytes, members: MemberTable) -> MemberTable:
    """A bare table whose payloads are without one line feed at their end."""
    literals, length = dict(members.literals), members.range_length.copy()
    payload_bytes = members.payload_bytes.copy()
    for row in np.flatnonzero(payload_bytes > 0).tolist():
        start = int(members.payload_start[row])
        if start < 0:
            literals[row] = literals[row].removesuffix(b"\n")
            payload_bytes[row] = len(literals[row])
        elif shard.at(start + int(payload_bytes[row]) - 1, 1) == b"\n":
            payload_bytes[row] -= 1
            length[row] -= 1
    return replace(members, payload_bytes=payload_bytes, range_length=length, literals=literals)


def with_member_defaults(
    members: MemberTable, records: FormedRecords, defaults: Sequence[tuple[str, bytes]]
) -> tuple[MemberTable, FormedRecords]:
    """A bare table, and its records, with the members of ``defaults`` (extension, payload) that a
    record lacks, added behind all others."""
    names, keys, offsets = members.names.tolist(), records.keys.tolist(), records.member_offsets
    rows, key_bytes = records.member_rows.tolist(), records.key_bytes.tolist()
    lacking: list[tuple[int, bytes, bytes]] = []
    for record, (first, last) in enumerate(pairwise(offsets.tolist())):
        extensions = {names[row][key_bytes[row] :] for row in rows[first:last]}
        for extension, payload in defaults:
            text = f".{extension}".encode("utf-8", "surrogateescape")
            if text not in extensions:
                lacking.append((record, keys[record] + text, payload))
    if not lacking:
        return members, records
    of_record = np.array([record for record, _, _ in lacking], np.int64)
    payloads = [payload for _, _, payload in lacking]
    nowhere, nothing = np.full(len(lacking), -1), np.zeros(len(lacking), np.int64)
    longer = replace(
        members,
        names=BytesColumn.of([*names, *(name for _, name, _ in lacking)]),
        kind=np.append(members.kind, np.full(len(lacking), MemberKind.FILE, np.uint8)),
        payload_start=np.append(members.payload_start, nowhere),
        payload_bytes=np.append(members.payload_bytes, list(map(len, payloads))),
        range_start=np.append(members.range_start, nowhere),
        range_length=np.append(members.range_length, nothing),
        literals={**members.literals, **dict(enumerate(payloads, len(members)))},
        own=members.own.with_rows_behind(records.keys.lengths[of_record]),
    )
    return longer, records.with_members(of_record, longer)


class RowsAsTheyAre(Struct, frozen=True):
    """The substitute for ``RowsAgain`` if no step makes rows from rows."""

    def cells(
        self, shard: ShardBytes, members: MemberTable, records: FormedRecords
    ) -> tuple[MemberTable, FormedRecords]:
        """The rows that the steps make from ``records``, as members and records: each cell is a
        member, and each row is a record. ``ConversionError`` for a value that a column cannot
        hold."""
        return members, records


class RowsAgain(RowsAsTheyAre, frozen=True):
    """Makes the rows of steps again. ``schema``: the plain schema of these rows. ``key_column``: as
    for ``row_contents``."""

    schema: Any
    key_column: str

    @classmethod
    def of(
        cls, steps: Sequence[Step], key_field: str, bucket: Bucket, shard: str, code: CodeAgain
    ) -> RowsAgain:
        """The object for these ``steps``, if the rows that they get have the columns of ``shard``.
        From now on ``code`` receives rows as values. Raises ``InputError`` and its subclasses."""
        read = table_schema(bucket, shard)
        code.read_rows(cell_decoders(plain_schema(shard, read)))
        made = schema_of(made_schema(steps, key_field, schema_bytes(read)))
        return cls(plain_schema(shard, made), key_field)

    def cells(
        self, shard: ShardBytes, members: MemberTable, records: FormedRecords
    ) -> tuple[MemberTable, FormedRecords]:
        keys = records.keys.tolist()
        contents = [
            [
                (members.names[row][int(records.key_bytes[row]) :], shard.content(members, row))
                for row in records.rows_of(at)
            ]
            for at in range(len(records))
        ]
        named = [
            row_contents(key, cells, self.key_column)
            for key, cells in zip(keys, contents, strict=True)
        ]
        batch = batch_of_records(shard.name, self.schema, keys, named)
        found = cells_of_rows(iter([(batch, keys)]), self.schema.names)
        return found, form_records(found, "keep")


def rows_have_keys(spec: JobSpec, bucket: Bucket, inputs: Sequence[str]) -> bool:
    """Whether the rows of the result have a column of keys (``key_field``, or ``__key__``), by the
    spec and the first input shard that can be read. Without one, rows are only numbered."""

    gives_keys = any(isinstance(step, (Rekey, JoinKey)) for step in steps_of(spec))
    if spec.key_field or gives_keys:
        return True
    for name in inputs:
        try:
            return KEY_COLUMN in table_schema(bucket, name).names
        except (CorruptShardError, ObjectNotFoundError):
            continue
    return False
