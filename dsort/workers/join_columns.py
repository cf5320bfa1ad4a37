"""What the index has more of each record where records of several inputs are joined."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dsort.data.columns import BytesColumn, cut_rows
from dsort.data.index import SortKeys
from dsort.data.row_bytes import side_by_side
from dsort.order.base import Algorithm
from dsort.order.shuffle import Shuffle
from dsort.order.table import RecordTable

__all__ = ["SEARCHED", "extension_lists", "join_sort_keys"]

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


def join_sort_keys(algorithm: Algorithm, table: RecordTable, extensions: BytesColumn) -> SortKeys:
    """The sort key of each record: what the algorithm makes of its record key alone, and then that
    key. A stray ``a`` is not the record ``a``. ``extensions``: as ``extension_lists``."""
    keys = algorithm.sort_keys(replace(table, shard=""))
    different, which = np.unique(table.key_hash, return_inverse=True)
    if len(different) < len(table):  # a shuffle puts those of one key in one shard apart
        words = algorithm.hashes("", different)
        keys = keys if words is None else replace(keys, words=words[which])
    identity = table.keys
    stray = extensions.lengths == len(_STRAY)
    if stray.any():
        marks = BytesColumn.of([b"", _STRAY]).take(stray.astype(np.int64))
        identity = side_by_side([identity, marks], len(table))
    text = identity
    if keys.text is not None and keys.text is not table.keys:
        text = side_by_side([keys.text, b"\0", identity], len(table))
    return replace(keys, text=text)
