"""Local headers and entries of the central directory, as dsort writes them.

The entries that travel with members have 0 as their place.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, cast

import numpy as np
from isal import igzip_lib, isal_zlib
from numpy.typing import NDArray

from dsort.containers.codecs.decoding import small_pieces
from dsort.containers.zip.directory import Directory
from dsort.containers.zip.layout import (
    DEFLATE,
    DESCRIBED,
    ENTRY,
    ENTRY_DTYPE,
    ENTRY_MAGIC,
    LARGE,
    LARGE_ID,
    LOCAL,
    LOCAL_DTYPE,
    LOCAL_MAGIC,
    MANY,
    NAME_BYTES_MAX,
    STORED,
    UNICODE_NAME_ID,
    UTF8,
    Records,
    records_at,
    without_extras,
)
from dsort.data.columns import Bools, BytesColumn, Int64s, cut_rows
from dsort.data.members import PlacedEntries
from dsort.data.row_bytes import row_by_row, side_by_side, spread
from dsort.naming.names import is_utf8

LARGE_PLACE_BYTES: Final = 12
"""How many bytes more each entry takes in a shard of 4 GiB and more. An entry gets a zip64 field
with its place. If the first field of an entry is a zip64 field already, with the sizes of a member
of 4 GiB, this field gets place and disk, which takes as many bytes. So the length of a directory is
known before it is written."""

_VERSION, _VERSION_64 = 20, 45
_UNIX = 3 << 8
_FILE_MODE = 0o100644 << 16
_DATE = 33  # 1980-01-01, the first valid day
_INFLATE_ERROR = cast(type[Exception], igzip_lib.IsalError)
_INFLATE_BYTES = 1 << 20
_OFFSET_AT = ENTRY.size - 4
_NAME_EXTRA = UNICODE_NAME_ID.to_bytes(2, "little")
_SIZES = struct.Struct("<2HQQ")
_PLACE = struct.Struct("<2HQ")


def new_member(name: bytes, size_bytes: int, checksum: int) -> tuple[bytes, bytes]:
    """(local header, entry) of a new stored member, whose payload has the CRC-32 ``checksum``.

    ``ValueError`` for a name that a zip cannot have."""
    headers, entries = new_members(
        BytesColumn.of([name]), np.array([size_bytes], np.int64), np.array([checksum], np.uint32)
    )
    return headers[0], entries[0]


def new_members(
    names: BytesColumn, sizes: Int64s, checksums: NDArray[np.uint32]
) -> tuple[BytesColumn, BytesColumn]:
    """(local headers, entries) of new stored members, whose payloads have the CRC-32s
    ``checksums``.

    :class:`UnfitNameError` for a name that a zip cannot have."""
    count, lengths = len(names), names.lengths
    wide = names.rows_with(names.blob >= 0x80)
    _check_names(names, lengths, wide)
    is_large = sizes >= LARGE
    heads = np.zeros(count, LOCAL_DTYPE), np.zeros(count, ENTRY_DTYPE)
    extra = BytesColumn.of(
        [_SIZES.pack(LARGE_ID, _SIZES.size - 4, size, size) for size in sizes[is_large].tolist()]
    )
    for each, magic in zip(heads, (LOCAL_MAGIC, ENTRY_MAGIC), strict=True):
        each["magic"] = int.from_bytes(magic, "little")
        each["version"] = np.where(is_large, _VERSION_64, _VERSION)
        each["flags"] = np.where(wide, UTF8, 0)
        each["method"], each["date"] = STORED, _DATE
        each["crc"] = checksums
        each["stored"] = each["size"] = np.minimum(sizes, LARGE)
        each["name_bytes"] = lengths
        each["extra_bytes"] = np.where(is_large, _SIZES.size, 0)
    local, entry = heads
    entry["made_by"] = _UNIX | entry["version"]
    entry["external"] = _FILE_MODE
    behind = [names]
    if len(extra):
        behind.append(spread(extra, np.flatnonzero(is_large), count))
    return (
        side_by_side([_column(local), *behind], count),
        side_by_side([_column(entry), *behind], count),
    )


class UnfitNameError(ValueError):
    """The name of ``row`` is a name that a zip cannot have."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


def _check_names(names: BytesColumn, lengths: Int64s, wide: Bools) -> None:
    has_nul = names.rows_with(names.blob == 0)
    unfit = np.flatnonzero((lengths == 0) | (lengths > NAME_BYTES_MAX) | has_nul)
    if len(unfit):
        raise UnfitNameError(int(unfit[0]), "a zip has names of 1 to 65,535 bytes, without NUL")
    for row in np.flatnonzero(wide).tolist():
        if not is_utf8(names[row]):
            raise UnfitNameError(row, "names in a zip are UTF-8")


def _column(heads: Records) -> BytesColumn:
    return BytesColumn.of_table(heads.view(np.uint8).reshape(len(heads), heads.dtype.itemsize))


# -- entries of members that are copied ------------------------------------------------------------


