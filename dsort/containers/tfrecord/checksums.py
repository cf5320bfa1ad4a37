"""The masked CRC-32C of TFRecord: of one length or record, and of many lengths at once.

``awscrt`` computes it with the processor's instructions: 12 GB/s, so that checking costs a small
part of the read. PyPI's ``crc32c`` would work as well, but it is under the LGPL.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
from awscrt.checksums import crc32c
from numpy.typing import NDArray

from dsort.data.columns import Int64s, UInt32s

__all__ = [
    "ROW_BYTES_MAX",
    "crc32c",
    "length_checksums",
    "masked",
    "masked_all",
    "row_checksums",
]

_MASK: Final = 0xA282EAD8
ROW_BYTES_MAX: Final = 512
"""Longer rows are not computed by columns, because each column needs a table."""


def masked(checksum: int) -> int:
    """A CRC-32C as TFRecord stores it. It is masked because a checksum of data that holds its own
    checksum is weak."""
    return (((checksum >> 15) | (checksum << 17)) + _MASK) & 0xFFFFFFFF


def masked_all(checksums: UInt32s) -> UInt32s:
    """:func:`masked` of each checksum, shape ``(n,)``."""
    fifteen, seventeen = np.uint32(15), np.uint32(17)
    return ((checksums >> fifteen) | (checksums << seventeen)) + np.uint32(_MASK)


def length_checksums(lengths: Int64s) -> UInt32s:
    """The masked checksum of each length as 8 little-endian bytes, shape ``(n,)``. 40 ns each; a
    call for each would take 400 ns."""
    data = np.ascontiguousarray(lengths, "<i8").view(np.uint8).reshape(-1, 8)
    total = np.full(len(lengths), _of_zeros(), np.uint32)
    for place, table in enumerate(_tables()):
        total ^= table[data[:, place]]
    return masked_all(total)


def _of_zeros() -> int:
    return int(crc32c(bytes(8)))


@cache
def _tables() -> NDArray[np.uint32]:
    """What each value of each of 8 bytes adds to the checksum of all of them, shape (8, 256): the
    checksum is linear except for a constant."""
    zeros = _of_zeros()
    rows = [
        [crc32c(bytes(place) + bytes([value]) + bytes(7 - place)) ^ zeros for value in range(256)]
        for place in range(8)
    ]
    return np.array(rows, np.uint32)


def row_checksums(rows: NDArray[np.uint8]) -> UInt32s:
    """The CRC-32C of each row of a table, shape ``(n,)``. Rows have at most ``ROW_BYTES_MAX`` bytes
    and most columns are the same in all of them. It is the first row's checksum, changed for each
    byte that differs: 2 ns for each column that is not the same, where a call for a row takes 250
    ns."""
    count, width = rows.shape
    found = np.full(count, crc32c(rows[0].tobytes()) if count else 0, np.uint32)
    if count > 1:
        differing = rows ^ rows[0]
        for place in np.flatnonzero(differing.any(axis=0)).tolist():
            found ^= _changes(width - 1 - place)[differing[:, place]]
    return found


@cache
def _changes(behind: int) -> UInt32s:
    """How a checksum changes with the bits of a byte that is followed by ``behind`` bytes, shape
    (256,)."""
    if behind == 0:
        zero = crc32c(bytes(1))
        return np.array([crc32c(bytes([bits])) ^ zero for bits in range(256)], np.uint32)
    nearer = _changes(behind - 1)
    changes: UInt32s = (nearer >> np.uint32(8)) ^ _changes(0)[nearer & np.uint32(0xFF)]
    return changes
