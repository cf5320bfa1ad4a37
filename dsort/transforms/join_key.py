"""The last step of a job that joins records by something other than their keys: it sets that as the
key of each record. Specs cannot name this step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from dsort.errors import TransformError
from dsort.naming.names import readable
from dsort.transforms.base import Step
from dsort.transforms.rekey import check_new_keys, split_keys

if TYPE_CHECKING:
    from dsort.data.columns import BytesColumn
    from dsort.data.record_table import RecordTable
    from dsort.expressions.expression import Expression

__all__ = ["JoinKey", "join_expression"]

KEY, STEM = "key", "stem"


@dataclass(frozen=True, slots=True)
class JoinKey(Step):
    """``by``: for each input (its name), ``key``, ``stem`` or an expression."""

    by: tuple[tuple[str, str], ...]

    kind: ClassVar[str] = "join"
    summary: ClassVar[str] = "Give records what they are joined by as their key."
    options_type: ClassVar[Any] = None

    @classmethod
    def of(cls, options: Any) -> Self:
        """Not available: specs cannot have this step."""
        raise NotImplementedError("a spec has a join")

    @property
    def options(self) -> Any:
        """What records are joined by, for each input."""
        return dict(self.by)

    def apply(self, records: RecordTable) -> RecordTable:
        """``records`` with their new keys."""
        by = dict(self.by)[records.input]
        if by == KEY:
            return records
        keys = split_keys(records.keys)[1] if by == STEM else _values(records, by)
        check_new_keys(records, keys, "join")
        return records.with_keys(keys)


def join_expression(text: str) -> Expression:
    """The expression for ``by: text``, where that is not ``key`` or ``stem``. ``ExpressionError``
    if it is none."""
    from dsort.expressions.expression import Expression

    return Expression.of(text, wanted="")


def _values(records: RecordTable, text: str) -> BytesColumn:
    from dsort.data.columns import BytesColumn

    owner = f"join: by of the input {records.input}:"
    found = []
    values = join_expression(text).values_of(records, owner)
    for row, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise TransformError(
                f"{owner} record {readable(records.keys[row])} of shard {records.shard}: "
                f"{value!r} is no text and no whole number",
                hint="string(...) converts",
            )
        found.append(str(value).encode("utf-8", "surrogateescape"))
    return BytesColumn.of(found)
