"""The algorithm ``md5``: records are sorted by the MD5 digest of their keys."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, ClassVar, Final

from dsort.order.base import Algorithm, Record, SortValue, compare_option, decreasing_option

if TYPE_CHECKING:
    from dsort.data.index import SortKeys
    from dsort.data.record_table import RecordTable

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
