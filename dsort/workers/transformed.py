"""The records that the steps of a job leave of one shard."""

from __future__ import annotations

from dataclasses import dataclass

from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords


@dataclass(frozen=True, slots=True, eq=False)
class Transformed:
    """The records that steps leave. ``named``: ``members`` with the names that steps gave them,
    which are not in the headers yet. ``given``: how many records payload steps received, summed
    over the steps. ``counts``: how many records reached each step that needs positions."""

    members: MemberTable
    named: MemberTable
    records: FormedRecords
    given: int
    counts: tuple[int, ...] = ()
