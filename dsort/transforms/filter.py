"""The step ``filter``: the records of which an expression is true."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from annotated_types import MinLen

from dsort.order.base import OptionError
from dsort.transforms.base import Step

if TYPE_CHECKING:  # loaded for specs that have a filter
    from dsort.expressions.expression import Expression
    from dsort.order.table import RecordTable

__all__ = ["Filter"]


@dataclass(frozen=True, slots=True)
class Filter(Step):
    """Keeps a record if ``expression`` is true of it. A record of which that cannot be said, for
    it lacks a member or a field or has text for a number, is refused by name."""

    expression: Expression

    kind: ClassVar[str] = "filter"
    summary: ClassVar[str] = (
        "Keep the records of which an expression is true, in CEL: of key, shard, input, ordinal, "
        'size("jpg"), has("cls"), and of members: ext("json").score, ext("cls"), ext("txt"), '
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
        """Those that the expression asks about."""
        return self.expression.extensions

    @property
    def extensions_read(self) -> tuple[str, ...]:
        """Those of which more is asked than whether they are there."""
        return self.expression.extensions_read

    @property
    def refused_for_rows(self) -> str:
        """Numbers of records in a shard, and sizes of whole rows."""
        return self.expression.refused_for_rows

    def apply(self, records: RecordTable) -> RecordTable:
        """What is left of ``records``."""
        return records.keeping(self.expression.true_of(records, "filter"))
