"""An expression of a spec, and the records for which it is true.

Parts over the index alone are computed first, for a whole shard at once. Members are read only for
the records that these parts do not decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from dsort.errors import TransformError
from dsort.expressions.closures import Closure, closure_of
from dsort.expressions.names import resolve
from dsort.expressions.parser import (
    Call,
    Constant,
    ExpressionError,
    Leaf,
    Node,
    Operation,
    nodes_of,
    parse,
)
from dsort.expressions.semantics import STEPS_MAX, Budget, EvaluationError, SpentError, not_a
from dsort.naming.names import readable, shortened

if TYPE_CHECKING:
    from dsort.data.columns import Bools, Int64s, UInt8s
    from dsort.data.record_table import RecordTable
    from dsort.expressions.reading import Reading

_FALSE, _TRUE, _WRONG = 0, 1, 2
_BOOL: Final = "true or false"
PATTERNS_MAX: Final = 16
"""The number of patterns in an expression: each may take a megabyte once it is compiled."""
_RECORDS_AT_ONCE: Final = 4096
"""The number of records whose members are held at a time."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled text in CEL. Two expressions with the same text are equal."""

    text: str
    _tree: Node = field(compare=False, repr=False)
    _leaves: tuple[Leaf, ...] = field(compare=False, repr=False)
    _closures: dict[int, Closure] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, text: str, *, wanted: str = "bool") -> Expression:
        """Compile ``text``. ``ExpressionError`` if it is no expression, or cannot have the type
        ``wanted`` ("" for any type)."""
        tree = resolve(parse(text), wanted=wanted)
        patterns = sum(isinstance(each, Call) and each.name == "matches" for each in nodes_of(tree))
        if patterns > PATTERNS_MAX:
            text = f"has {patterns} patterns, more than {PATTERNS_MAX}"
            raise ExpressionError(text, 'one pattern may have alternatives: "cat|dog"')
        leaves = dict.fromkeys(each for each in nodes_of(tree) if isinstance(each, Leaf))
        return cls(text, tree, tuple(leaves))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the text: workers compile it again."""
        return _of_any, (self.text,)

    @property
    def reads_members(self) -> bool:
        """Whether it uses the content of members, and not only the index."""
        return any(leaf.is_content for leaf in self._leaves)

    @property
    def extensions(self) -> tuple[str, ...]:
        """The extensions of the members that it uses, without dots."""
        return tuple(dict.fromkeys(name for leaf in self._leaves for name in leaf.extensions))

    @property
    def extensions_read(self) -> tuple[str, ...]:
        """The extensions of members that it reads; members that it only tests for existence are
        left out."""
        leaves = (leaf for leaf in self._leaves if leaf.kind != "has")
        return tuple(dict.fromkeys(name for leaf in leaves for name in leaf.extensions))

    @property
    def refused_for_rows(self) -> str:
        """Its parts that rows of tables do not support, such as the number in the shard or the size
        of all members; "" for none."""
        return "ordinal" * ("ordinal" in self.asks) or "size()" * ("total" in self.asks)

    @property
    def asks(self) -> frozenset[str]:
        """The kinds of facts of a record that it uses: ``key``, ``shard``, ``size``, ..."""
        return frozenset(leaf.kind for leaf in self._leaves)

    def true_of(self, records: RecordTable, owner: str, rows: Int64s | None = None) -> Bools:
        """Whether it is true for each of ``rows`` (None: all rows) of ``records``; the shape is
        that of ``rows``. ``TransformError`` names the first record for which it cannot be computed.
        ``owner``: the step or option with this expression, for the message."""
        import numpy as np

        rows = np.arange(len(records)) if rows is None else rows
        run = _Run(self, records)
        found = np.zeros(len(rows), np.bool_)
        step = _RECORDS_AT_ONCE if self.reads_members else max(len(rows), 1)
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            truth = run.truth(self._tree, some)
            wrong = np.flatnonzero(truth == _WRONG)
            if len(wrong):
                row = int(some[wrong[0]])
                self._refuse(records, row, run.problems[row], owner)
            found[start : start + step] = truth == _TRUE
            run.reading.forget()
        return found

    def values_of(self, records: RecordTable, owner: str) -> list[str | int | float | bool]:
        """Its value for each of ``records``: a text, a number, true or false. Errors as in
        ``true_of``."""
        import numpy as np

        run = _Run(self, records)
        found: list[str | int | float | bool] = []
        for start in range(0, len(records), _RECORDS_AT_ONCE):
            rows = np.arange(start, min(start + _RECORDS_AT_ONCE, len(records)))
            for row, value in zip(rows.tolist(), run.values(self._tree, rows), strict=True):
                if isinstance(value, EvaluationError):
                    self._refuse(records, row, str(value), owner)
                found.append(value)
            run.reading.forget()
        return found

    def value_with(self, fact: Callable[[Leaf], Any]) -> str | int | float | bool | None:
        """Its value for one record, whose facts ``fact`` returns; None if it cannot be computed."""
        closure = closure_of(self._tree, {leaf: at for at, leaf in enumerate(self._leaves, 1)})
        try:
            value = closure([Budget(), *map(fact, self._leaves)])
        except (EvaluationError, SpentError):
            return None
        return value if isinstance(value, (str, int, float)) else None

    def _refuse(self, records: RecordTable, row: int, problem: str, owner: str) -> None:
        hint = _OF_ANOTHER_TYPE if problem.endswith("cannot be compared") else _MISSING
        raise TransformError(
            f"{owner} {shortened(self.text)}: record {readable(records.keys[row])} of shard "
            f"{records.shard}: {problem}",
            hint=_FEWER_STEPS if problem == str(SpentError()) else hint,
        )


_MISSING = (
    "json.score is a field of a line or of a .json member; has(json.score) asks whether there is "
    "one, as in 'has(json.score) && json.score > 0.5'"
)
_FEWER_STEPS = "lists that are gone through and texts that are searched have to be shorter"
_OF_ANOTHER_TYPE = "double(...), int(...) and string(...) convert; has(...) asks what a record has"


class _Run:
    """Evaluates one expression for the records of one shard. ``problems``: by record, why the
    expression cannot be computed for it."""

    def __init__(self, expression: Expression, records: RecordTable) -> None:
        from dsort.expressions.reading import Reading  # loads orjson

        self._expression = expression
        self._columns: dict[int, tuple[Bools, Bools] | None] = {}
        self.reading = Reading(records, expression._leaves)
        self.problems: dict[int, str] = {}
        self._spent: dict[int, int] = {}  # record → steps that the parts so far have taken

    def truth(self, node: Node, rows: Int64s) -> UInt8s:
        """``_FALSE``, ``_TRUE`` or ``_WRONG`` (cannot be computed) for each of the records
        ``rows``."""
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
        """``&&`` and ``||``: each part is computed for the records that the parts before it do not
        decide, and parts that read no members come first."""
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
        if len(wrong):  # computed again one by one, to find the problem of each
            truth[wrong] = self._each(node, rows[wrong])
        return truth

    def _each(self, node: Node, rows: Int64s) -> UInt8s:
        """``truth`` of ``node``, computed record by record."""
        import numpy as np

        truth = bytearray(len(rows))
        for at, value in enumerate(self._computed(node, rows.tolist())):
            if value is True:
                truth[at] = _TRUE
            elif value is not False:
                wrong = value if isinstance(value, EvaluationError) else not_a(_BOOL, value)
                truth[at] = _WRONG
                self.problems.setdefault(int(rows[at]), str(wrong))
        return np.frombuffer(truth, np.uint8)

    def values(self, node: Node, rows: Int64s) -> Iterator[Any]:
        """The value of ``node`` for each record, a text, a number, true or false; or the error."""
        for value in self._computed(node, rows.tolist()):
            fine = isinstance(value, (str, int, float, EvaluationError))
            yield value if fine else not_a("a text, a number, or true or false", value)

    def _computed(self, node: Node, rows: list[int]) -> Iterator[Any]:
        """The value of ``node`` for each of the records ``rows``, or the error."""
        leaves = tuple(dict.fromkeys(each for each in nodes_of(node) if isinstance(each, Leaf)))
        closure = self._expression._closures.get(id(node))
        if closure is None:
            closure = closure_of(node, {leaf: place for place, leaf in enumerate(leaves, 1)})
            self._expression._closures[id(node)] = closure
        budget, spent = Budget(), self._spent
        columns = [self.reading.values(leaf, rows) for leaf in leaves]
        for at, values in enumerate(zip(repeat(budget, len(rows)), *columns, strict=True)):
            if spent:
                budget.left -= spent.get(rows[at], 0)
            try:
                yield closure(values)  # type: ignore[arg-type]
            except EvaluationError as error:
                yield error
            except SpentError as error:
                yield EvaluationError(str(error))
            if budget.left != STEPS_MAX:
                spent[rows[at]] = STEPS_MAX - budget.left
                budget.left = STEPS_MAX


def _reads_members(node: Node) -> bool:
    return any(isinstance(each, Leaf) and each.is_content for each in nodes_of(node))


@lru_cache(maxsize=64)  # made once in a process instead of for each shard
def compiled_expression(text: str, wanted: str = "bool") -> Expression:
    """``Expression.of``, for steps that keep the text alone."""
    return Expression.of(text, wanted=wanted)


def _of_any(text: str) -> Expression:
    return Expression.of(text, wanted="")


def text_of_value(value: object) -> bytes:
    """A value as bytes to be hashed. Equal values have equal bytes; different values of one kind
    have different bytes."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return str(value).encode()