def carried_entries(directory: Directory, mended_rows: tuple[int, ...]) -> BytesColumn:
    """The entries of a directory, in the form in which they travel with its members."""
    blob, bounds = directory.blob.copy(), directory.bounds
    for at in (34, 35, *range(_OFFSET_AT, ENTRY.size)):  # the disk, the place
        blob[bounds[:-1] + at] = 0
    changed = {*np.flatnonzero(directory.large_at >= 0).tolist(), *mended_rows}
    column = BytesColumn(bounds, blob)
    if not changed:
        return column
    entries = column.tolist()
    for row in changed:
        entries[row] = _with_sizes(
            entries[row],
            int(directory.size[row]),
            int(directory.stored[row]),
            described=row not in mended_rows,
        )
    return BytesColumn.of(entries)


def _with_sizes(entry: bytes, size: int, stored: int, *, described: bool) -> bytes:
    fields, name, extra, comment = _parts(entry)
    extra, fields[9], fields[8] = _sized(extra, size, stored)
    if not described:
        fields[3] &= ~DESCRIBED
    return _joined(fields, name, extra, comment)


def _sized(extra: bytes, size: int, stored: int) -> tuple[bytes, int, int]:
    """(extra, size, stored) as they are written: sizes that do not fit are in a zip64 field."""
    extra = without_extras(extra, LARGE_ID)
    if max(size, stored) < LARGE:
        return extra, size, stored
    return _SIZES.pack(LARGE_ID, _SIZES.size - 4, size, stored) + extra, LARGE, LARGE


def _parts(data: bytes, layout: struct.Struct = ENTRY) -> tuple[list[Any], bytes, bytes, bytes]:
    """(the fields after the magic, numbered from 1; name; extra; the rest) of an entry, or of a
    local header."""
    fields = list(layout.unpack_from(data))
    name_stop = layout.size + fields[10 if layout is ENTRY else 9]
    extra_stop = name_stop + fields[11 if layout is ENTRY else 10]
    name, extra = data[layout.size : name_stop], data[name_stop:extra_stop]
    return fields, name, extra, data[extra_stop:]


def _joined(fields: list[Any], name: bytes, extra: bytes, comment: bytes) -> bytes:
    fields[10:13] = len(name), len(extra), len(comment)
    return ENTRY.pack(*fields) + name + extra + comment


def placed_directory(placed: PlacedEntries, stored_bytes: int) -> bytes:
    """The central directory of a shard whose members take ``stored_bytes``."""
    if stored_bytes >= LARGE:
        return b"".join([_with_large_place(entry, offset) for offset, entry in placed])
    blob = placed.entries.blob.copy()
    at = placed.entries.offsets[:-1] + _OFFSET_AT
    for byte in range(4):
        blob[at + byte] = placed.offsets >> 8 * byte & 0xFF
    return blob.tobytes()


def _with_large_place(entry: bytes, offset: int) -> bytes:
    fields, name, extra, comment = _parts(entry)
    fields[-1] = LARGE
    kind, length = struct.unpack_from("<2H", extra) if len(extra) >= 4 else (0, 0)
    if (kind, length) == (LARGE_ID, _SIZES.size - 4):
        sizes, rest = extra[4 : _SIZES.size], extra[_SIZES.size :]
        behind = struct.pack("<QI", offset, 0)
        extra = struct.pack("<2H", LARGE_ID, length + len(behind)) + sizes + behind + rest
        fields[13] = MANY
    else:
        extra = _PLACE.pack(LARGE_ID, _PLACE.size - 4, offset) + extra
    return _joined(fields, name, extra, comment)


# -- headers: the local header, and for a symbolic link its target ---------------------------------


def local_header(directory: Directory, row: int) -> bytes:
    """The local header of an entry, as the central directory describes it."""
    fields, name, extra, _ = _parts(directory.entry(row))
    extra, size, stored = _sized(extra, int(directory.size[row]), int(directory.stored[row]))
    flags = fields[3] & ~DESCRIBED
    common = (*fields[4:7], fields[7], stored, size, len(name), len(extra))
    return LOCAL.pack(LOCAL_MAGIC, fields[2], flags, *common) + name + extra


def renamed(headers: BytesColumn, names: BytesColumn) -> BytesColumn:
    """Each of ``headers``, changed to have the name in the same row. ``ValueError`` if a text
    cannot be a name."""
    lengths = names.lengths
    if not bool(((lengths > 0) & (lengths <= NAME_BYTES_MAX)).all()):
        raise ValueError("a zip has names of 1 to 65,535 bytes")
    headers = _replaced(headers, _local_without_other_name, _may_say_a_name(headers, LOCAL_DTYPE))
    heads = records_at(headers.blob, headers.offsets[:-1], LOCAL_DTYPE)
    name_stop = LOCAL.size + heads["name_bytes"].astype(np.int64)
    heads["flags"] |= np.where(names.rows_with(names.blob >= 0x80), UTF8, 0).astype("<u2")
    heads["name_bytes"] = lengths
    return side_by_side([_column(heads), names, headers.suffixes(name_stop)], len(names))


