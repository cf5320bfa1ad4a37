"""What a container format owes the rest of dsort: members as columns, and bytes to copy.

A format turns the bytes of one shard into a :class:`MemberTable` and knows how to end an output
shard. It knows nothing of buckets, paths, records or jobs. New containers are new modules here.
"""

from __future__ import annotations

from dsort.data.members import MemberKind, MemberTable, ScanNotes

__all__ = ["MemberKind", "MemberTable", "ScanNotes"]
