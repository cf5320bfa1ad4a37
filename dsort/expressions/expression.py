"""An expression of a spec: which records it is true of.

Parts over the index alone are computed first, for a whole shard at once. Members are read for those
records alone that are not settled by then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from dsort.errors import TransformError
from dsort.expressions.closures import Closure, closure_of
from dsort.expressions.columns import bools_of
from dsort.expressions.names import resolve
from dsort.expressions.nodes import Leaf, Node, Operation, nodes_of
from dsort.expressions.parser import parse
from dsort.expressions.semantics import EvaluationError, not_a
from dsort.naming.names import readable, shortened

if TYPE_CHECKING:
    from dsort.data.columns import Bools, Int64s, UInt8s
    from dsort.order.table import RecordTable

__all__ = ["Expression"]

_FALSE, _TRUE, _WRONG = 0, 1, 2
_RECORDS_AT_ONCE: Final = 4096
"""So many records' members are held at a time."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A text in CEL, compiled. Two of the same text are equal."""

    text: str
    _tree: Node = field(compare=False, repr=False)
    _leaves: tuple[Leaf, ...] = field(compare=False, repr=False)
    _closures: dict[int, Closure] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, text: str, *, wanted: str = "bool") -> Expression:
        """The expression that ``text`` is. ``ExpressionError`` if it is none, or if it cannot be
        of the type ``wanted`` ("" for any)."""
        tree = resolve(parse(text), wanted=wanted)
        leaves = dict.fromkeys(each for each in nodes_of(tree) if isinstance(each, Leaf))
        return cls(text, tree, tuple(leaves))

    def __reduce__(self) -> tuple[Any, ...]:
        """Workers compile it anew."""
        return Expression.of, (self.text,)

    @property
    def reads_members(self) -> bool:
        """Whether the content of members is asked for, and not only the index."""
        return any(leaf.is_content for leaf in self._leaves)

    def true_of(self, records: RecordTable, owner: str) -> Bools:
        """Which of ``records`` it is true of, shape ``(n,)``. ``TransformError`` names the first
        record for which it cannot be computed. ``owner``: what it belongs to."""
        import numpy as np

        run = _Run(self, records)
        found = np.zeros(len(records), np.bool_)
        step = _RECORDS_AT_ONCE if self.reads_members else max(len(records), 1)
        for start in range(0, len(records), step):
            rows = np.arange(start, min(start + step, len(records)))
            truth = run.truth(self._tree, rows)
            wrong = np.flatnonzero(truth == _WRONG)
            if len(wrong):
                row = int(rows[wrong[0]])
                self._refuse(records, row, run.problems[row], owner)
            found[rows] = truth == _TRUE
            run.reading.forget()
        return found

    def _refuse(self, records: RecordTable, row: int, problem: str, owner: str) -> None:
        raise TransformError(
            f"{owner} {shortened(self.text)}: record {readable(records.keys[row])} of shard "
            f"{records.shard}: {problem}",
            hint='has("json") and has(ext("json").score) ask what a record has, as in '
            '\'has(ext("json").score) && ext("json").score > 0.5\'',
        )


class _Run:
    """One expression over the records of one shard. ``problems``: why it cannot be computed, by
    record."""

    def __init__(self, expression: Expression, records: RecordTable) -> None:
        from dsort.expressions.reading import Reading  # loads what parses JSON

        self._expression = expression
        self._columns: dict[int, tuple[Bools, Bools] | None] = {}
        self.reading = Reading(records, expression._leaves)
        self.problems: dict[int, str] = {}

    def truth(self, node: Node, rows: Int64s) -> UInt8s:
        """False, true or wrong for each of the records ``rows``."""
        if isinstance(node, Operation):
            if node.operator in ("&&", "||"):
                return self._joined(node, rows)
            if node.operator == "!":
                truth = self.truth(node.operands[0], rows)
                truth[truth != _WRONG] ^= 1
                return truth
        if id(node) not in self._columns:
            self._columns[id(node)] = bools_of(node, self.reading)
        columns = self._columns[id(node)]
        return self._each(node, rows) if columns is None else self._of_columns(node, rows, *columns)

    def _joined(self, node: Operation, rows: Int64s) -> UInt8s:
        """``&&`` and ``||``: parts are asked about the records that the parts before leave open,
        and those that read nothing come first."""
        import numpy as np

        decisive = _TRUE if node.operator == "||" else _FALSE
        truth = np.full(len(rows), 1 - decisive, np.uint8)
        open_ = np.arange(len(rows))
        for part in sorted(node.operands, key=_reads_members):
            found = self.truth(part, rows[open_])
            truth[open_[found == decisive]] = decisive
            truth[open_[found == _WRONG]] = _WRONG
            open_ = open_[found != decisive]
        return truth

    def _of_columns(self, node: Node, rows: Int64s, found: Bools, computed: Bools) -> UInt8s:
        import numpy as np

        truth: UInt8s = found[rows].astype(np.uint8)
        wrong = np.flatnonzero(~computed[rows])
        if len(wrong):  # it is said of each what is wrong with it
            truth[wrong] = self._each(node, rows[wrong])
        return truth

    def _each(self, node: Node, rows: Int64s) -> UInt8s:
        """One record after the other."""
        import numpy as np

        leaves = tuple(dict.fromkeys(each for each in nodes_of(node) if isinstance(each, Leaf)))
        closure = self._expression._closures.get(id(node))
        if closure is None:
            closure = closure_of(node, {leaf: place for place, leaf in enumerate(leaves)})
            self._expression._closures[id(node)] = closure
        numbers = rows.tolist()
        columns = [self.reading.values(leaf, numbers) for leaf in leaves]
        table = zip(*columns, strict=True) if columns else ((),) * len(numbers)
        truth = bytearray(len(numbers))
        for at, values in enumerate(table):
            try:
                value = closure(values)  # type: ignore[arg-type]
                if value is True:
                    truth[at] = _TRUE
                elif value is not False:
                    raise not_a("true or false", value)
            except EvaluationError as error:
                truth[at] = _WRONG
                self.problems.setdefault(numbers[at], str(error))
        return np.frombuffer(truth, np.uint8)


def _reads_members(node: Node) -> bool:
    return any(isinstance(each, Leaf) and each.is_content for each in nodes_of(node))
