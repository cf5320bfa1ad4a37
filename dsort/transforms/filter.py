"""The step ``filter``: keeps the records for which an expression is true."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from annotated_types import MinLen

from dsort.order.base import OptionError
from dsort.transforms.base import Step

if TYPE_CHECKING:  # loaded only for specs with a filter
    from dsort.data.record_table import RecordTable
    from dsort.expressions.expression import Expression

__all__ = ["Filter"]


@dataclass(frozen=True, slots=True)
class Filter(Step):
    """Keeps a record if ``expression`` is true for it. If the expression cannot be evaluated for a
    record, because it lacks a member or a field or has text for a number, an error names the
    record."""

    expression: Expression

    kind: ClassVar[str] = "filter"
    summary: ClassVar[str] = (
        "Keep the records of which an expression is true, in CEL: of key, shard, input, ordinal, "
        'size("jpg"), has("cls"), and of members: json.score, cls, txt, '
        'text("tag"), number("score"), json("meta").'
    )
    options_type: ClassVar[Any] = Annotated[str, MinLen(1)]
    needs = "member"
    is_for_rows = True

    @classmethod
    def of(cls, options: str) -> Filter:
        """The step with this expression."""
        from dsort.expressions.expression import Expression
        from dsort.expressions.nodes import ExpressionError

        try:
            return cls(Expression.of(options))
        except ExpressionError as error:
            raise OptionError(str(error), error.hint) from None

    @property
    def options(self) -> str:
        """The expression."""
        return self.expression.text

    @property
    def extensions(self) -> tuple[str, ...]:
        """The extensions that the expression uses."""
        return self.expression.extensions

    @property
    def extensions_read(self) -> tuple[str, ...]:
        """The extensions of which the expression uses more than whether the member exists."""
        return self.expression.extensions_read

    @property
    def refused_for_rows(self) -> str:
        """The part of the expression that does not work on rows: numbers of records in a shard, and
        sizes of whole rows."""
        return self.expression.refused_for_rows

    def apply(self, records: RecordTable) -> RecordTable:
        """The records for which the expression is true."""
        return records.keeping(self.expression.true_of(records, "filter"))
