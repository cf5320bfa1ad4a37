"""The tar container: the interface of this folder to the rest of dsort.

The end of a tar is two zero blocks, which list nothing: members have no entries.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from msgspec.structs import replace

from dsort.containers.bare_rows import check_keys_in_names
from dsort.containers.base import Container, Scanner
from dsort.containers.facets import Hops, Names, Overwriting, Payloads
from dsort.containers.tar.fields import are_posix
from dsort.containers.tar.header import (
    BLOCK_BYTES,
    NAME_BYTES,
    PREFIX,
    TYPE_AT,
    hop,
    link_target,
    other_name,
    renamed,
    retargeted,
    tar_header,
    tar_padding,
    unsafe_prefix,
)
from dsort.containers.tar.oddities import ODDITIES
from dsort.containers.tar.scan import END_OF_ARCHIVE, TarScan
from dsort.data.columns import Bools, BytesColumn, Int64s, UInt8s, rows_at_each
from dsort.data.members import MemberTable, PlacedEntries
from dsort.data.records import FormedRecords
from dsort.data.row_bytes import RowBytes, row_by_row

Blocks = np.ndarray[tuple[int, int], np.dtype[np.uint8]]

_SIZE_AT, _SIZE_DIGITS = 124, 11
_CHECKSUM_AT, _CHECKSUM_DIGITS = 148, 6
_EXTENDED_BYTES = 3 * BLOCK_BYTES
_PAX, _SLASH_0 = ord("x"), ord("0")
_BLANKS = 8 * ord(" ")
_NAMING = (b"path=", b"GNU.sparse")
"""Each pax header that names its member has one of these texts; a pax header without a name may
have them, too."""


def overwritable_names(
    header_bytes: Int64s, names: BytesColumn, read: Callable[[Int64s], BytesColumn]
) -> Bools:
    """Which members can get the new ``names`` by overwriting the last block of their headers;
    ``header_bytes`` are the lengths of the headers. ``read``: returns the headers of some rows."""
    lengths = names.lengths
    fit: Bools = (lengths > 0) & (lengths <= NAME_BYTES)
    fit &= ~names.rows_with(names.blob == 0)
    # A pax header before the main one may have another name, which readers would use.
    extended = np.flatnonzero(fit & (header_bytes == _EXTENDED_BYTES))
    fit &= header_bytes == BLOCK_BYTES
    if len(extended):
        blocks = read(extended).blob.reshape(len(extended), _EXTENDED_BYTES)
        fit[extended] = _say_no_name(blocks)
    return fit


def _say_no_name(headers: Blocks) -> Bools:
    """Which headers of three blocks are a pax header without a name, followed by the main
    header."""
    digits = headers[:, _SIZE_AT : _SIZE_AT + _SIZE_DIGITS] - np.uint8(_SLASH_0)
    plain: Bools = (headers[:, TYPE_AT] == _PAX) & (digits < 8).all(axis=1)
    powers = 8 ** np.arange(_SIZE_DIGITS - 1, -1, -1, dtype=np.int64)
    size_bytes = digits.astype(np.int64) @ powers
    plain &= (size_bytes > 0) & (size_bytes <= BLOCK_BYTES)
    payloads = headers[:, BLOCK_BYTES : 2 * BLOCK_BYTES].tobytes()
    for word in _NAMING:
        at = payloads.find(word)
        while at >= 0:
            plain[at // BLOCK_BYTES] = False
            at = payloads.find(word, at + 1)
    return plain


def overwrite_names(headers: UInt8s, names: BytesColumn) -> None:
    """Overwrite the names in main headers with ``names``, in place. ``headers``: the headers, one
    after the other. All names have 1 to 100 bytes."""
    blocks: Blocks = headers.reshape(len(names), BLOCK_BYTES)
    lengths, width = names.lengths, names.width
    if width is not None:
        blocks[:, :width] = names.blob.reshape(len(blocks), width)
        blocks[:, width:NAME_BYTES] = 0
    else:
        places = np.arange(len(blocks), dtype=np.int64) * BLOCK_BYTES - names.offsets[:-1]
        flat = blocks.reshape(-1)
        blocks[:, :NAME_BYTES] = 0
        flat[np.arange(len(names.blob)) + np.repeat(places, lengths)] = names.blob
    prefixed = np.flatnonzero(blocks[:, PREFIX.start])
    if len(prefixed):
        posix = are_posix(blocks[prefixed])
        other = prefixed[~posix]  # other tars have no prefix field
        unsafe = [row for row in other.tolist() if unsafe_prefix(blocks[row].tobytes())]
        blocks[prefixed[posix], PREFIX] = 0
        blocks[unsafe, PREFIX] = 0
    _write_checksums(blocks)


def _write_checksums(blocks: Blocks) -> None:
    field = slice(_CHECKSUM_AT, _CHECKSUM_AT + _CHECKSUM_DIGITS + 2)
    blocks[:, field] = 0
    # The bytes of half a header add up to 65280 at most, so 16 bits suffice (and are the fastest).
    halves = blocks.reshape(-1, BLOCK_BYTES // 2).sum(axis=1, dtype=np.uint16)
    total = np.add(halves[0::2], halves[1::2], dtype=np.uint32) + np.uint32(_BLANKS)
    for place in range(_CHECKSUM_DIGITS):
        digit = (total >> np.uint32(3 * (_CHECKSUM_DIGITS - 1 - place))) & np.uint32(7)
        blocks[:, _CHECKSUM_AT + place] = digit + np.uint32(_SLASH_0)
    blocks[:, _CHECKSUM_AT + _CHECKSUM_DIGITS + 1] = ord(" ")


def renamed_headers(headers: BytesColumn, names: BytesColumn) -> BytesColumn:
    """Each row of ``headers``, with the name in that row of ``names`` in place of its own.
    ``ValueError`` if a text cannot be a name."""
    quick = overwritable_names(headers.lengths, names, headers.take)
    return row_by_row(
        ~quick,
        lambda row: renamed(headers[row], names[row]),
        lambda rows: _overwritten(headers.take(rows), names.take(rows)),
    )


def _overwritten(headers: BytesColumn, names: BytesColumn) -> BytesColumn:
    if not len(headers):
        return headers
    blob: UInt8s = headers.blob.copy()
    everywhere, last = rows_at_each(blob, BLOCK_BYTES), headers.offsets[1:] - BLOCK_BYTES
    blocks = everywhere[last]
    overwrite_names(blocks.view(np.uint8), names)
    everywhere[last] = blocks
    return BytesColumn(headers.offsets, blob)


TarFormat = Literal["ustar", "gnu", "pax"]


@dataclass(frozen=True, slots=True)
class Tar(Container):
    """Tars. ``written_as`` and ``modified_at_s`` (since 1970) are for new members; members of input
    shards are copied with their own headers, of any kind."""

    written_as: TarFormat = "pax"
    modified_at_s: float = 0
    _payload_max: float = field(default=math.inf, compare=False)

    suffixes = (".tar",)
    oddities = ODDITIES
    is_of_members = True
    names = Names(
        renamed_headers,
        other_name,
        link_target,
        retargeted,
        Overwriting(BLOCK_BYTES, overwritable_names, overwrite_names),
    )
    hops = Hops(BLOCK_BYTES, hop)

    def scanner(self, shard: str, size_bytes: int) -> Scanner:
        return TarScan(shard, size_bytes, self._payload_max).scanner()

    def within(self, decoded_max: float) -> Tar:
        """The same container with a limit on payloads after hard links are resolved, because each
        hard link gets a copy of a payload."""
        return dataclasses.replace(self, _payload_max=decoded_max)

    def packed(
        self, members: MemberTable, records: FormedRecords, payloads: Payloads
    ) -> MemberTable:
        check_keys_in_names(members, records, ".tar")
        names, sizes = members.names.tolist(), members.payload_bytes.tolist()
        literals, tails = [b""] * len(members), [b""] * len(members)
        for row in records.member_rows.tolist():
            header, padding = self._header(names[row], sizes[row]), tar_padding(sizes[row])
            # A literal payload is joined with its padding. If the padding were a tail, all payloads
            # of the shard would be copied once more, to put the padding behind them.
            payload = members.literals.get(row, b"")
            literals[row] = b"".join((header, payload, padding)) if payload else header
            tails[row] = b"" if payload else padding
        # Columns are made once, here: with a dict, each later access would join all rows.
        return replace(
            members, literals=_row_bytes(literals), tails=_row_bytes(tails), entries=None
        )

    def encode(self, name: bytes, payload: bytes) -> tuple[Sequence[bytes], bytes]:
        return (self._header(name, len(payload)), payload, tar_padding(len(payload))), b""

    def _header(self, name: bytes, payload_bytes: int) -> bytes:
        if self.written_as == "pax" and not self.modified_at_s:
            return tar_header(name, payload_bytes)
        import tarfile  # readers of tars do not need it

        formats: dict[TarFormat, Literal[0, 1, 2]] = {
            "ustar": tarfile.USTAR_FORMAT,
            "gnu": tarfile.GNU_FORMAT,
            "pax": tarfile.PAX_FORMAT,
        }
        info = tarfile.TarInfo(name.decode("utf-8", "surrogateescape"))
        info.size, info.mtime = payload_bytes, self.modified_at_s
        return info.tobuf(formats[self.written_as], "utf-8", "surrogateescape")

    def end_bytes(self, members: int, entries_bytes: int, stored_bytes: int) -> int:
        return len(END_OF_ARCHIVE)

    def end(self, entries: PlacedEntries, stored_bytes: int) -> bytes:
        return END_OF_ARCHIVE


def _row_bytes(rows: Sequence[bytes]) -> Mapping[int, bytes]:
    return RowBytes(BytesColumn.of(rows)) if any(rows) else {}


TAR = Tar()