# --------------------------------------------------------------------------------------------------
# Computes expressions over the index for a whole shard at once, where they compare whole numbers
# that fit in 64 bits.


_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
_EXACT = 1 << 53  # integers below are floats of the same value


class _Numbers(Struct, frozen=True, eq=False):
    """Integers, one a record or one for all. ``least``, ``most``: their bounds as integers of
    Python, which cannot overflow."""

    values: Int64s
    least: int
    most: int

    @classmethod
    def of(cls, values: Int64s) -> _Numbers:
        return cls(values, int(values.min(initial=0)), int(values.max(initial=0)))


def bools_of(node: Node, reading: Reading) -> tuple[Bools, Bools] | None:
    """(whether ``node`` is true, whether it can be computed) for each record, shapes ``(n,)``. None
    if ``node`` is no comparison of whole numbers, or if a number may not fit in 64 bits."""
    import numpy as np

    if isinstance(node, Leaf) and node.kind == "has":
        found = reading.has(node.extensions)
        return found, np.ones(len(found), np.bool_)
    if not isinstance(node, Operation) or node.operator not in _COMPARISONS:
        return None
    known: list[Bools] = []
    first, second = (_numbers(each, reading, known) for each in node.operands)
    if first is None or second is None:
        return None
    compare = {
        "<": np.less,
        "<=": np.less_equal,
        ">": np.greater,
        ">=": np.greater_equal,
        "==": np.equal,
        "!=": np.not_equal,
    }[node.operator]
    found = compare(first.values, second.values)
    if not found.ndim:
        return None  # it depends on no record
    computed = np.ones(len(found), np.bool_)
    for each in known:
        computed &= each
    return found, computed


