"""An expression of a spec, compiled, and the records for which it is true."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from dsort.errors import TransformError
from dsort.expressions.closures import Closure, closure_of
from dsort.expressions.names import resolve
from dsort.expressions.parser import (
    Call,
    ExpressionError,
    Leaf,
    Node,
    nodes_of,
    parse,
)
from dsort.expressions.semantics import (
    NO_INTEGER,
    Budget,
    EvaluationError,
    SpentError,
)
from dsort.naming.names import readable, shortened

if TYPE_CHECKING:
    from dsort.data.columns import Bools, Int64s
    from dsort.data.record_table import RecordTable

PATTERNS_MAX: Final = 16
"""The maximum number of patterns in an expression: each may take a megabyte once it is compiled."""
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
        """Compile ``text``. ``ExpressionError`` if ``text`` is no expression, or cannot have the
        type ``wanted`` ("" for any type)."""
        tree = resolve(parse(text), wanted=wanted)
        patterns = sum(isinstance(each, Call) and each.name == "matches" for each in nodes_of(tree))
        if patterns > PATTERNS_MAX:
            text = f"has {patterns} patterns, more than {PATTERNS_MAX}"
            raise ExpressionError(text, 'one pattern may have alternatives: "cat|dog"')
        leaves = dict.fromkeys(each for each in nodes_of(tree) if isinstance(each, Leaf))
        return cls(text, tree, tuple(leaves))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the text: workers compile it again."""
        return compiled_expression, (self.text, "")

    @property
    def reads_members(self) -> bool:
        """Whether the expression uses the content of members, and not only the index."""
        return any(leaf.is_content for leaf in self._leaves)

    @property
    def extensions(self) -> tuple[str, ...]:
        """The extensions of the members that the expression uses, without dots."""
        return tuple(dict.fromkeys(name for leaf in self._leaves for name in leaf.extensions))

    @property
    def extensions_read(self) -> tuple[str, ...]:
        """The extensions of the members that the expression reads; members that it only tests for
        existence are left out."""
        leaves = (leaf for leaf in self._leaves if leaf.kind != "has")
        return tuple(dict.fromkeys(name for leaf in leaves for name in leaf.extensions))

    @property
    def refused_for_rows(self) -> str:
        """The parts of the expression that rows of tables do not support, such as the number in the
        shard or the size of all members; "" for none."""
        return "ordinal" * ("ordinal" in self.asks) or "size()" * ("total" in self.asks)

    @property
    def asks(self) -> frozenset[str]:
        """The kinds of facts of a record that the expression uses: ``key``, ``shard``, ``size``,
        ..."""
        return frozenset(leaf.kind for leaf in self._leaves)

    def true_of(self, records: RecordTable, owner: str, rows: Int64s | None = None) -> Bools:
        """Whether the expression is true, for each of ``rows`` of ``records``; None: for all rows.
        ``TransformError`` names the first record for which it cannot be computed. ``owner``: the
        step or option with this expression, for the message."""
        import numpy as np

        from dsort.expressions.reading import TRUE, WRONG, Run  # loads orjson

        rows = np.arange(len(records)) if rows is None else rows
        run = Run(self._leaves, self._closures, records)
        found = np.zeros(len(rows), np.bool_)
        step = _RECORDS_AT_ONCE if self.reads_members else max(len(rows), 1)
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            truth = run.truth(self._tree, some)
            wrong = np.flatnonzero(truth == WRONG)
            if len(wrong):
                row = int(some[wrong[0]])
                self._refuse(records, row, run.problems[row], owner)
            found[start : start + step] = truth == TRUE
            run.reading.forget()
        return found

    def values_of(self, records: RecordTable, owner: str) -> list[str | int | float | bool]:
        """The value of the expression for each of ``records``: a text, a number, true or false.
        Errors as in ``true_of``."""
        import numpy as np

        from dsort.expressions.reading import Run

        run = Run(self._leaves, self._closures, records)
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
        """The value of the expression for one record, whose facts ``fact`` returns; None if the
        value cannot be computed."""
        closure = closure_of(self._tree, {leaf: at for at, leaf in enumerate(self._leaves, 1)})
        try:
            value = closure([Budget(), *map(fact, self._leaves)])
        except (EvaluationError, SpentError):
            return None
        return value if isinstance(value, (str, int, float)) else None

    def _refuse(self, records: RecordTable, row: int, problem: str, owner: str) -> None:
        hint = _OF_ANOTHER_TYPE if problem.endswith("cannot be compared") else _MISSING
        hint = _NO_CLASS if problem.endswith(NO_INTEGER) else hint
        lacks = re.fullmatch(r"there is no (\S+) member", problem)
        if lacks is not None and lacks[1] != "json":
            hint = _MISSING_MEMBER.format(lacks[1])
        raise TransformError(
            f"{owner} {shortened(self.text)}: record {readable(records.keys[row])} of shard "
            f"{records.shard}: {problem}",
            hint=_FEWER_STEPS if problem == str(SpentError()) else hint,
        )


_MISSING = (
    "json.score is a field of a line or of a .json member; has(json.score) tests whether it "
    "exists, as in 'has(json.score) && json.score > 0.5'"
)
_MISSING_MEMBER = 'has("{0}") asks whether a record has one, as in \'has("{0}") && …\''
_NO_CLASS = 'text("cls") reads the member as a text'
_FEWER_STEPS = "go through shorter lists, and search shorter texts"
_OF_ANOTHER_TYPE = "double(...), int(...) and string(...) convert; has(...) tests what a record has"


@lru_cache(maxsize=64)  # made once in a process instead of for each shard
def compiled_expression(text: str, wanted: str = "bool") -> Expression:
    """``Expression.of``, for steps that keep only the text."""
    return Expression.of(text, wanted=wanted)


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
