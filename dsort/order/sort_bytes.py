"""Sort keys as bytes: several of a record, one after the other, compare as they do one by one.

Each key becomes bytes that compare as it does and of which none begins as another one ends: its
rank, its word, its text with an end. Then those of all keys are put side by side. Everything that
orders, parts and stores sort keys knows texts already.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsort.data.columns import BytesColumn, UInt8s
from dsort.data.index import SortKeys
from dsort.data.row_bytes import side_by_side

text_end = b"\0\0"
"""What ends a text. A zero byte in it is followed by 255."""


def joined_keys(
    keys: Sequence[SortKeys], *, decreasing: Sequence[bool], has_texts: Sequence[bool], count: int
) -> SortKeys:
    """One sort key of ``count`` records for their ``keys``, the one that decides first.

    ``decreasing``: which of them are turned round, but not their ranks. ``has_texts``: which may
    have texts, in these records or in others; all records of a job are told the same.
    """
    parts: list[BytesColumn | bytes] = []
    for each, turned, with_text in zip(keys, decreasing, has_texts, strict=True):
        if each.rank is not None:
            parts.append(_column(each.rank.reshape(-1, 1)))
        own: list[BytesColumn | bytes] = []
        if each.words is not None:
            own.append(_column(each.words.astype(">u8").view(np.uint8).reshape(-1, 8)))
        if with_text:
            own += [] if each.text is None else [_escaped(each.text)]
            own.append(text_end)
        parts += map(_turned, own) if turned else own
    return SortKeys(count, text=side_by_side(parts, count))


def _column(table: UInt8s) -> BytesColumn:
    count, width = table.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int64)
    return BytesColumn(offsets, np.ascontiguousarray(table).reshape(-1))


def _escaped(text: BytesColumn) -> BytesColumn:
    if not len(text.blob) or bool(text.blob.all()):
        return text
    return BytesColumn.of([row.replace(b"\0", b"\0\xff") for row in text.tolist()])


def _turned(part: BytesColumn | bytes) -> BytesColumn | bytes:
    """The same, so that it compares the other way round."""
    if isinstance(part, bytes):
        return bytes(255 - byte for byte in part)
    return BytesColumn(part.offsets, ~part.blob)
