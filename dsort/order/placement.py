"""Placements: a shuffle that places records by their numbers among all of a class.

A record's place among those of its class is drawn (``data.permutation``) from its number there,
which a survey counts (``class_numbers``). So its place in the output is known where it is read,
whatever other workers read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from dsort.naming.names import shortened
from dsort.order.base import OptionError, OptionGroup, Record, SortValue
from dsort.order.content import Content

if TYPE_CHECKING:
    from dsort.data.columns import BytesColumn, Int64s, UInt64s
    from dsort.data.index import SortKeys
    from dsort.order.class_numbers import ClassPlaces
    from dsort.order.table import RecordTable

WORDS: Final = (1 << 64) - 1
"""So many sort words are dealt out."""


class Placement(OptionGroup):
    """How records are placed."""

    __slots__ = ()

    by_class: ClassVar[bool] = False
    """Whether records are numbered by class; else all of an output are of one."""

    @property
    def content(self) -> Content:
        """What it reads of records."""
        raise NotImplementedError

    @property
    def in_words(self) -> str:
        """What a summary says of it, behind "shuffle"."""
        raise NotImplementedError

    def classes(self, records: RecordTable) -> BytesColumn:
        """The class of each record."""
        from dsort.data.columns import BytesColumn

        if not self.by_class:
            return BytesColumn.empty(len(records))
        found = self.content.sort_keys(records).text
        return BytesColumn.empty(len(records)) if found is None else found

    def sort_keys(self, records: RecordTable, found: ClassPlaces, hashes: UInt64s) -> SortKeys:
        """The sort keys of records whose places are known. ``hashes``: of the shuffle."""
        raise NotImplementedError

    def arranged(self, keys: SortKeys, order: Int64s, seed: str) -> Int64s:
        """``order``, which are rows of ``keys`` in the order of these, as it comes out."""
        return order

    def expected(self, record: Record) -> SortValue | None:
        """What it reads of a record, in plain Python: its class, or what it is like."""
        return self.content.expected(record)


def member_and_field(text: str, json_field: str | None) -> tuple[str, str | None]:
    """(extension with its dot, field of its JSON) of what a spec calls ``cls``, ``json.length``:
    without a ``json_field``, a text has one behind its first dot."""
    name = text.removeprefix(".")
    if json_field is not None:
        return f".{name}", json_field
    extension, _, field = name.partition(".")
    return f".{extension}", field or None


def checked_field(text: str) -> str:
    """``text``, if it can be what :func:`member_and_field` takes; else ``OptionError``."""
    if not all(text.removeprefix(".").split(".")) or "/" in text.partition(".")[0]:
        raise OptionError(
            f'"{shortened(text)}" names no member', 'a member, or a field of its JSON: "json.label"'
        )
    return text


def field_content(
    kind: type[Content], by: str, json_field: str | None, key_type: str, missing: str
) -> Content:
    """The content that a placement reads."""
    extension, field = member_and_field(by, json_field)
    return kind(
        extension=extension,
        json_field=field,
        content_key_type=key_type,
        content_key_missing=missing,
    )
