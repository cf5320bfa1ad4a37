"""New names in many tar headers at once, as columns: 0.3 µs each, against 17 µs one by one.

Nearly all headers are one block, or a pax header of times and similar values and then that block. A
name of up to 100 bytes overwrites the old one in that block, and apart from the checksum nothing
else changes. All other headers (for names that need more room, or are in a pax header) are left to
``header.renamed``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dsort.containers.tar.header import (
    BLOCK_BYTES,
    NAME_BYTES,
    POSIX_MAGIC,
    renamed,
    unsafe_prefix,
)
from dsort.data.columns import Bools, BytesColumn, Int64s, UInt8s
from dsort.data.row_bytes import row_by_row

__all__ = ["overwritable_names", "overwrite_names", "renamed_headers"]

Blocks = np.ndarray[tuple[int, int], np.dtype[np.uint8]]

_PREFIX_AT, _PREFIX_STOP = 345, 500
_SIZE_AT, _SIZE_DIGITS = 124, 11
_CHECKSUM_AT, _CHECKSUM_DIGITS = 148, 6
_TYPE_AT = 156
_MAGIC_AT: Final = 257
_EXTENDED_BYTES = 3 * BLOCK_BYTES
_PAX, _SLASH_0 = ord("x"), ord("0")
_BLANKS = 8 * ord(" ")
_NAMING = (b"path=", b"GNU.sparse")
"""Each pax header that names its member has one of these; one that does not may have them, too."""


def overwritable_names(
    header_bytes: Int64s, names: BytesColumn, read: Callable[[Int64s], BytesColumn]
) -> Bools:
    """Which members, whose headers have ``header_bytes``, can have their names in their last block
    overwritten with ``names``. ``read``: returns the headers of some rows."""
    lengths = names.lengths
    fit: Bools = (lengths > 0) & (lengths <= NAME_BYTES)
    nuls = np.flatnonzero(names.blob == 0)
    fit[np.searchsorted(names.offsets, nuls, side="right") - 1] = False
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
    plain: Bools = (headers[:, _TYPE_AT] == _PAX) & (digits < 8).all(axis=1)
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


def overwrite_names(blocks: Blocks, names: BytesColumn) -> None:
    """Overwrite the names in ``blocks``, main headers of shape ``(n, 512)``, with ``names``, in
    place. All names have 1 to 100 bytes."""
    lengths, width = names.lengths, names.width
    if width is not None:
        blocks[:, :width] = names.blob.reshape(len(blocks), width)
        blocks[:, width:NAME_BYTES] = 0
    else:
        places = np.arange(len(blocks), dtype=np.int64) * BLOCK_BYTES - names.offsets[:-1]
        flat = blocks.reshape(-1)
        blocks[:, :NAME_BYTES] = 0
        flat[np.arange(len(names.blob)) + np.repeat(places, lengths)] = names.blob
    prefixed = np.flatnonzero(blocks[:, _PREFIX_AT])
    if len(prefixed):
        magic = blocks[prefixed, _MAGIC_AT : _MAGIC_AT + len(POSIX_MAGIC)]
        posix = (magic == np.frombuffer(POSIX_MAGIC, np.uint8)).all(axis=1)
        other = prefixed[~posix]  # other tars have other values there
        unsafe = [row for row in other.tolist() if unsafe_prefix(blocks[row].tobytes())]
        blocks[prefixed[posix], _PREFIX_AT:_PREFIX_STOP] = 0
        blocks[unsafe, _PREFIX_AT:_PREFIX_STOP] = 0
    _write_checksums(blocks)


def _write_checksums(blocks: Blocks) -> None:
    field = slice(_CHECKSUM_AT, _CHECKSUM_AT + _CHECKSUM_DIGITS + 2)
    blocks[:, field] = 0
    # Half a header sums up to 65280 at most, so 16 bits suffice (and are the fastest).
    halves = blocks.reshape(-1, BLOCK_BYTES // 2).sum(axis=1, dtype=np.uint16)
    total = np.add(halves[0::2], halves[1::2], dtype=np.uint32) + np.uint32(_BLANKS)
    for place in range(_CHECKSUM_DIGITS):
        digit = (total >> np.uint32(3 * (_CHECKSUM_DIGITS - 1 - place))) & np.uint32(7)
        blocks[:, _CHECKSUM_AT + place] = digit + np.uint32(_SLASH_0)
    blocks[:, _CHECKSUM_AT + _CHECKSUM_DIGITS + 1] = ord(" ")


def renamed_headers(headers: BytesColumn, names: BytesColumn) -> BytesColumn:
    """Each of ``headers``, for the name in the same row. ``ValueError`` if that cannot be a
    name."""
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
    last = _last_blocks(blob, headers.offsets)
    blocks = np.ascontiguousarray(last).view(np.uint8).reshape(len(headers), BLOCK_BYTES)
    overwrite_names(blocks, names)
    _last_blocks(blob, headers.offsets, blocks)
    return BytesColumn(headers.offsets, blob)


def _last_blocks(blob: UInt8s, offsets: Int64s, new: Blocks | None = None) -> NDArray[np.void]:
    """A copy of the last block of each row. ``new``: blocks that are put there first."""
    everywhere: NDArray[np.void] = np.ndarray(
        (len(blob) - BLOCK_BYTES + 1,), f"V{BLOCK_BYTES}", blob, strides=(1,)
    )
    at = offsets[1:] - BLOCK_BYTES
    if new is not None:
        everywhere[at] = new.view(f"V{BLOCK_BYTES}")[:, 0]
    return everywhere[at]
