"""The zip container: the interface of this folder to the rest of dsort.

Entries are moved as they are stored, compressed or not; nothing is compressed again. New members
are stored uncompressed, with a fixed time (1980-01-01), so that the same records give the same
bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from isal import isal_zlib
from msgspec.structs import replace

from dsort.containers.base import Container, Scanner
from dsort.containers.facets import CompressedPayloads, Entries, Names, Packing, Payloads
from dsort.containers.named import check_keys_in_names
from dsort.containers.zip.directory import OTHER_METHODS
from dsort.containers.zip.entries import (
    LARGE_PLACE_BYTES,
    UnfitNameError,
    entries_for,
    inflated,
    link_target,
    new_member,
    new_members,
    placed_directory,
    renamed,
    retargeted,
)
from dsort.containers.zip.layout import (
    CRC_OFFSET,
    DEFLATE,
    ENTRY,
    LARGE,
    end_record,
    end_record_bytes,
)
from dsort.containers.zip.oddities import ODDITIES
from dsort.containers.zip.scan import scan_zip
from dsort.data.columns import Int64s
from dsort.data.entries import PlacedEntries
from dsort.data.members import MemberKind, MemberTable
from dsort.data.records import FormedRecords
from dsort.data.row_bytes import RowBytes, column_of, side_by_side, spread
from dsort.errors import ConversionError
from dsort.naming.names import readable

__all__ = ["ZIP", "Zip"]


def decompressed(
    members: MemberTable, row: int, pieces: Iterable[memoryview | bytes]
) -> Iterator[bytes]:
    """See :class:`CompressedPayloads`."""
    assert members.entries is not None
    fields = ENTRY.unpack_from(members.entries[row])
    if fields[4] != DEFLATE:
        name = OTHER_METHODS.get(fields[4], str(fields[4]))
        raise ValueError(f"is compressed by {name}: dsort moves it, and does not read it")
    yield from inflated(pieces, int(members.payload_bytes[row]), fields[7])


def checksum(members: MemberTable, row: int) -> int | None:
    """See :class:`CompressedPayloads`."""
    if members.entries is None or members.kind[row] != MemberKind.FILE:
        return None
    found: int = ENTRY.unpack_from(members.entries[row])[7]
    return found


def checksums(members: MemberTable) -> tuple[Int64s, Int64s]:
    """See :class:`CompressedPayloads`."""
    if members.entries is None:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    are_stored = members.kind == MemberKind.FILE
    if members.compressed_bytes is not None:
        are_stored &= members.compressed_bytes < 0
    rows = np.flatnonzero(are_stored)
    places = members.entries.offsets[:-1][rows] + CRC_OFFSET
    found = np.ascontiguousarray(members.entries.blob[places[:, None] + np.arange(4)])
    return rows, found.view("<u4").reshape(-1).astype(np.int64)


def packed(members: MemberTable, records: FormedRecords, payloads: Payloads) -> MemberTable:
    """See :class:`Packing`."""
    check_keys_in_names(members, records, ".zip")
    rows = records.member_rows
    names = members.names.take(rows)
    checksums = payloads.checksums(rows, isal_zlib.crc32, np.zeros(len(rows), np.uint32))
    try:
        headers, entries = new_members(names, members.payload_bytes[rows], checksums)
    except UnfitNameError as error:
        raise ConversionError(
            f"{readable(names[error.row])} cannot be in a .zip shard: {error}",
            hint="rename the member, or write .tar shards",
        ) from None
    if members.literals:
        bare = column_of(members.literals, len(members)).take(rows)
        headers = side_by_side([headers, bare], len(rows))
    return replace(
        members,
        literals=RowBytes(spread(headers, rows, len(members))),
        entries=spread(entries, rows, len(members)),
    )


@dataclass(frozen=True, slots=True)
class Zip(Container):
    """Zips, with zip64 if it is needed."""

    suffixes = (".zip",)
    oddities = ODDITIES
    is_of_members = True
    payloads = CompressedPayloads(decompressed, checksum, checksums)
    names = Names(renamed, target_of=link_target, retargeted=retargeted)
    entries = Entries(entries_for)
    packing = Packing(packed)

    def scanner(self, shard: str, size_bytes: int) -> Scanner:
        return scan_zip(shard, size_bytes)

    # -- writing ---------------------------------------------------------------------------------

    @property
    def encode(self) -> Callable[[bytes, bytes], tuple[Sequence[bytes], bytes]]:
        return self._encode

    def _encode(self, name: bytes, payload: bytes) -> tuple[Sequence[bytes], bytes]:
        header, entry = new_member(name, len(payload), isal_zlib.crc32(payload))
        return (header, payload), entry

    def end_bytes(self, members: int, entries_bytes: int, stored_bytes: int) -> int:
        if stored_bytes >= LARGE:
            entries_bytes += members * LARGE_PLACE_BYTES
        return entries_bytes + end_record_bytes(members, entries_bytes, stored_bytes)

    def end(self, entries: PlacedEntries, stored_bytes: int) -> bytes:
        directory = placed_directory(entries, stored_bytes)
        return directory + end_record(len(entries), len(directory), stored_bytes)


ZIP = Zip()
