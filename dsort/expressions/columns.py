"""Computes expressions over the index for a whole shard at once, where they compare whole numbers
that fit in 64 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from dsort.expressions.nodes import Constant, Leaf, Node, Operation

if TYPE_CHECKING:
    from dsort.data.columns import Bools, Int64s
    from dsort.expressions.reading import Reading

__all__ = ["bools_of"]

_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
_EXACT = 1 << 53  # integers below are floats of the same value


class _Numbers(Struct, frozen=True, eq=False):
    """Integers, one a record or one for all. ``least``, ``most``: their bounds as integers of
    Python, which have any length, so that no overflow stays undetected."""

    values: Int64s
    least: int
    most: int

    @classmethod
    def of(cls, values: Int64s) -> _Numbers:
        return cls(values, int(values.min(initial=0)), int(values.max(initial=0)))


def bools_of(node: Node, reading: Reading) -> tuple[Bools, Bools] | None:
    """(records for which ``node`` is true, records for which it can be computed), shapes ``(n,)``;
    None if ``node`` is no comparison of whole numbers, or if these may not fit in 64 bits."""
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
    """The numbers of ``node``; None as in ``bools_of``. Appends to ``known`` which records have a
    value, for each leaf below ``node`` that a record may lack."""
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
