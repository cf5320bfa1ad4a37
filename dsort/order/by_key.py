"""The algorithms that sort records by their keys, or by nothing."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, ClassVar, Final

from dsort.option_fields import option
from dsort.order.base import Algorithm, Record, SortValue, compare_option, decreasing_option

if TYPE_CHECKING:
    from dsort.data.index import SortKeys
    from dsort.data.record_table import RecordTable


class InputOrder(Algorithm, frozen=True):
    """All sort keys are equal, and ties keep the order of the inputs."""

    kind: ClassVar[str] = "none"
    summary: ClassVar[str] = "as they come in"
    words: ClassVar[str] = "none: as the records come in"
    decided_by_inputs: ClassVar[bool] = True
    joins_by_places: ClassVar[bool] = True

    def sort_keys(self, records: RecordTable) -> SortKeys:
        """Sort keys without columns."""
        from dsort.data.index import SortKeys

        return SortKeys(len(records))


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


_OF_NOTHING: Final = hashlib.md5(b"", usedforsecurity=False).digest()
"""AIStore hashes the empty text and appends the digest to the name: that is its key."""


class Md5(Algorithm, frozen=True):
    """By the MD5 digest of the record key. By name, as in AIStore: in the order of the names,
    except that a name that begins with another name mostly comes before it."""

    kind: ClassVar[str] = "md5"
    summary: ClassVar[str] = "by the MD5 digest of the record key"
    words: ClassVar[str] = "md5: sorted by the digest of the name"
    needs_keys: ClassVar[bool] = True
    is_sort_key: ClassVar[bool] = True
    spreads_evenly: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    decreasing: bool = decreasing_option()
    compare: str | None = compare_option()

    @property
    def in_words(self) -> str:
        """Its text in the summary of a job."""
        by_name = "md5: sorted by name of the first member, as AIStore does"
        words = by_name if self.compare == "name" else self.words
        return words + ", decreasing" * self.decreasing

    @property
    def is_spread_evenly(self) -> bool:
        """True for digests, False for names."""
        return self.compare != "name"

    def sort_keys(self, records: RecordTable) -> SortKeys:
        """The digests: the first half as words, the rest as text. For names: all of it as text."""
        from dsort.data.columns import BytesColumn
        from dsort.data.hashes import md5_digests
        from dsort.data.index import SortKeys
        from dsort.data.row_bytes import side_by_side

        if self.compare == "name":
            behind = BytesColumn.of([_OF_NOTHING] * len(records))
            text = side_by_side([records.first_names, behind], len(records))
            return SortKeys(len(records), text=text)
        words, text = md5_digests(records.keys.tolist())
        return SortKeys(len(records), words=words, text=text)

    def expected(self, record: Record) -> SortValue:
        """The digest, or the value that AIStore compares."""
        if self.compare == "name":
            return SortValue(1, record.first_name + _OF_NOTHING)
        return SortValue(1, hashlib.md5(record.key, usedforsecurity=False).digest())
