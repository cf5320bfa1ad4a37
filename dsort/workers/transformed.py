"""The records that the steps of a job leave of one shard."""

from __future__ import annotations

from msgspec import Struct

from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords


class Transformed(Struct, frozen=True, eq=False):
    """The records that steps leave. ``named``: ``members`` with the names that steps gave them,
    which are not in the headers yet. ``given``: how many records payload steps received, summed
    over the steps. ``counts``: how many records reached each step that needs positions."""

    members: MemberTable
    named: MemberTable
    records: FormedRecords
    given: int
    counts: tuple[int, ...] = ()
