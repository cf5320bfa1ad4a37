"""Where a list goes on: the number of the last row of the page before, as a text."""

from __future__ import annotations

from dsort.errors import SpecError, SpecProblem

__all__ = ["number_of"]


def number_of(cursor: str | None) -> int | None:
    """The row that a page goes on behind; ``SpecError`` for what no page has told."""
    if cursor is None:
        return None
    if not cursor.isascii() or not cursor.isdecimal() or int(cursor) >= 2**63:
        raise SpecError([SpecProblem("cursor", "is none of ours", "take next_cursor of a page")])
    return int(cursor)
