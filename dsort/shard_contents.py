"""Finds and streams records and members of one shard (``dsort cat``), and makes a summary of all of
them (``dsort inspect``).

If a shard does not fit in a small buffer, and its container has payloads between headers, only
headers are read to find a member, and then the payload of that member.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import chain, islice
from typing import Final

import numpy as np
from msgspec import Struct

from dsort.containers.codecs.decoding import EXPANSION_MAX_DEFAULT, DecodingRules
from dsort.containers.inspect import ShardSummary, summarise
from dsort.containers.registry import codec_of, container_of
from dsort.containers.tar.header import tar_header, tar_padding
from dsort.data.members import MemberKind, MemberTable
from dsort.data.records import FormedRecords, form_records
from dsort.errors import InputError
from dsort.moves.bare import bare_of
from dsort.moves.input_shard import ShardBytes
from dsort.naming.names import readable
from dsort.reading.record_index import KEYS_COMPARED_MAX, KeySequence, near_keys
from dsort.reading.shard_reader import ShardReader
from dsort.reading.table_records import TableRecords, summarise_table
from dsort.storage.bucket import Bucket

__all__ = ["ShardContents", "ShardPart", "inspect_object", "open_contents"]

BUFFER_BYTES: Final = 1 << 20
DECODING_BYTES: Final = 128 << 20
"""The buffer for a compressed shard, which is decoded as a whole. A decoder may refer back over as
many bytes."""
NAMES_COMPARED_MAX: Final = 1000


class ShardPart(Struct, frozen=True):
    """All members of one record of a shard, or one member. ``others``: the number of later records
    with the same key, or members with the same name."""

    rows: tuple[int, ...]
    others: int = 0


class ShardContents:
    """One opened shard."""

    def __init__(self, shard: ShardBytes) -> None:
        self._shard = shard

    def whole(self) -> Iterator[memoryview | bytes]:
        """All bytes of the shard, without a codec around it, a piece at a time, each valid until
        the next."""
        return self._shard.pieces()

    def named(self, text: str) -> ShardPart:
        """The member ``text``, or the record with that key. ``InputError`` lists similar names."""
        file = self.member(text)
        if file is not None:
            return file
        numbers = self._keys.numbers_of(text)
        if numbers:
            return ShardPart(self._rows(numbers[0]), len(numbers) - 1)
        names = (name for name, _ in islice(self.files(), NAMES_COMPARED_MAX))
        raise InputError(
            f"shard {self._shard.name} has no record and no member {text}",
            hint=near_keys(text, chain(islice(self._keys, KEYS_COMPARED_MAX), names))
            or f"`dsort inspect` lists its {len(self._keys):,} records",
        )

    def member(self, name: str) -> ShardPart | None:
        """The first file with exactly this name; None if there is none."""
        _, records = self._members
        rows = self._names.numbers_of(name)
        found = records.member_rows[np.isin(records.member_rows, rows)].tolist()
        return ShardPart((found[0],), len(found) - 1) if found else None

    def files(self) -> Iterator[tuple[str, int]]:
        """(name, bytes) of each member that is a file; a name that is not UTF-8 carries surrogate
        escapes."""
        members, _ = self._members
        for row in np.flatnonzero(members.kind == MemberKind.FILE).tolist():
            yield self._name(row), self._size(row)

    def count_records(self) -> int:
        """How many records there are."""
        return len(self._keys)

    def size_bytes(self, part: ShardPart) -> int:
        """The size of all payloads together."""
        return sum(map(self._size, part.rows))

    def numbered(self, number: int) -> ShardPart:
        """The record ``number``, from 0 on, in the order of ``dsort inspect``."""
        count = len(self._keys)
        if not 0 <= number < count:
            raise InputError(
                f"shard {self._shard.name} has {count:,} records, none is number {number:,}: the "
                "first is number 0"
            )
        return ShardPart(self._rows(number))

    def payloads(self, part: ShardPart) -> Iterator[memoryview | bytes]:
        """The payloads of the members, one after the other, in pieces."""
        for row in part.rows:
            yield from self._payload(row)

    def as_tar(self, part: ShardPart) -> Iterator[memoryview | bytes]:
        """The members as a tar of their own, in pieces."""
        container = container_of(".tar")
        stored_bytes = 0
        for row in part.rows:
            size = self._size(row)
            yield tar_header(self._name(row).encode("utf-8", "surrogateescape"), size)
            yield from self._payload(row)
            yield tar_padding(size)
            stored_bytes += size
        yield bytes(container.end_bytes(len(part.rows), 0, stored_bytes))

    @cached_property
    def _keys(self) -> KeySequence:
        """The key of each record."""
        return KeySequence.of_column(self._members[1].keys)

    @cached_property
    def _names(self) -> KeySequence:
        """The name of each member."""
        return KeySequence.of_column(self._members[0].names)

    def _name(self, row: int) -> str:
        return self._names[row]

    def _size(self, row: int) -> int:
        return int(self._members[0].payload_bytes[row])

    def _rows(self, number: int) -> tuple[int, ...]:
        return tuple(self._members[1].rows_of(number))

    def _payload(self, row: int) -> Iterator[memoryview | bytes]:
        members, _ = self._members
        start = int(members.payload_start[row])
        if start < 0:
            yield members.literals.get(row, b"")
        elif members.kind[row] == MemberKind.FILE:
            yield from self._shard.payload(members, row)
        else:
            raise InputError(
                f"{readable(members.names[row])} in shard {self._shard.name} is no file"
            )

    @cached_property
    def _members(self) -> tuple[MemberTable, FormedRecords]:
        """The members, reduced to their payloads, and the records."""
        members = self._shard.members()
        if not members.has_compressed:  # else their compression is in their entries
            members = bare_of(self._shard, members)
        return members, form_records(members, "keep")


class _TableContents(ShardContents):
    """The contents of a table. Row ``r`` is cell ``r % width`` of record ``r // width``."""

    @cached_property
    def _table(self) -> TableRecords:
        return TableRecords(self._shard)

    @cached_property
    def _keys(self) -> KeySequence:
        return self._table.keys

    def member(self, name: str) -> ShardPart | None:
        for extension in ("", *(f".{column}" for _, column in self._table.columns)):
            if not name.endswith(extension):
                continue
            numbers = self._keys.numbers_of(name.removesuffix(extension))
            for place, number in enumerate(numbers, 1):
                for row in self._rows(number):
                    if self._name(row) == name:
                        return ShardPart((row,), len(numbers) - place)
        return None

    def files(self) -> Iterator[tuple[str, int]]:
        for _, cells in self._table.records():
            for name, content in cells:
                yield name, len(content)

    def count_records(self) -> int:
        return len(self._table)  # without reading the keys of all rows

    def _rows(self, number: int) -> tuple[int, ...]:
        first = number * self._table.width
        return tuple(range(first, first + len(self._table.cells(number)[1])))

    def _cell(self, row: int) -> tuple[str, bytes]:
        number, place = divmod(row, self._table.width)
        return self._table.cells(number)[1][place]

    def _name(self, row: int) -> str:
        return self._cell(row)[0]

    def _size(self, row: int) -> int:
        return len(self._cell(row)[1])

    def _payload(self, row: int) -> Iterator[memoryview | bytes]:
        yield self._cell(row)[1]


