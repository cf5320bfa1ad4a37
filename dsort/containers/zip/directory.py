"""Reads the end of a zip, and the entries in its central directory, as columns; all entries that
dsort cannot move are refused here, by name."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, Never

import numpy as np
from msgspec import Struct

from dsort.containers.base import Need
from dsort.containers.zip.layout import (
    DEFLATE,
    END,
    END64,
    END64_MAGIC,
    END_MAGIC,
    ENTRY,
    ENTRY_DTYPE,
    ENTRY_MAGIC,
    EXTRA_BYTES_MAX,
    LARGE,
    LARGE_ID,
    LOCATOR,
    LOCATOR_MAGIC,
    MANY,
    STORED,
    UTF8,
    Records,
    name_text,
    records_at,
)
from dsort.data.columns import BytesColumn, Int64s, UInt8s, cut_rows, offsets_of
from dsort.data.members import MemberKind
from dsort.errors import CorruptShardError
from dsort.naming.names import readable
from dsort.sizes import format_bytes

OTHER_METHODS: Final = {9: "deflate64", 12: "bzip2", 14: "LZMA", 93: "zstd", 95: "xz"}
"""Methods whose entries are moved as they are stored: the directory has their length. dsort does
not decompress them."""

_PIECE_BYTES_MAX = 8 << 20
"""How much of a directory is read at a time."""
_DIRECTORY_BYTES_MIN = 64 << 20
_ENTRY_BYTES_MAX = 1 << 10
"""Beyond its first ``_DIRECTORY_BYTES_MIN``, a directory may have so many bytes an entry on
average. The directory is held in memory, and an entry may have 192 KiB of name, extra and
comment."""
_LINK_BYTES_MAX = 0xFFFF
_AES = 99
_LONGEST = 1 << 62

_MAGIC = int.from_bytes(ENTRY_MAGIC, "little")
_MARKERS = (MANY, MANY, MANY, MANY, LARGE, LARGE)
_TAIL_BYTES_MAX = 0xFFFF + END.size + LOCATOR.size + END64.size
"""The maximum length of an end: it lies within so many bytes at the end of its shard."""


class ZipEnd(Struct, frozen=True):
    """Where the central directory of a zip is, in the shard."""

    directory_start: int
    directory_end: int
    entries: int
    entries_modulo: int  # the number of entries is known modulo this
    shift: int  # bytes before the zip, which its offsets do not count
    comment_bytes: int = 0
    trailing_bytes: int = 0


def read_end(shard: str, size_bytes: int) -> Generator[Need, memoryview, ZipEnd]:
    """Read the end of a shard. ``CorruptShardError``."""
    at = max(size_bytes - _TAIL_BYTES_MAX, 0)
    return _end(shard, bytes((yield Need(at, size_bytes - at))), at)


def _end(shard: str, tail: bytes, base: int) -> ZipEnd:
    """The end of a shard; ``tail`` are its last bytes, from byte ``base`` on."""
    at, comment_bytes, trailing = _find_record(shard, tail, base)
    fields = END.unpack_from(tail, at)
    _, disk, directory_disk, on_disk, count, size, offset, _ = fields
    directory_end, modulo, shift64 = base + at, MANY + 1, None
    large = _read_large_end(shard, tail, at, base)
    if large is not None:
        for narrow, wide, marker in zip(fields[1:7], large, _MARKERS, strict=True):
            # A field of the plain record has its marker, or repeats the number.
            if narrow not in (marker, wide):
                raise CorruptShardError(shard, base + at, "its two end records disagree")
        disk, directory_disk, on_disk, count, size, offset = large
        directory_end, modulo = base + at - LOCATOR.size - END64.size, 1 << 64
        shift64 = directory_end - LOCATOR.unpack_from(tail, at - LOCATOR.size)[2]
    if disk or directory_disk or on_disk != count:
        raise CorruptShardError(shard, base + at, "it is one disk of a zip of several")
    start = directory_end - size
    if start - offset < 0 or start < 0 or shift64 not in (None, start - offset):
        raise CorruptShardError(
            shard, base + at, "its end record does not show where the central directory is"
        )
    return ZipEnd(start, directory_end, count, modulo, start - offset, comment_bytes, trailing)


def _find_record(shard: str, tail: bytes, base: int) -> tuple[int, int, int]:
    """(place of the end record in ``tail``, length of its comment, number of bytes after that)."""
    behind: tuple[int, int, int] | None = None
    exact: list[tuple[int, int, int]] = []
    cut = False
    # A comment may hold the bytes of an end record. If two records fit, readers differ.
    at = tail.rfind(END_MAGIC)
    while at >= 0:
        if at + END.size <= len(tail):
            comment_bytes: int = END.unpack_from(tail, at)[-1]
            trailing = len(tail) - at - END.size - comment_bytes
            if trailing == 0:
                exact.append((at, comment_bytes, 0))
            elif trailing > 0 and behind is None:
                behind = at, comment_bytes, trailing
            cut |= trailing < 0
        at = tail.rfind(END_MAGIC, 0, at)
    if len(exact) > 1:
        raise CorruptShardError(shard, base + exact[0][0], "two records may be its end record")
    if exact:
        return exact[0]
    if behind is None:
        text = "the comment of its end record is cut off" if cut else "it has no end record"
        raise CorruptShardError(shard, base + len(tail), f"{text}: it is cut off, or no zip")
    return behind


def _read_large_end(
    shard: str, tail: bytes, at: int, base: int
) -> tuple[int, int, int, int, int, int] | None:
    """The numbers in the zip64 end record that belongs to the end record at ``at``; None if there
    is no zip64 end record."""
    place = at - LOCATOR.size
    if place < 0 or tail[place : place + 4] != LOCATOR_MAGIC:
        return None
    _, disk, _, disks = LOCATOR.unpack_from(tail, place)
    if disk or disks > 1:
        raise CorruptShardError(shard, base + place, "it is one disk of a zip of several")
    place -= END64.size
    if place < 0 or tail[place : place + 4] != END64_MAGIC:
        raise CorruptShardError(
            shard, base + at, "no zip64 end record of the usual length is before its locator"
        )
    fields = END64.unpack_from(tail, place)
    # The length in the record does not count its first 12 bytes; a longer one has extensions.
    if fields[1] != END64.size - 12:
        raise CorruptShardError(shard, base + place, "a zip64 end record of another length")
    return fields[4:]


class Directory(Struct, frozen=True, eq=False):
    """The entries of a zip, in the order of its central directory; columns of ``(n,)`` rows."""

    shard: str
    heads: Records  # ENTRY_DTYPE
    blob: UInt8s  # all entries, as stored
    bounds: Int64s  # entry i is ``blob[bounds[i]:bounds[i + 1]]``; shape (n + 1,)
    start: Int64s  # of the local header, in the shard
    stored: Int64s  # bytes of the data
    size: Int64s  # bytes of the payload, once it is decompressed
    names: BytesColumn  # as they are stored
    large_at: Int64s  # where in the entry its zip64 field is, or -1
    at: int  # where in the shard the directory begins

    def __len__(self) -> int:
        return len(self.heads)

    def fail(self, row: int, text: str) -> Never:
        """``CorruptShardError`` about one entry."""
        name = readable(self.names[row])
        offset = self.at + int(self.bounds[row])
        raise CorruptShardError(self.shard, offset, f"the entry {name} {text}")

    def fail_where(self, wrong: np.ndarray[tuple[int], np.dtype[np.bool_]], text: str) -> None:
        """``CorruptShardError`` about the first ``wrong`` row, if any row is wrong."""
        if wrong.any():
            self.fail(int(np.argmax(wrong)), text)

    def entry(self, row: int) -> bytes:
        """An entry as it is stored."""
        return self.blob[self.bounds[row] : self.bounds[row + 1]].tobytes()

    def extra(self, row: int) -> bytes:
        """The extra of an entry."""
        start = ENTRY.size + int(self.heads["name_bytes"][row])
        return self.entry(row)[start : start + int(self.heads["extra_bytes"][row])]

    def texts(self) -> tuple[BytesColumn, tuple[int, ...]]:
        """(names as UTF-8, rows with names that are neither ASCII nor flagged as UTF-8)."""
        wide = self.names.rows_with(self.names.blob >= 0x80)
        rows = np.flatnonzero(wide & (self.heads["flags"] & UTF8 == 0))
        if len(rows) == 0:
            return self.names, ()
        texts = self.names.tolist()
        for row in rows.tolist():
            texts[row] = name_text(texts[row], 0, self.extra(row))
        return BytesColumn.of(texts), tuple(rows.tolist())

    def kinds(self) -> UInt8s:
        """The kind of each entry, from its name and its Unix mode."""
        kind = np.full(len(self), MemberKind.FILE, np.uint8)
        lengths = self.names.lengths
        last = self.names.blob[self.names.offsets[1:] - 1] if len(self) else self.names.blob
        is_directory = (last == ord("/")) & (lengths > 0)
        self.fail_where(is_directory & (self.size > 0), "is a directory with content")
        # Unix and macOS: the upper half of `external` is a mode, its top four bits the kind of
        # file.
        of_unix = np.isin(self.heads["made_by"] >> 8, (3, 19))
        mode = np.where(of_unix, self.heads["external"] >> 28, 0)
        kind[(mode == 0o12) & ~is_directory] = MemberKind.SYMLINK
        # A pipe, a character device, a block device, a socket.
        kind[np.isin(mode, (0o1, 0o2, 0o6, 0o14)) & (self.size == 0)] = MemberKind.DEVICE
        kind[is_directory] = MemberKind.DIRECTORY
        links = kind == MemberKind.SYMLINK
        long = (self.size > _LINK_BYTES_MAX) | (self.stored > 2 * _LINK_BYTES_MAX)
        self.fail_where(links & long, "is a symbolic link with a target of over 64 KiB")
        opaque = ~np.isin(self.heads["method"], (STORED, DEFLATE))
        self.fail_where(links & opaque, "is a symbolic link whose target dsort cannot decompress")
        return kind


def read_directory(shard: str, end: ZipEnd) -> Generator[Need, memoryview, Directory]:
    """Read the entries. ``CorruptShardError`` if dsort cannot move all entries."""

    def fail(offset: int, text: str) -> Never:
        raise CorruptShardError(shard, offset, text)

    pieces = [(np.zeros(0, ENTRY_DTYPE), np.zeros(0, np.uint8))]
    at, count, needed = end.directory_start, 0, ENTRY.size
    while at < end.directory_end:
        left = end.directory_end - at
        if left < ENTRY.size:
            fail(at, "bytes in the central directory that are no entry")
        most = min(max(_PIECE_BYTES_MAX, needed), left)
        heads, blob, needed = _whole_entries((yield Need(at, min(needed, left)))[:most])
        if len(heads) == 0:
            if not 0 <= needed <= left:
                fail(at, "no whole entry of the central directory begins here")
            continue
        pieces.append((heads, blob))
        at, count, needed = at + len(blob), count + len(heads), ENTRY.size
        read_bytes = at - end.directory_start
        if read_bytes > _DIRECTORY_BYTES_MIN + _ENTRY_BYTES_MAX * count:
            fail(
                at,
                f"{count:,} entries take {format_bytes(read_bytes)} of the central directory: "
                "their names, extras and comments have over "
                f"{format_bytes(_ENTRY_BYTES_MAX)} each",
            )
    # Some writers store the low 16 bits of a larger number, without zip64.
    if count % end.entries_modulo != end.entries:
        fail(
            end.directory_end,
            f"the central directory has {count:,} entries, its end record has {end.entries:,}",
        )
    return _directory(shard, end, pieces)


def _whole_entries(window: memoryview) -> tuple[Records, UInt8s, int]:
    """(heads, bytes, needed) for the whole entries at the start of ``window``. ``needed`` is the
    length of the first entry if this entry is not whole; -1 if no entry begins there."""
    piece: UInt8s = np.frombuffer(window, np.uint8)
    starts, needed = _entry_starts(piece)
    heads = records_at(piece, starts, ENTRY_DTYPE)
    stop = int(starts[-1] + _entry_lengths(heads[-1:])[0]) if len(starts) else 0
    return heads, piece[:stop].copy(), needed


def _directory(shard: str, end: ZipEnd, pieces: list[tuple[Records, UInt8s]]) -> Directory:
    heads = np.concatenate([heads for heads, _ in pieces])
    blob = np.concatenate([blob for _, blob in pieces])
    pieces.clear()
    bounds = offsets_of(_entry_lengths(heads))
    names = cut_rows(blob, bounds[:-1] + ENTRY.size, heads["name_bytes"].astype(np.int64))
    columns = {name: heads[name].astype(np.int64) for name in ("stored", "size", "offset")}
    large_at = _large_fields(heads, blob, bounds)
    directory = Directory(
        shard,
        heads,
        blob,
        bounds,
        columns["offset"],
        columns["stored"],
        columns["size"],
        names,
        large_at,
        end.directory_start,
    )
    _read_large(directory)
    np.add(directory.start, end.shift, out=directory.start)
    _refuse(directory)
    return directory


def _entry_lengths(heads: Records) -> Int64s:
    parts = [heads[name].astype(np.int64) for name in _VARIABLE]
    lengths: Int64s = ENTRY.size + parts[0] + parts[1] + parts[2]
    return lengths


_VARIABLE = ("name_bytes", "extra_bytes", "comment_bytes")


def _entry_starts(piece: UInt8s) -> tuple[Int64s, int]:
    """(starts of the consecutive whole entries from the first byte on, needed). ``needed`` is the
    length of the first entry if this entry is not whole; -1 if no entry begins there."""
    nothing = np.zeros(0, np.int64)
    if len(piece) < ENTRY.size:
        return nothing, ENTRY.size
    words = np.ndarray((len(piece) - ENTRY.size + 1,), "<u4", piece, strides=(1,))
    found = np.flatnonzero(words == _MAGIC)
    if len(found) == 0 or found[0]:
        return nothing, -1
    ends = found + _entry_lengths(records_at(piece, found, ENTRY_DTYPE))
    follows = np.searchsorted(found, ends)
    chained = ends[:-1] == found[1:]
    run = len(found) if chained.all() else int(np.argmin(chained)) + 1
    if run == len(found) or ends[run - 1] > len(piece):
        starts = found[:run]
    else:  # a name, an extra or a comment has the bytes with which entries begin
        hops, last = [*range(run)], run - 1
        while follows[last] < len(found) and found[follows[last]] == ends[last]:
            last = int(follows[last])
            hops.append(last)
        starts = found[hops]
        ends = ends[hops]
    whole = int(np.searchsorted(ends[: len(starts)], len(piece), side="right"))
    return (starts[:whole], 0) if whole else (nothing, int(ends[0]))


def _large_fields(heads: Records, blob: UInt8s, bounds: Int64s) -> Int64s:
    """Where in each entry its zip64 field is, or -1. Reads the first field of all extras at once,
    then the second, and so on; an extra ends at an incomplete field."""
    found = np.full(len(heads), -1, np.int64)
    live = np.flatnonzero(heads["extra_bytes"] >= 4)
    at = bounds[live] + ENTRY.size + heads["name_bytes"][live]
    end = at + heads["extra_bytes"][live]
    while len(live):
        kind = blob[at].astype(np.int64) | blob[at + 1].astype(np.int64) << 8
        length = blob[at + 2].astype(np.int64) | blob[at + 3].astype(np.int64) << 8
        whole = at + 4 + length <= end
        hit = whole & (kind == LARGE_ID)
        found[live[hit]] = at[hit] - bounds[live[hit]]
        at = at + 4 + length
        on = whole & ~hit & (at + 4 <= end)
        live, at, end = live[on], at[on], end[on]
    return found


def _read_large(directory: Directory) -> None:
    """Replace numbers that do not fit in 32 bits with the numbers in zip64 fields."""
    blob, heads = directory.blob, directory.heads
    columns = {"size": directory.size, "stored": directory.stored, "offset": directory.start}
    saturated = {name: column == LARGE for name, column in columns.items()}
    if not any(marked.any() for marked in saturated.values()):
        return
    at = directory.bounds[:-1] + directory.large_at + 4
    extra_length = np.zeros(len(directory), np.int64)
    has = directory.large_at >= 0
    extra_length[has] = blob[at[has] - 2].astype(np.int64) | blob[at[has] - 1].astype(np.int64) << 8
    end = at + extra_length
    for name, column in columns.items():
        marked = saturated[name]
        directory.fail_where(
            marked & ((at + 8 > end) | ~has), "has no zip64 field for its sizes or its place"
        )
        rows = np.flatnonzero(marked)
        raw = blob[at[rows, None] + np.arange(8)]
        # Signed, so that 2**63 and more are refused below.
        values = np.ascontiguousarray(raw).view("<i8").reshape(-1)
        column[rows] = values
        at[rows] += 8
        directory.fail_where(
            (column < 0) | (column > _LONGEST), "has a size or a place of over 4 EiB"
        )
    several = (heads["disk"] == MANY) & has
    if several.any():
        directory.fail_where(several & (at + 4 > end), "has no zip64 field for its disk")
        rows = np.flatnonzero(several)
        heads["disk"][rows] = blob[at[rows, None] + np.arange(4)].any(axis=1)


def _refuse(directory: Directory) -> None:
    """``CorruptShardError`` for the first entry that dsort cannot move."""
    heads, fail = directory.heads, directory.fail_where
    method, flags = heads["method"], heads["flags"]
    # Bits 0, 6 and 13: encrypted, strongly encrypted, with masked headers.
    fail((flags & 0x2041 != 0) | (method == _AES), "is encrypted, which dsort cannot read")
    fail(flags & 0x0020 != 0, "is patched data, which dsort cannot read")
    known = np.isin(method, (STORED, DEFLATE, *OTHER_METHODS))
    if not known.all():
        row = int(np.argmin(known))
        directory.fail(row, f"is compressed by method {method[row]}, which dsort does not support")
    fail(heads["disk"] != 0, "is on another disk of a zip of several")
    fail(
        (method == STORED) & (directory.stored != directory.size),
        "is not compressed, but has two sizes",
    )
    fail(heads["name_bytes"] == 0, "has no name")
    fail(heads["extra_bytes"] > EXTRA_BYTES_MAX, "has an extra of nearly 64 KiB")
    nul = np.flatnonzero(directory.names.blob == 0)
    if len(nul):
        row = int(np.searchsorted(directory.names.offsets, nul[0], side="right")) - 1
        directory.fail(row, "has a NUL in its name")
    # A local header takes 30 bytes and the name, at least.
    last = directory.at - 30 - heads["name_bytes"].astype(np.int64)
    fail(directory.start > last, "begins behind the central directory")
    fail(directory.stored > last - directory.start, "reaches into the central directory")
