"""The values that an expression reads from the records of one shard: columns of the index, and
members."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import orjson

from dsort.data.json_pointer import value_as_member
from dsort.expressions.closures import Problem
from dsort.expressions.parser import Leaf
from dsort.sizes import format_bytes

if TYPE_CHECKING:
    from dsort.data.columns import Bools, Int64s
    from dsort.data.record_table import RecordTable

MEMBER_BYTES_MAX: Final = 1 << 20
"""The largest size of a member that is read. Parsed JSON takes up to 22 times its length."""

_READ_AT_ONCE: Final = 64
"""The number of members that are held as bytes at a time."""


class Reading:
    """The values of ``leaves`` for the records of one shard.

    Columns of the index are made when they are first needed. Members are read for the requested
    records, and kept until ``forget``."""

    def __init__(self, records: RecordTable, leaves: Sequence[Leaf]) -> None:
        self._records = records
        self._columns: dict[Leaf, list[Any]] = {}
        self._found: dict[tuple[str, ...], Int64s] = {}  # see ``_member_rows``
        self._rows: dict[Leaf, tuple[list[int], list[int], list[bool]]] = {}
        self._read: dict[Leaf, dict[int, Any]] = {leaf: {} for leaf in leaves if leaf.is_content}

    def forget(self) -> None:
        """Drop the members that were read. A later use reads them again."""
        for read in self._read.values():
            read.clear()

    def values(self, leaf: Leaf, rows: Sequence[int]) -> list[Any]:
        """The value of ``leaf`` for each of the records ``rows``, or a ``Problem``."""
        if not leaf.is_content:
            column = self._columns.get(leaf)
            if column is None:
                column = self._columns[leaf] = self._column(leaf)
            return [column[row] for row in rows]
        read = self._read[leaf]
        self._read_missing(leaf, read, [row for row in rows if row not in read])
        return [read[row] for row in rows]

    # -- the index --------------------------------------------------------------------------------

    def _column(self, leaf: Leaf) -> list[Any]:
        records = self._records
        count = len(records)
        match leaf.kind:
            case "key":
                return [key.decode("utf-8", "surrogateescape") for key in records.keys.tolist()]
            case "shard":
                return [records.shard] * count
            case "input":
                return [records.input] * count
            case "has":
                found: list[Any] = self.has(leaf.extensions).tolist()
                return found
        values: list[Any] = self.numbers(leaf).tolist()
        if leaf.kind == "size":
            problem = _missing(leaf)
            there = self.has(leaf.extensions).tolist()
            return [
                value if is_there else problem
                for value, is_there in zip(values, there, strict=True)
            ]
        return values

    def has(self, extensions: tuple[str, ...]) -> Bools:
        """Which records have a member with one of ``extensions``; shape ``(n,)``."""
        found: Bools = self._member_rows(extensions) >= 0
        return found

    def numbers(self, leaf: Leaf) -> Int64s:
        """The numbers of a leaf of the index, shape ``(n,)``; 0 for a record without the member."""
        import numpy as np

        records = self._records
        if leaf.kind == "ordinal":
            return np.arange(len(records))
        if leaf.kind == "total":
            return records.payload_bytes
        rows = self._member_rows(leaf.extensions)
        return np.where(rows >= 0, self._sizes_bytes(rows), 0)

    def _sizes_bytes(self, member_rows: Int64s) -> Int64s:
        """The sizes of the members in ``member_rows``, in the same shape; arbitrary where the row
        is -1 (no member)."""
        import numpy as np

        sizes = self._records.members.payload_bytes
        return sizes[member_rows] if len(sizes) else np.zeros(len(member_rows), np.int64)

    def _member_rows(self, extensions: tuple[str, ...]) -> Int64s:
        """For each record, the row in the member table of its member with the first of
        ``extensions`` that it has; -1 if it has none."""
        import numpy as np

        known = self._found.get(extensions)
        if known is not None:
            return known
        found = self._records.rows_with(f".{extensions[0]}")
        for extension in extensions[1:]:
            found = np.where(found >= 0, found, self._records.rows_with(f".{extension}"))
        self._found[extensions] = found
        return found

    # -- members ----------------------------------------------------------------------------------

    def _read_missing(self, leaf: Leaf, read: dict[int, Any], rows: Sequence[int]) -> None:
        """Put the values of ``leaf`` for the records ``rows`` into ``read``."""
        places = self._rows.get(leaf)
        if places is None:
            places = self._rows[leaf] = self._places(leaf)
        member_rows, sizes_bytes, are_fields = places
        there = []
        for row in rows:
            if member_rows[row] < 0:
                read[row] = _missing(leaf)
            elif sizes_bytes[row] > MEMBER_BYTES_MAX:
                read[row] = Problem(
                    f"its {_shown(leaf)} member has {format_bytes(sizes_bytes[row])}; up to "
                    f"{format_bytes(MEMBER_BYTES_MAX)} is read"
                )
            else:
                there.append(row)
        for start in range(0, len(there), _READ_AT_ONCE):
            some = there[start : start + _READ_AT_ONCE]
            contents = self._records.contents([member_rows[row] for row in some])
            for row, content in zip(some, contents, strict=True):
                read[row] = parsed(leaf, content, is_field=are_fields[row])

    def _places(self, leaf: Leaf) -> tuple[list[int], list[int], list[bool]]:
        """For each record: (the row of its member, or -1; the size of the member; whether the leaf
        is a field in it, because the record consists of JSON only)."""
        import numpy as np

        found = self._member_rows(leaf.extensions)
        if not (found < 0).any():
            return found.tolist(), self._sizes_bytes(found).tolist(), [False] * len(found)
        are_fields = found < 0
        found = np.where(are_fields, self._records.json_alone(), found)
        return found.tolist(), self._sizes_bytes(found).tolist(), are_fields.tolist()


def parsed(leaf: Leaf, content: bytes | None, *, is_field: bool = False) -> Any:
    """The value of ``leaf`` in the content of its member (None: there is none), or a ``Problem``.
    ``is_field``: the content is JSON, and the leaf is one of its fields."""
    try:
        if content is None:
            return _missing(leaf)
        return _field(leaf, content) if is_field else _PARSERS[leaf.kind](content)
    except ValueError as error:
        return Problem(f"its {_shown(leaf)} member is {error}")


def _field(leaf: Leaf, document: bytes) -> Any:
    """The value of ``leaf`` as a field of JSON, converted like a member with the same text."""
    found, fields = None, _json(document)
    if isinstance(fields, dict):
        found = next((fields[name] for name in leaf.extensions if name in fields), None)
    if found is None:
        return _missing(leaf)
    if leaf.kind == "json" or type(found) in _TYPES[leaf.kind]:
        return found
    return _PARSERS[leaf.kind](value_as_member(found) or b"")


def _missing(leaf: Leaf) -> Problem:
    return Problem(f"there is no {_shown(leaf)} member", is_missing=True)


def _shown(leaf: Leaf) -> str:
    return " or ".join(leaf.extensions)


def _json(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None


def _number(content: bytes) -> int:
    text = content.strip()
    digits = text[1:] if text[:1] in (b"-", b"+") else text
    if not digits.isdigit() or len(digits) > 19 or not -(1 << 63) <= int(text) < 1 << 63:
        raise ValueError("no integer of 64 bits")
    return int(text)


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None


def _any_number(content: bytes) -> int | float:
    text = content.strip()
    if _INTEGER.fullmatch(text) and -(1 << 63) <= int(text) < 1 << 63:
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    raise ValueError("no number")


_INTEGER: Final = re.compile(rb"[+-]?[0-9]{1,19}")
_DECIMAL: Final = re.compile(
    rb"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,4})?"
)
_PARSERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "json": _json,
    "int": _number,
    "str": _text,
    "number": _any_number,
}
_TYPES: Final[dict[str, tuple[type, ...]]] = {"int": (int,), "str": (str,), "number": (int, float)}
"""The types of fields of JSON that need no parser, by the kind of leaf."""