@contextmanager
def open_contents(
    bucket: Bucket, name: str, *, max_expansion: float = EXPANSION_MAX_DEFAULT
) -> Iterator[ShardContents]:
    """The shard ``name``, which may decode to ``max_expansion`` times its length. ``StorageError``
    if it cannot be read. If the object is no shard, a later search in it raises
    ``CorruptShardError``.
    """
    with _opened(bucket, name, max_expansion) as shard:
        yield (_TableContents if shard.container.is_columnar else ShardContents)(shard)


def inspect_object(
    bucket: Bucket, name: str, *, max_expansion: float = EXPANSION_MAX_DEFAULT
) -> ShardSummary:
    """Summarise the shard ``name``, which may decode to ``max_expansion`` times its length.

    ``StorageError`` if it cannot be read, ``CorruptShardError`` if it is not a whole shard.
    """
    with _opened(bucket, name, max_expansion) as shard:
        if shard.container.is_columnar:

            @contextmanager
            def reopened() -> Iterator[TableRecords]:
                with _opened(bucket, name, max_expansion) as again:
                    yield TableRecords(again)

            return summarise_table(TableRecords(shard), shard.file_bytes, reopened)
        members = shard.members()
        names, targets = shard.container.names, {}
        for row in np.flatnonzero(members.kind == MemberKind.SYMLINK).tolist():
            start, end = int(members.range_start[row]), int(members.payload_start[row])
            headers = members.literals.get(row, b"") + shard.at(start, end - start)
            assert names is not None  # links have names
            targets[row] = names.target_of(headers)
        return summarise(name, shard.container, shard.file_bytes, members, targets)


@contextmanager
def _opened(bucket: Bucket, name: str, max_expansion: float) -> Iterator[ShardBytes]:
    buffer_bytes = BUFFER_BYTES if codec_of(name) is None else DECODING_BYTES
    with ShardReader(buffer_bytes, None).open(bucket, name, DecodingRules(max_expansion)) as shard:
        yield shard
