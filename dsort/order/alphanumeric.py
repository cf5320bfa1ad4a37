"""The algorithm ``alphanumeric``: records are sorted by their keys."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

from dsort.order.base import (
    Algorithm,
    Record,
    SortValue,
    compare_option,
    decreasing_option,
    option,
)

if TYPE_CHECKING:
    from dsort.data.index import SortKeys
    from dsort.data.record_table import RecordTable

_TOKENS = re.compile(rb"([0-9]+)")


class Alphanumeric(Algorithm, frozen=True):
    """By the bytes of the record key; ``natural``: runs of digits compare as numbers."""

    kind: ClassVar[str] = "alphanumeric"
    summary: ClassVar[str] = "by record key"
    words: ClassVar[str] = "alphanumeric: sorted by name"
    needs_keys: ClassVar[bool] = True
    is_sort_key: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    decreasing: bool = decreasing_option()
    natural: bool = option(
        bool,
        "Of alphanumeric: runs of digits compare as numbers, so a9 comes before a10.",
        default=False,
    )
    compare: str | None = compare_option()

    @property
    def in_words(self) -> str:
        """Its text in the summary of a job."""
        words = self.words + " of the first member" * (self.compare == "name")
        return words + ", numbers as numbers" * self.natural + ", decreasing" * self.decreasing

    def sort_keys(self, records: RecordTable) -> SortKeys:
        """The record keys, or the names of first members. Natural keys are rewritten, which takes
        1 µs a key."""
        from dsort.data.index import SortKeys
        from dsort.order.sort import natural_keys

        keys = records.first_names if self.compare == "name" else records.keys
        return SortKeys(len(records), text=natural_keys(keys.tolist()) if self.natural else keys)

    def expected(self, record: Record) -> SortValue:
        """The record key (or the name), or for ``natural`` a value that compares in that order."""
        key = record.first_name if self.compare == "name" else record.key
        return SortValue(1, natural_value(key) if self.natural else key)


def natural_value(key: bytes) -> tuple[object, ...]:
    """A value that compares like ``key`` if runs of digits count as numbers. A run sorts where the
    digit ``0`` would; keys that differ only in leading zeros compare by their bytes."""
    parts: list[tuple[int, int, bytes]] = []
    for position, part in enumerate(_TOKENS.split(key)):
        if position % 2:
            number = part.lstrip(b"0")  # numbers of equal length compare as their digits do
            parts.append((ord("0"), len(number), number))
        else:
            parts.extend((byte, 0, b"") for byte in part)
    return tuple(parts), key
