"""Placements: a shuffle that places records by their numbers among all records of a class.

A record's place in its class is a random permutation (``data.permutation``) of its number in the
class, which a survey counts (``class_numbers``). So its place in the output is known when it is
read, whatever other workers read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from msgspec.structs import replace

from dsort.naming.names import shortened
from dsort.option_fields import OptionError, OptionGroup
from dsort.order.base import Record, SortValue
from dsort.order.content import Content
from dsort.order.value import PlacedBy, checked_expression

if TYPE_CHECKING:
    from dsort.data.columns import BytesColumn, Int64s, UInt64s
    from dsort.data.index import SortKeys
    from dsort.data.record_table import RecordTable
    from dsort.order.class_numbers import ClassPlaces

WORDS: Final = (1 << 64) - 1
"""The number of sort words that places are spread over."""


class Placement(OptionGroup, frozen=True):
    """The rule by which records are placed."""

    by_class: ClassVar[bool] = False
    """Whether records are numbered by class; else all records of an output are in one class."""

    @property
    def content(self) -> Content | PlacedBy:
        """The content of records that it reads."""
        raise NotImplementedError

    @property
    def in_words(self) -> str:
        """Its text in the summary of a job, behind "shuffle"."""
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
        """The final order. ``order``: the rows of ``keys``, sorted by ``keys``."""
        return order

    def expected(self, record: Record) -> SortValue | None:
        """The value that it reads from a record, in plain Python: the class, or the number."""
        return self.content.expected(record)


_OF_EXPRESSIONS: Final = frozenset("()[]<>=!&|?+*'\"")


def is_expression(text: str) -> bool:
    """Whether a text in a spec is an expression, and not the name of a member and its field."""
    return not _OF_EXPRESSIONS.isdisjoint(text)


def member_and_field(text: str, json_field: str | None) -> tuple[str, str | None]:
    """Return (extension with its dot, field of its JSON) for a text in a spec, such as ``cls`` or
    ``json.length``. Without ``json_field``, the text has the field behind its first dot."""
    name = text.removeprefix(".")
    if json_field is not None:
        return f".{name}", json_field
    extension, _, field = name.partition(".")
    return f".{extension}", field or None


def checked_field(text: str) -> str:
    """``text``, if it names a member and its field, or is an expression; else ``OptionError``."""
    if is_expression(text):
        return checked_expression(text)
    if not all(text.removeprefix(".").split(".")) or "/" in text.partition(".")[0]:
        raise OptionError(
            f'"{shortened(text)}" names no member', 'a member, or a field of its JSON: "json.label"'
        )
    return text


class Named(Content, frozen=True):
    """Content by a bare name (``json_field`` is None): of a record that is nothing but JSON, the
    field of that name."""

    @property
    def _of_json(self) -> Content | None:
        """The content of records that are nothing but JSON, if that is a field."""
        if self.json_field is not None or self.extension == ".json":
            return None
        return replace(self, extension=".json", json_field=self.extension.removeprefix("."))

    def _values(self, records: RecordTable) -> list[int | float | bytes | None]:
        of_json = self._of_json
        are_fields = records.json_alone() >= 0
        if of_json is None or not are_fields.any():
            return super()._values(records)
        values = iter(super()._values(records.keeping(~are_fields)))
        fields = iter(of_json._values(records.keeping(are_fields)))
        return [next(fields if is_field else values) for is_field in are_fields.tolist()]

    def expected(self, record: Record) -> SortValue | None:
        """The value, computed for this record alone."""
        of_json = self._of_json
        if of_json is not None and record.is_json_alone:
            return of_json.expected(record)
        return super().expected(record)


def field_content(
    kind: type[Named], by: str, json_field: str | None, key_type: str, missing: str
) -> Content | PlacedBy:
    """The content that a placement reads."""
    if is_expression(by):
        return PlacedBy(by, kind.noun, is_number=key_type == "float")
    extension, field = member_and_field(by, json_field)
    return kind(
        extension=extension,
        json_field=field,
        content_key_type=key_type,
        content_key_missing=missing,
    )
