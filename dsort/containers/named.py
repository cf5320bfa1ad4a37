"""Checks for containers in which only the names of members separate records."""

from __future__ import annotations

import numpy as np

from dsort.data.columns import BytesColumn
from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords, split_names
from dsort.errors import ConversionError
from dsort.naming.names import readable

__all__ = ["check_keys_in_names"]


def check_keys_in_names(members: MemberTable, records: FormedRecords, suffix: str) -> None:
    """``ConversionError`` if the names of ``members`` would not separate these ``records`` in a
    ``suffix`` shard, or would be read as other names."""
    rows = records.member_rows
    _check_names(members.names.take(rows), suffix)
    if members.record_of is None:
        return
    wrong = np.flatnonzero(split_names(members.names).key_bytes[rows] != records.key_bytes[rows])
    if len(wrong):
        row = int(rows[wrong[0]])
        key = members.names[row][: int(records.key_bytes[row])]
        raise ConversionError(
            f"the key {readable(key)} has a dot in its last part: in a {suffix} shard a key ends "
            "at the first one",
            hint="choose another key_field, or leave it out: then records are numbered",
        )


def _check_names(names: BytesColumn, suffix: str) -> None:
    """``ConversionError`` for a name that would be cut off at a NUL, or is that of a directory."""
    if not len(names):
        return
    ends = names.offsets[1:]
    is_directory = names.blob[np.maximum(ends - 1, 0)] == ord("/")
    nuls = np.flatnonzero(names.blob == 0)
    for what, found in (
        ("a NUL in it, where readers take it to end", np.searchsorted(ends, nuls, side="right")),
        ("a slash at its end, as directories have", np.flatnonzero(is_directory)),
    ):
        if len(found):
            raise ConversionError(
                f"{readable(names[int(found[0])])} cannot be in a {suffix} shard: the name has "
                f"{what}",
                hint="choose another key_field, or leave it out: then records are numbered",
            )
