"""The algorithm ``md5``: records are sorted by the MD5 digest of their keys."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dsort.order.base import Algorithm, Record, SortValue, decreasing_option

if TYPE_CHECKING:
    from dsort.data.index import SortKeys
    from dsort.order.table import RecordTable

__all__ = ["Md5"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Md5(Algorithm):
    """By the MD5 digest of the record key, as AIStore has it."""

    kind: ClassVar[str] = "md5"
    summary: ClassVar[str] = "by the MD5 digest of the record key"
    words: ClassVar[str] = "md5: sorted by the digest of the name"
    needs_keys: ClassVar[bool] = True
    is_sort_key: ClassVar[bool] = True
    reason: ClassVar[str] = "the records are sorted by the MD5 of their keys"
    spreads_evenly: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    decreasing: bool = decreasing_option()

    def sort_keys(self, records: RecordTable) -> SortKeys:
        """The digests: their first half as words, the rest as text."""
        from dsort.data.hashes import md5_digests
        from dsort.data.index import SortKeys

        words, text = md5_digests(records.keys.tolist())
        return SortKeys(len(records), words=words, text=text)

    def expected(self, record: Record) -> SortValue:
        """The digest."""
        return SortValue(1, hashlib.md5(record.key, usedforsecurity=False).digest())
