"""The zip container: the interface of this folder to the rest of dsort.

Entries are moved as they are stored, compressed or not; nothing is compressed again. New members
are stored uncompressed, with a fixed time (1980-01-01), so that the same records give the same
bytes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from isal import isal_zlib
from msgspec import Struct
from msgspec.structs import replace

from dsort.containers.bare_rows import check_keys_in_names
from dsort.containers.base import Container, Need, Scanner, shortfall_in
from dsort.containers.facets import CompressedPayloads, Entries, Names, Payloads
from dsort.containers.zip.directory import (
    OTHER_METHODS,
    Directory,
    ZipEnd,
    read_directory,
    read_end,
)
from dsort.containers.zip.entries import (
    LARGE_PLACE_BYTES,
    UnfitNameError,
    carried_entries,
    entries_for,
    inflated,
    link_target,
    local_header,
    new_member,
    new_members,
    placed_directory,
    renamed,
    retargeted,
)
from dsort.containers.zip.layout import (
    CRC_OFFSET,
    DEFLATE,
    DESCRIBED,
    ENTRY,
    LARGE,
    LARGE_ID,
    LOCAL,
    LOCAL_DTYPE,
    LOCAL_MAGIC,
    ODDITIES,
    STORED,
    UTF8,
    Records,
    ZipNotes,
    end_record,
    end_record_bytes,
    extra_fields,
    records_at,
    records_of,
)
from dsort.data.columns import Bools, Int64s, UInt8s, cut_rows
from dsort.data.members import NOT_COMPRESSED, MemberKind, MemberTable, PlacedEntries
from dsort.data.records import FormedRecords
from dsort.data.row_bytes import RowBytes, column_of, side_by_side, spread
from dsort.errors import ConversionError, CorruptShardError
from dsort.naming.names import readable

# --------------------------------------------------------------------------------------------------
# The zip format: finds the members in a shard's bytes, without a copy of any payload.
#
# The end is read first, then the central directory, then the local headers in their order in the
# shard. Only entries in the central directory are members, in its order. An entry is moved as it
# is stored: its local header, its data, and its data descriptor if it has one.
#
# Readers that stream a zip use the local headers and descriptors, all others use the central
# directory. If the two contradict each other, two readers see different shards: such a shard is
# refused.
# A local header that only has less information is rewritten.


_MAGIC = int.from_bytes(LOCAL_MAGIC, "little")
_REFUSED = 0x2061  # flags of encryption and patches
_LONGEST = 1 << 62
_DESCRIPTOR_BYTES_MAX = 24
_DESCRIPTOR_MAGIC = 0x08074B50
_MARK_BYTES = 4


class Places(Struct, eq=False):
    """The places of entries in the shard; columns of ``(n,)`` rows, in the order of their
    places."""

    data: Int64s  # where the data begins
    stop: Int64s  # the byte after the entry, its descriptor included
    mended: Bools  # whose local header cannot be copied


class LocalScan:
    """The local headers found so far, in their order in the shard."""

    def __init__(self, directory: Directory) -> None:
        count = len(directory)
        self.directory = directory
        self.order: Int64s = np.argsort(directory.start, kind="stable")  # rows, by place
        self._start: Int64s = directory.start[self.order]  # by place
        # where the next entry begins
        self._limit: Int64s = np.append(self._start[1:], directory.at)[:count]
        twice = np.flatnonzero(self._start[1:] == self._start[:-1])
        if len(twice):
            row = int(self.order[twice[0] + 1])
            directory.fail(row, "has the local header of another entry")
        none = np.zeros(count, np.int64)
        self.places = Places(none, none.copy(), np.zeros(count, np.bool_))

    def read(self) -> Generator[Need, memoryview, None]:
        """Read all local headers and data descriptors."""
        row, header_bytes = 0, LOCAL.size
        while row < len(self._start):
            at = int(self._start[row])
            needed = Need(at, header_bytes)
            row, header_bytes, cut_off = self._read_headers((yield needed), at, row)
            if len(cut_off):
                at = int(self.places.stop[cut_off[0]]) - _MARK_BYTES
                needed = Need(at, _MARK_BYTES + int(self._behind(cut_off)[0]))
                self._read_descriptors(cut_off, (yield needed), at)

    def _read_headers(self, view: memoryview, offset: int, row: int) -> tuple[int, int, Int64s]:
        """Read the entries from ``row`` on whose headers begin in ``view``, which begins at byte
        ``offset``. Returns (the row after these entries, the least length of the header of that
        row, the entries whose descriptor the window cuts off, which only the last entry can be)."""
        window: UInt8s = np.frombuffer(view, np.uint8)
        end = offset + len(window)
        some = slice(row, int(np.searchsorted(self._start, end - LOCAL.size, side="right")))
        start = self._start[some]
        heads = records_at(window, start - offset, LOCAL_DTYPE)
        self._fail_where(some, heads["magic"] != _MAGIC, "has no local header at its place")
        data = start + LOCAL.size + heads["name_bytes"] + heads["extra_bytes"].astype(np.int64)
        stop = data + self.directory.stored[self.order[some]]
        self._fail_where(
            some,
            stop > self._limit[some],
            "overlaps with the next entry or with the central directory",
        )
        header_bytes = LOCAL.size
        if data[-1] > end:  # its name or its extra is incomplete
            header_bytes = int(data[-1]) - int(start[-1])
            some = slice(some.start, some.stop - 1)
            heads, data, stop = heads[:-1], data[:-1], stop[:-1]
            if len(heads) == 0:
                return some.stop, header_bytes, np.zeros(0, np.int64)
        self.places.data[some], self.places.stop[some] = data, stop
        self._compare(some, heads, window, offset)
        described = some.start + np.flatnonzero((heads["flags"] & DESCRIBED) != 0)
        there = self.places.stop[described] + self._behind(described) <= end
        self._read_descriptors(described[there], view, offset)
        return some.stop, header_bytes, described[~there]

    def _behind(self, places: Int64s) -> Int64s:
        """How many bytes the descriptors of entries may have."""
        behind: Int64s = self._limit[places] - self.places.stop[places]
        return np.minimum(behind, _DESCRIPTOR_BYTES_MAX)

    def _fail_where(self, some: slice, wrong: Bools, text: str) -> None:
        if wrong.any():
            self.directory.fail(int(self.order[some][int(np.argmax(wrong))]), text)

    def _compare(self, some: slice, heads: Records, window: UInt8s, offset: int) -> None:
        """Refuse local headers that contradict the directory; note headers that have less
        information than the directory."""
        directory, rows = self.directory, self.order[some]
        entries = records_of(directory.heads, rows)
        text = "has another {} in its local header than in the central directory"
        lengths = heads["name_bytes"].astype(np.int64)
        self._fail_where(some, heads["name_bytes"] != entries["name_bytes"], text.format("name"))
        names = cut_rows(window, self._start[some] + LOCAL.size - offset, lengths)
        unlike = names.blob != directory.names.take(rows).blob
        if unlike.any():
            place = int(np.searchsorted(names.offsets, np.argmax(unlike), side="right")) - 1
            directory.fail(int(rows[place]), text.format("name"))
        self._fail_where(some, heads["method"] != entries["method"], text.format("method"))
        flags = heads["flags"] ^ entries["flags"]
        self._fail_where(some, flags & _REFUSED != 0, text.format("encryption"))
        recoded = np.flatnonzero(flags & UTF8)
        for index in recoded.tolist():  # the names are the same if they are ASCII
            if not directory.names[int(rows[index])].isascii():
                directory.fail(int(rows[index]), text.format("encoding of its name"))
        described = (heads["flags"] & DESCRIBED) != 0
        stored, size = heads["stored"].astype(np.int64), heads["size"].astype(np.int64)
        large = (stored == LARGE) | (size == LARGE)
        for index in np.flatnonzero(large).tolist():
            first = int(self._start[some][index]) + LOCAL.size + int(lengths[index]) - offset
            extra = window[first : first + int(heads["extra_bytes"][index])].tobytes()
            size[index], stored[index] = _large_sizes(extra, int(size[index]), int(stored[index]))
        pairs = (
            (heads["crc"].astype(np.int64), entries["crc"].astype(np.int64)),
            (stored, directory.stored[rows]),
            (size, directory.size[rows]),
        )
        same = np.logical_and.reduce([here == there for here, there in pairs])
        left_out = np.logical_and.reduce([here == 0 for here, _ in pairs])
        later = described & np.logical_and.reduce(  # a descriptor has them
            [(here == there) | (here == 0) | (here == LARGE) for here, there in pairs]
        )
        self._fail_where(some, ~(same | left_out | later), text.format("size or checksum"))
        self.places.mended[some] = (flags & DESCRIBED != 0) | (~same & ~described)

    def _read_descriptors(self, places: Int64s, view: memoryview, offset: int) -> None:
        """Find the data descriptors of entries, all of them in ``view``, which begins at byte
        ``offset``."""
        if len(places) == 0:
            return
        window: UInt8s = np.frombuffer(view, np.uint8)
        directory, rows, stop = self.directory, self.order[places], self.places.stop[places]
        behind = self._limit[places] - stop
        at = stop[:, None] - offset + np.arange(-_MARK_BYTES, _DESCRIPTOR_BYTES_MAX)
        # Places behind the window repeat its last byte; `behind` rules such lengths out below.
        raw = window[np.minimum(at, len(window) - 1)]
        words = np.ascontiguousarray(raw).view("<u4").astype(np.int64)
        before, words = words[:, 0], words[:, 1:]
        crc = directory.heads["crc"][rows].astype(np.int64)
        sizes = directory.stored[rows], directory.size[rows]
        narrow = np.stack([crc, *sizes], axis=1)
        wide = np.stack([crc, *(part for size in sizes for part in (size & LARGE, size >> 32))], 1)
        marked = words[:, 0] == _DESCRIPTOR_MAGIC
        fits = {
            16: marked & (words[:, 1:4] == narrow).all(axis=1),
            24: marked & (words[:, 1:6] == wide).all(axis=1),
            # Without a mark. If the length of an extra is wrong, a descriptor with a mark looks
            # like one without a mark.
            12: (words[:, 0:3] == narrow).all(axis=1) & (before != _DESCRIPTOR_MAGIC),
            20: (words[:, 0:5] == wide).all(axis=1) & (before != _DESCRIPTOR_MAGIC),
        }
        length = np.zeros(len(places), np.int64)
        for size_bytes, fit in fits.items():
            length[(length == 0) & fit & (behind >= size_bytes)] = size_bytes
        for size_bytes, fit in fits.items():  # best if no bytes are left over
            length[fit & (behind == size_bytes)] = size_bytes
        if not length.all():
            row = int(rows[int(np.argmin(length))])
            directory.fail(row, "has no data descriptor that matches the central directory")
        self.places.stop[places] = stop + length


def _large_sizes(extra: bytes, size: int, stored: int) -> tuple[int, int]:
    """(size, stored) of a local header; values that do not fit in it are read from its zip64
    field."""
    for _, kind, data in extra_fields(extra):
        if kind == LARGE_ID:
            numbers = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
            values = iter(numbers[: len(data) // 8])
            size = next(values, size) if size == LARGE else size
            stored = next(values, stored) if stored == LARGE else stored
            break
    return min(size, _LONGEST), min(stored, _LONGEST)


def scan_zip(shard: str, size_bytes: int) -> Scanner:
    """See ``Container.scanner``. Returns the members in the order of the central directory."""
    if size_bytes == 0:
        raise CorruptShardError(shard, 0, "it has no bytes")
    end = yield from read_end(shard, size_bytes)
    locals_ = LocalScan((yield from read_directory(shard, end)))
    yield from locals_.read()
    head, head_bytes = b"", len(LOCAL_MAGIC)
    if end.shift >= head_bytes:
        head = bytes((yield Need(0, head_bytes))[:head_bytes])
    return _table(locals_, end, head == LOCAL_MAGIC)


def _table(locals_: LocalScan, end: ZipEnd, leading_zip: bool) -> MemberTable:
    directory, order, places = locals_.directory, locals_.order, locals_.places
    data, stop = np.empty_like(places.data), np.empty_like(places.stop)
    mended = np.empty_like(places.mended)
    data[order], stop[order], mended[order] = places.data, places.stop, places.mended
    names, cp437 = directory.texts()
    kind = directory.kinds()
    links = kind == MemberKind.SYMLINK  # their targets are in headers: no payload
    other = ~np.isin(directory.heads["method"], (STORED, DEFLATE))
    leading = int(directory.start.min()) if len(directory) else directory.at
    notes = ZipNotes(
        trailing_bytes=end.trailing_bytes,
        leading_zip_bytes=end.shift if leading_zip else 0,
        leading_bytes=leading,
        unlisted_bytes=directory.at - leading - int((places.stop - np.sort(directory.start)).sum()),
        comment_bytes=end.comment_bytes,
        mended=tuple(np.flatnonzero(mended).tolist()),
        cp437_names=cp437,
        other_methods=tuple(np.flatnonzero(other).tolist()),
    )
    mended |= links & (directory.heads["flags"] & DESCRIBED != 0)
    mended_rows = tuple(np.flatnonzero(mended).tolist())
    start = np.where(mended, data, directory.start)
    range_stop = np.where(mended, data + directory.stored, stop)
    return MemberTable(
        names=names,
        kind=kind,
        payload_start=np.where(links, range_stop, data),
        payload_bytes=np.where(links, 0, directory.size),
        range_start=start,
        range_length=range_stop - start,
        literals={row: local_header(directory, row) for row in mended_rows},
        notes=replace(notes, shortfall=shortfall_in(ODDITIES, notes)),
        entries=carried_entries(directory, mended_rows),
        compressed_bytes=_compressed_bytes(directory, links),
    )


def _compressed_bytes(directory: Directory, links: Bools) -> Int64s:
    compressed = (directory.heads["method"] != STORED) & ~links
    if not compressed.any():
        return NOT_COMPRESSED
    lengths: Int64s = np.where(compressed, directory.stored, -1)
    return lengths


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
    if members.has_compressed:
        are_stored &= members.compressed_bytes < 0
    rows = np.flatnonzero(are_stored)
    places = members.entries.offsets[:-1][rows] + CRC_OFFSET
    found = np.ascontiguousarray(members.entries.blob[places[:, None] + np.arange(4)])
    return rows, found.view("<u4").reshape(-1).astype(np.int64)


def packed_members(members: MemberTable, records: FormedRecords, payloads: Payloads) -> MemberTable:
    """See ``Container.packed``."""
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
    """Zips, with zip64 records where sizes or counts need them."""

    suffixes = (".zip",)
    oddities = ODDITIES
    is_of_members = True
    payloads = CompressedPayloads(decompressed, checksum, checksums)
    names = Names(renamed, target_of=link_target, retargeted=retargeted)
    entries = Entries(entries_for)
    scanner = staticmethod(scan_zip)
    packed = staticmethod(packed_members)

    # -- writing ---------------------------------------------------------------------------------

    def encode(self, name: bytes, payload: bytes) -> tuple[Sequence[bytes], bytes]:
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