def entries_for(headers: BytesColumn, entries: BytesColumn) -> BytesColumn:
    """The entry of each member that gets new ``headers``. ``entries``: the previous entries."""
    heads = records_at(entries.blob, entries.offsets[:-1], ENTRY_DTYPE)
    odd = _may_say_a_name(entries, ENTRY_DTYPE) | (heads["comment_bytes"] > 0)
    entries = _replaced(entries, lambda row, entry: _for_other_name(entry, headers[row]), odd)
    local = records_at(headers.blob, headers.offsets[:-1], LOCAL_DTYPE)
    heads = records_at(entries.blob, entries.offsets[:-1], ENTRY_DTYPE)
    name_stop = ENTRY.size + heads["name_bytes"].astype(np.int64)
    heads["flags"], heads["method"] = local["flags"], local["method"]
    said = (local["flags"] & DESCRIBED == 0) & (local["stored"] != LARGE) & (local["size"] != LARGE)
    for field in ("crc", "stored", "size"):
        heads[field] = np.where(said, local[field], heads[field])
    heads["name_bytes"] = local["name_bytes"]
    lengths = local["name_bytes"].astype(np.int64)
    names = cut_rows(headers.blob, headers.offsets[:-1] + LOCAL.size, lengths)
    return side_by_side([_column(heads), names, entries.suffixes(name_stop)], len(entries))


def _may_say_a_name(rows: BytesColumn, kind: np.dtype[np.void]) -> Bools:
    """Which headers or entries may have another name in an extra field: the id of such a field
    occurs in their bytes."""
    heads = records_at(rows.blob, rows.offsets[:-1], kind)
    found = np.zeros(len(rows), np.bool_)
    for row in np.flatnonzero(heads["extra_bytes"]).tolist():
        found[row] = _NAME_EXTRA in rows[row]
    return found


def _replaced(
    rows: BytesColumn, change: Callable[[int, bytes], bytes], changed: Bools
) -> BytesColumn:
    if not changed.any():
        return rows
    return row_by_row(changed, lambda row: change(row, rows[row]), rows.take)


def _local_without_other_name(row: int, headers: bytes) -> bytes:
    fields, name, extra, rest = _parts(headers, LOCAL)
    extra = without_extras(extra, UNICODE_NAME_ID)
    fields[10] = len(extra)
    return LOCAL.pack(*fields) + name + extra + rest


def _for_other_name(entry: bytes, headers: bytes) -> bytes:
    """``entry``. If ``headers`` have another name, fields that are valid only with the old name are
    removed."""
    local, new_name, _, _ = _parts(headers, LOCAL)
    fields, name, extra, comment = _parts(entry)
    if new_name != name:
        extra = without_extras(extra, UNICODE_NAME_ID)
        if (fields[3] ^ local[2]) & UTF8 and not comment.isascii():
            comment = b""  # it would now be read with another code page
    return _joined(fields, name, extra, comment)


def link_target(headers: bytes) -> bytes:
    """The target of a symbolic link, which is in its headers: such a member has no payload."""
    fields, _, _, data = _parts(headers, LOCAL)
    if fields[3] == DEFLATE:
        return _inflate_all(data)
    return data[: fields[7]]


def retargeted(headers: bytes, target: bytes) -> bytes:
    """The headers of a symbolic link, with the target ``target``."""
    fields, name, extra, _ = _parts(headers, LOCAL)
    extra = without_extras(extra, LARGE_ID)
    fields[2], fields[3] = fields[2] & ~DESCRIBED, STORED
    fields[6:9] = isal_zlib.crc32(target), len(target), len(target)
    fields[10] = len(extra)
    return LOCAL.pack(*fields) + name + extra + target


def _inflate_all(data: bytes) -> bytes:
    decoder = isal_zlib.decompressobj(-isal_zlib.MAX_WBITS)
    try:
        # A target has up to 64 KiB; without this bound, a bomb could inflate here.
        return decoder.decompress(data, MANY + 1)
    except _INFLATE_ERROR:
        return b""


def inflated(
    pieces: Iterable[memoryview | bytes], size_bytes: int, checksum: int
) -> Iterator[bytes]:
    """The inflated payload of an entry, in pieces; it has ``size_bytes`` and the CRC-32
    ``checksum``.

    ``ValueError`` with the reason for an invalid payload; no more than ``size_bytes`` are returned
    before the error."""
    decoder = isal_zlib.decompressobj(-isal_zlib.MAX_WBITS)
    found, at, is_full = 0, 0, False
    for data in small_pieces(pieces):
        while (data or is_full) and not decoder.eof:
            try:
                payload = decoder.decompress(data, _INFLATE_BYTES)
            except _INFLATE_ERROR as error:
                raise ValueError(f"cannot be inflated ({error})") from None
            data = decoder.unconsumed_tail
            is_full = len(payload) == _INFLATE_BYTES  # the decoder may hold more
            at += len(payload)
            found = isal_zlib.crc32(payload, found)
            if at > size_bytes:
                break
            if payload:
                yield payload
        if data or at > size_bytes:
            break
    else:
        data = b""
    if at != size_bytes or data or decoder.unused_data or not decoder.eof:
        raise ValueError("inflates to another size than that in the central directory")
    if found != checksum:
        raise ValueError("has another CRC-32 than that in the central directory")
