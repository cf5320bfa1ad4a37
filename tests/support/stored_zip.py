"""A container from outside the package (`.szip`): zips whose entries are stored, neither
compressed nor encrypted, and no longer than 4 GiB.

It is a small container that uses the whole interface of containers: members are byte ranges, and
the end of an output shard (the central directory) lists them with names, sizes, checksums and
offsets. The *entry* of a member is its line of the central directory, with 0 for its offset.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dsort.containers.base import Container, Need, OddityKind, Scanner
from dsort.containers.facets import Entries, Names
from dsort.errors import CorruptShardError
from tests.support.internals import BytesColumn, MemberTable, PlacedEntries, ScanNotes

LOCAL = struct.Struct("<4s5H3I2H")  # magic, version, flags, method, time, date, crc, sizes, lengths
ENTRY = struct.Struct("<4s6H3I5H2I")
END = struct.Struct("<4s4H2IH")
LOCAL_MAGIC, ENTRY_MAGIC, END_MAGIC = b"PK\3\4", b"PK\1\2", b"PK\5\6"
DATE = 33  # 1980-01-01


class ZipNotes(ScanNotes, frozen=True):
    """Oddities of a zip."""

    comment_bytes: int = 0


def scan_entries(shard: str, size_bytes: int) -> Scanner:
    """Scan from local header to local header."""
    at = 0
    names: list[bytes] = []
    rows: list[tuple[int, int, int]] = []  # start, payload, payload bytes
    entries: list[bytes] = []
    while True:
        if at + END.size > size_bytes:
            raise CorruptShardError(shard, at, "the zip ends here")
        header = bytes((yield Need(at, min(LOCAL.size, size_bytes - at)))[: LOCAL.size])
        if header[:4] in (ENTRY_MAGIC, END_MAGIC):
            break
        if header[:4] != LOCAL_MAGIC:
            raise CorruptShardError(shard, at, "no zip entry begins here")
        _, *common, size, _, name_bytes, extra_bytes = LOCAL.unpack(header)
        _version, flags, method, *_ = common
        if flags & 0x9 or method:
            raise CorruptShardError(shard, at, "an entry that is not stored")
        payload = at + LOCAL.size + name_bytes + extra_bytes
        if payload + size > size_bytes:
            raise CorruptShardError(shard, at, "the zip ends here")
        name = bytes((yield Need(at + LOCAL.size, name_bytes))[:name_bytes])
        names.append(name)
        rows.append((at, payload, size))
        entries.append(
            ENTRY.pack(ENTRY_MAGIC, 20, *common, size, size, name_bytes, 0, 0, 0, 0, 0, 0) + name
        )
        at = payload + size
    start, payload_start, payload_bytes = np.array(rows, np.int64).reshape(-1, 3).T
    column = BytesColumn.of(entries)
    return MemberTable(
        names=BytesColumn.of(names),
        kind=np.zeros(len(names), np.uint8),
        payload_start=payload_start,
        payload_bytes=payload_bytes,
        range_start=start,
        range_length=payload_start + payload_bytes - start,
        notes=ZipNotes(comment_bytes=size_bytes - at - len(column.blob) - END.size),
        entries=column,
    )


def renamed(headers: bytes, new_name: bytes) -> bytes:
    *fields, name_bytes, extra_bytes = LOCAL.unpack(headers[: LOCAL.size])
    extra = headers[LOCAL.size + name_bytes :]
    return LOCAL.pack(*fields, len(new_name), extra_bytes) + new_name + extra


def entry_for(headers: bytes, entry: bytes) -> bytes:
    new_name = headers[LOCAL.size :][: LOCAL.unpack(headers[: LOCAL.size])[-2]]
    fields = list(ENTRY.unpack(entry[: ENTRY.size]))
    fields[10] = len(new_name)
    return ENTRY.pack(*fields) + new_name


def _each(
    change: Callable[[bytes, bytes], bytes], some: BytesColumn, others: BytesColumn
) -> BytesColumn:
    return BytesColumn.of(list(map(change, some.tolist(), others.tolist())))


@dataclass(frozen=True)
class StoredZip(Container):
    suffixes = (".szip",)
    names = Names(lambda headers, names: _each(renamed, headers, names))
    entries = Entries(lambda headers, entries: _each(entry_for, headers, entries))
    oddities = (
        OddityKind(
            "comment_bytes",
            kind="comments_dropped",
            warning="{count} bytes of comments were dropped, in {names}",
            inspected="comment",
            text="bytes of a comment, or of other things that are no stored entry",
        ),
    )

    def scanner(self, shard: str, size_bytes: int) -> Scanner:
        return scan_entries(shard, size_bytes)

    def encode(self, name: bytes, payload: bytes) -> tuple[Sequence[bytes], bytes]:
        size, crc = len(payload), zlib.crc32(payload)
        common = (20, 0, 0, 0, DATE, crc, size, size, len(name), 0)
        header = LOCAL.pack(LOCAL_MAGIC, *common) + name
        entry = ENTRY.pack(ENTRY_MAGIC, 20, *common, 0, 0, 0, 0, 0) + name
        return (header, payload), entry

    def end_bytes(self, members: int, entries_bytes: int, stored_bytes: int) -> int:
        return entries_bytes + END.size

    def end(self, entries: PlacedEntries, stored_bytes: int) -> bytes:
        lines = [
            entry[: ENTRY.size - 4] + struct.pack("<I", offset) + entry[ENTRY.size :]
            for offset, entry in entries
        ]
        directory = b"".join(lines)
        count = len(lines)
        end = END.pack(END_MAGIC, 0, 0, count, count, len(directory), stored_bytes, 0)
        return directory + end


STORED_ZIP = StoredZip()
