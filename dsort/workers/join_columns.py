"""What the index has more of each record where records of several inputs are joined."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dsort.data.columns import BytesColumn, UInt64s, cut_rows
from dsort.data.index import ORDINAL, SortKeys
from dsort.data.row_bytes import side_by_side
from dsort.order.base import Algorithm
from dsort.order.shuffle import Shuffle
from dsort.order.table import RecordTable
from dsort.scratch.positions import PLACE, Positions

_STRAY = b"\0"
"""What is kept of the one member of a stray, which has no extension."""


def extension_lists(table: RecordTable) -> BytesColumn:
    """The extensions of the members of each record, a zero byte behind each."""
    names, records = table.members.names, table.records
    rows = records.member_rows
    key_bytes = records.key_bytes[rows]
    own = cut_rows(
        names.blob, names.offsets[:-1][rows] + key_bytes, names.lengths[rows] - key_bytes
    )
    ended = side_by_side([own, b"\0"], len(own))
    return BytesColumn(ended.offsets[records.member_offsets], ended.blob)


SEARCHED = Shuffle(seed="")
"""How records are ordered where it is but found out what a join leaves out: by hashes, which part
them evenly whatever the order of the job is."""


def place_sort_keys(words: UInt64s, table: RecordTable, extensions: BytesColumn) -> SortKeys:
    """The same of pieces whose places are known."""
    return SortKeys(len(table), words=words, text=_identity(table, extensions))


def place_words(
    positions: Positions, shard: int, before: RecordTable, left: RecordTable
) -> UInt64s:
    """The place of the record of each piece that is ``left`` of those of a shard ``before``."""
    found = positions.of_shard(shard, [PLACE], records=len(before))
    words = np.zeros(len(before), np.uint64)
    words[found[ORDINAL]] = found[PLACE]
    record_of = np.zeros(len(before.members), np.int64)
    record_of[before.records.member_rows] = before.record_of
    records = left.records
    return words[record_of[records.member_rows[records.member_offsets[:-1]]]]


def join_sort_keys(algorithm: Algorithm, table: RecordTable, extensions: BytesColumn) -> SortKeys:
    """The sort key of each record: what the algorithm makes of its record key alone, and then that
    key. A stray ``a`` is not the record ``a``. ``extensions``: as ``extension_lists``."""
    keys = algorithm.sort_keys(replace(table, shard=""))
    different, which = np.unique(table.key_hash, return_inverse=True)
    if len(different) < len(table):  # a shuffle puts those of one key in one shard apart
        words = algorithm.hashes("", different)
        keys = keys if words is None else replace(keys, words=words[which])
    text = identity = _identity(table, extensions)
    if keys.text is not None and keys.text is not table.keys:
        text = side_by_side([keys.text, b"\0", identity], len(table))
    return replace(keys, text=text)


def _identity(table: RecordTable, extensions: BytesColumn) -> BytesColumn:
    """What tells records apart: their keys. A stray ``a`` is not the record ``a``."""
    stray = extensions.lengths == len(_STRAY)
    if not stray.any():
        return table.keys
    marks = BytesColumn.of([b"", _STRAY]).take(stray.astype(np.int64))
    return side_by_side([table.keys, marks], len(table))
