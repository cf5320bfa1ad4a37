"""What containers have in common in which nothing but the names of members tells records apart."""

from __future__ import annotations

import numpy as np

from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords, split_names
from dsort.errors import ConversionError
from dsort.naming.names import readable

__all__ = ["check_keys_in_names"]


def check_keys_in_names(members: MemberTable, records: FormedRecords, suffix: str) -> None:
    """``ConversionError`` if the names of ``members`` would not tell these ``records`` apart in a
    ``suffix`` shard."""
    if members.record_of is None:
        return
    rows = records.member_rows
    wrong = np.flatnonzero(split_names(members.names).key_bytes[rows] != records.key_bytes[rows])
    if len(wrong):
        row = int(rows[wrong[0]])
        key = members.names[row][: int(records.key_bytes[row])]
        raise ConversionError(
            f"the key {readable(key)} has a dot in its last part: in a {suffix} shard a key ends "
            "at the first one",
            hint="choose another key_field, or leave it out: then records are numbered",
        )
