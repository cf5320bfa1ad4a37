"""Texts of equal lengths as rows of a table, which are compared row by row."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from dsort.data.columns import Bools, BytesColumn, Int64s, UInt64s, are_all_rows

_WORD = 8


def marks_stand_alike(texts: BytesColumn, width: int, marks: bytes) -> bool:
    """Whether each byte of ``marks`` is at the same places in all ``texts``, which have ``width``
    bytes each."""
    for mark in marks:
        stands = texts.blob == mark
        if bool((stands[width:] != stands[:-width]).any()):
            return False
    return True


def rows_equal_earlier(
    texts: BytesColumn, width: int, start: int, stop: int, lag: int
) -> Bools | None:
    """Whether bytes ``start:stop`` of row ``i + lag`` of ``texts``, which have ``width`` bytes
    each, equal those of row ``i``; shape ``(n - lag,)``. None for texts shorter than a word."""
    if width < _WORD:
        return None
    count = len(texts)
    differing = np.zeros(count - lag, np.uint64)
    blob = np.ascontiguousarray(texts.blob)
    for first in range(start, stop, _WORD):
        at = min(first, width - _WORD)
        last = min(stop, first + _WORD)
        rows: UInt64s = np.ndarray((count,), "<u8", blob.data, at, (width,)).astype(np.uint64)
        wanted = (1 << 8 * (last - at)) - (1 << 8 * (first - at))
        differing |= (rows[lag:] ^ rows[:-lag]) & np.uint64(wanted)
    equal: Bools = differing == 0
    return equal


class NameTable(Struct, frozen=True):
    """Names of ``width`` bytes, of which the first ``key_bytes`` are the key."""

    width: int
    key_bytes: int


def as_table(names: BytesColumn, rows: Int64s, key_bytes: Int64s) -> NameTable | None:
    """The lengths of all names and of their keys, if each of the two is the same for all names, and
    ``rows`` are all of them; else None."""
    width = names.width
    if width is None or not len(rows) or not are_all_rows(rows, len(names)):
        return None
    key = int(key_bytes[0])
    are_alike = key_bytes.strides == (0,) or bool((key_bytes == key).all())
    return NameTable(width, key) if are_alike else None