def _numbers(node: Node, reading: Reading, known: list[Bools]) -> _Numbers | None:
    """The numbers of ``node``; None as in ``bools_of``. For each leaf below ``node`` that records
    may lack, append to ``known`` which records have it."""
    import numpy as np

    if isinstance(node, Constant):
        value = node.value
        if type(value) is float and value.is_integer() and abs(value) < _EXACT:
            value = int(value)  # comparisons have the same result
        if type(value) is not int:
            return None
        return _Numbers(np.asarray(value, np.int64), value, value)
    if isinstance(node, Leaf) and node.kind in ("ordinal", "total", "size"):
        if node.kind == "size":
            known.append(reading.has(node.extensions))
        return _Numbers.of(reading.numbers(node))
    if not isinstance(node, Operation) or node.operator not in ("+", "-", "*"):
        return None
    if any(type(each.value) is float for each in node.operands if isinstance(each, Constant)):
        return None  # a sum of floats is rounded
    first, second = (_numbers(each, reading, known) for each in node.operands)
    if first is None or second is None:
        return None
    a, b = first, second
    if node.operator == "+":
        bounds = (a.least + b.least, a.most + b.most)
    elif node.operator == "-":
        bounds = (a.least - b.most, a.most - b.least)
    else:
        corners = [x * y for x in (a.least, a.most) for y in (b.least, b.most)]
        bounds = (min(corners), max(corners))
    if bounds[0] < -(1 << 63) or bounds[1] >= 1 << 63:
        return None  # evaluated record by record, the error names the one that is too large
    compute = {"+": np.add, "-": np.subtract, "*": np.multiply}[node.operator]
    return _Numbers(compute(a.values, b.values), *bounds)
