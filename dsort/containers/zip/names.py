"""New names in many local headers and entries at once, as columns.

Rows without an extra field with another name, and without a comment that would then be read with
another code page, are assembled from columns. All others are left to ``entries``.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dsort.containers.zip.entries import entry_for, renamed
from dsort.containers.zip.layout import (
    DESCRIBED,
    ENTRY_DTYPE,
    LARGE,
    LOCAL_DTYPE,
    NAME_BYTES_MAX,
    UNICODE_NAME_ID,
    UTF8,
    Records,
    records_at,
)
from dsort.data.columns import Bools, BytesColumn, Int64s, cut_rows
from dsort.data.row_bytes import row_by_row, side_by_side

__all__ = ["entries_for", "renamed_headers"]

_NAME_EXTRA: Final = UNICODE_NAME_ID.to_bytes(2, "little")


def renamed_headers(headers: BytesColumn, names: BytesColumn) -> BytesColumn:
    """Each of ``headers``, for the name in the same row. ``ValueError`` if that cannot be a
    name."""
    lengths = names.lengths
    heads = records_at(headers.blob, headers.offsets[:-1], LOCAL_DTYPE)
    slow = _may_say_a_name(headers, heads) | (lengths == 0) | (lengths > NAME_BYTES_MAX)
    return row_by_row(
        slow,
        lambda row: renamed(headers[row], names[row]),
        lambda rows: _renamed(headers.take(rows), names.take(rows)),
    )


def _renamed(headers: BytesColumn, names: BytesColumn) -> BytesColumn:
    heads = records_at(headers.blob, headers.offsets[:-1], LOCAL_DTYPE)
    name_stop = LOCAL_DTYPE.itemsize + heads["name_bytes"].astype(np.int64)
    heads["flags"] |= np.where(_is_wide(names), UTF8, 0).astype("<u2")
    heads["name_bytes"] = names.lengths
    return side_by_side([_column(heads), names, headers.suffixes(name_stop)], len(names))


def entries_for(headers: BytesColumn, entries: BytesColumn) -> BytesColumn:
    """The entry of each member that gets new ``headers``. ``entries``: the previous entries."""
    heads = records_at(entries.blob, entries.offsets[:-1], ENTRY_DTYPE)
    slow = _may_say_a_name(entries, heads) | (heads["comment_bytes"] > 0)
    return row_by_row(
        slow,
        lambda row: entry_for(headers[row], entries[row]),
        lambda rows: _entries_for(headers.take(rows), entries.take(rows)),
    )


def _entries_for(headers: BytesColumn, entries: BytesColumn) -> BytesColumn:
    local = records_at(headers.blob, headers.offsets[:-1], LOCAL_DTYPE)
    heads = records_at(entries.blob, entries.offsets[:-1], ENTRY_DTYPE)
    name_stop = ENTRY_DTYPE.itemsize + heads["name_bytes"].astype(np.int64)
    heads["flags"], heads["method"] = local["flags"], local["method"]
    said = (local["flags"] & DESCRIBED == 0) & (local["stored"] != LARGE) & (local["size"] != LARGE)
    for field in ("crc", "stored", "size"):
        heads[field] = np.where(said, local[field], heads[field])
    heads["name_bytes"] = local["name_bytes"]
    lengths = local["name_bytes"].astype(np.int64)
    names = cut_rows(headers.blob, headers.offsets[:-1] + LOCAL_DTYPE.itemsize, lengths)
    return side_by_side([_column(heads), names, entries.suffixes(name_stop)], len(entries))


def _may_say_a_name(rows: BytesColumn, heads: Records) -> Bools:
    """Which rows may have an extra field with another name: those with the bytes of the id of such
    a field."""
    found = np.zeros(len(rows), np.bool_)
    for row in np.flatnonzero(heads["extra_bytes"]).tolist():
        found[row] = _NAME_EXTRA in rows[row]
    return found


def _is_wide(names: BytesColumn) -> Bools:
    wide = np.zeros(len(names), np.bool_)
    rows: Int64s = np.flatnonzero(names.blob >= 0x80)
    wide[np.searchsorted(names.offsets, rows, side="right") - 1] = True
    return wide


def _column(heads: Records) -> BytesColumn:
    size = heads.dtype.itemsize
    return BytesColumn(
        np.arange(len(heads) + 1, dtype=np.int64) * size, heads.view(np.uint8).reshape(-1)
    )
