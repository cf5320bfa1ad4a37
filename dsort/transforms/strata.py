"""Classes of records, in each of which the fractions of several outputs hold."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dsort.errors import TransformError
from dsort.naming.names import readable, shortened

if TYPE_CHECKING:
    from dsort.data.columns import UInt64s
    from dsort.expressions.expression import Expression
    from dsort.order.table import RecordTable

__all__ = ["ClassOf", "MemberClass", "ValueClass", "class_by"]

_MEMBER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_OF_JSON: Final = re.compile(r"json((?:\.[A-Za-z_][A-Za-z0-9_]*)+)")
_OF_INDEX: Final = frozenset({"key", "shard", "input", "ordinal", "true", "false"})
_NONE: Final = b"\0none"  # no content is hashed with this salt


@dataclass(frozen=True, slots=True)
class MemberClass:
    """By the content of the member with this extension, without white space around it; in tables,
    by the column of that name, in which nulls are a class."""

    extension: str

    def hashes(self, records: RecordTable, *, are_rows: bool) -> UInt64s:
        """The same for records of one class, and no other (64 bits); shape ``(n,)``.
        ``TransformError`` names a record that has none."""
        from dsort.data.hashes import hash_keys

        rows = records.rows_with(f".{self.extension}").tolist()
        if not are_rows and -1 in rows:
            record = rows.index(-1)
            raise TransformError(
                f"stratify: record {readable(records.keys[record])} of shard {records.shard} has "
                f"no {shortened(self.extension)}",
                hint="require leaves such records out",
            )
        texts = (records.content(row).strip() if row >= 0 else _NONE for row in rows)
        return hash_keys(texts, len(rows))


@dataclass(frozen=True, slots=True)
class ValueClass:
    """By what an expression is."""

    value: Expression

    def hashes(self, records: RecordTable, *, are_rows: bool) -> UInt64s:
        """See :class:`MemberClass`."""
        from dsort.data.hashes import hash_keys
        from dsort.expressions.expression import text_of_value

        values = self.value.values_of(records, "stratify")
        return hash_keys(map(text_of_value, values), len(values))


ClassOf = MemberClass | ValueClass


def class_by(text: str) -> ClassOf:
    """What ``stratify: text`` means: the name of a member or column, ``json.label``, or an
    expression. ``ExpressionError`` if it is none."""
    if _MEMBER.fullmatch(text) and text not in _OF_INDEX:
        return MemberClass(text)
    from dsort.expressions.expression import Expression

    found = _OF_JSON.fullmatch(text)
    return ValueClass(Expression.of(f'ext("json"){found[1]}' if found else text, wanted=""))
