"""Turns the tree of an expression into a function of one record's values.

These closures take 3.6 µs a record, libraries of CEL 8.7 to 334. The libraries also treat
``size("jpg")`` as the length of a text, and do not report which members an expression reads.
``tests/transforms/laws/test_expression_laws.py`` compares these closures with CEL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dsort.expressions.parser import (
    Call,
    Constant,
    HasField,
    Leaf,
    ListOf,
    Name,
    Node,
    Operation,
    Quantified,
    Select,
    nodes_of,
)
from dsort.expressions.semantics import (
    BUDGETED_OPERATORS,
    FUNCTIONS,
    LONG_TEXT_CHARS,
    OPERATORS,
    Budget,
    EvaluationError,
    check_length,
    compiled,
    kind_of,
    not_a,
)
from dsort.naming.names import shortened

Closure = Callable[[list[Any]], Any]
"""Takes the values of one record, by place, and returns the value of an expression. The first value
is the ``Budget`` of the record. Raises ``EvaluationError`` or ``SpentError``."""

_COMPARISONS: Final = {
    "<": lambda constant: constant.__gt__,
    "<=": lambda constant: constant.__ge__,
    ">": lambda constant: constant.__lt__,
    ">=": lambda constant: constant.__le__,
}


_OF_WHOLE_TEXTS: Final = ("contains", "startsWith", "endsWith", "lowerAscii", "upperAscii")


class Problem:
    """Stands in for a value that a record does not have. ``is_missing``: the record does not have
    the member at all."""

    __slots__ = ("is_missing", "text")

    def __init__(self, text: str, *, is_missing: bool = False) -> None:
        self.text = text
        self.is_missing = is_missing


def closure_of(node: Node, places: Mapping[Leaf | str, int]) -> Closure:
    """The function that computes ``node``. ``places``: the place (1, 2, ...) of the value of each
    leaf, and of each variable by its name."""
    match node:
        case Constant(value):
            return lambda values: value
        case Leaf():
            return _leaf(places[node])
        case Name(name):
            place = places[name]
            return lambda values: values[place]
        case ListOf(items):
            made = [closure_of(each, places) for each in items]
            return lambda values: [each(values) for each in made]
        case Select(target, name):
            return _select(closure_of(target, places), name)
        case HasField():
            return _has_field(node, places)
        case Call(name, arguments):
            return _call(name, arguments, places)
        case Quantified():
            return _quantified(node, places)
        case Operation(operator, operands):
            return _operation(operator, operands, places)


def _leaf(place: int) -> Closure:
    def value(values: list[Any]) -> Any:
        found = values[place]
        if type(found) is Problem:
            raise EvaluationError(found.text)
        return found

    return value


def _select(target: Closure, name: str) -> Closure:
    def field(values: list[Any]) -> Any:
        found = target(values)
        try:
            return found[name]
        except KeyError:
            raise EvaluationError(f"there is no field {shortened(name)}") from None
        except TypeError:
            text = f"{kind_of(found)} has no field {shortened(name)}"
            raise EvaluationError(text) from None

    return field


def _has_field(node: HasField, places: Mapping[Leaf | str, int]) -> Closure:
    """If ``a`` or ``b`` does not exist, ``has(a.b.c)`` is false, and not an error as in CEL."""
    names, root = [node.name] if node.name else [], node.target
    while isinstance(root, Select):
        names.append(root.name)
        root = root.target
    names.reverse()
    place = places[root] if isinstance(root, Leaf) else -1
    target = closure_of(root, places)

    def has(values: list[Any]) -> bool:
        if place >= 0 and type(values[place]) is Problem and values[place].is_missing:
            return False
        found = target(values)
        for name in names:
            if found is None:
                return False
            if not isinstance(found, dict):
                raise EvaluationError(f"{kind_of(found)} has no field {shortened(name)}")
            if name not in found:
                return False
            found = found[name]
        return True

    return has


def _call(name: str, arguments: Sequence[Node], places: Mapping[Leaf | str, int]) -> Closure:
    first = closure_of(arguments[0], places)
    if name == "matches":
        pattern = arguments[1]
        assert isinstance(pattern, Constant)
        search = compiled(str(pattern.value))

        def matches(values: list[Any]) -> bool:
            text = first(values)
            if type(text) is not str:
                raise not_a("a text", text)
            if len(text) > LONG_TEXT_CHARS:
                values[0].spend_on(text)
            return search(text)

        return matches
    _, function = FUNCTIONS[name]
    if name in _OF_WHOLE_TEXTS:
        first = _counted(first)
    if len(arguments) == 1:
        return lambda values: function(first(values))
    second = closure_of(arguments[1], places)
    return lambda values: function(first(values), second(values))


def _counted(operand: Closure) -> Closure:
    """``operand``, which takes steps of the budget if its value is a long text."""

    def counted(values: list[Any]) -> Any:
        found = operand(values)
        if type(found) is str and len(found) > LONG_TEXT_CHARS:
            values[0].spend_on(found)
        return found

    return counted


def _operation(
    operator: str, operands: Sequence[Node], places: Mapping[Leaf | str, int]
) -> Closure:
    if operator in _COMPARISONS and isinstance(operands[1], Constant):
        shortcut = _compared(operator, closure_of(operands[0], places), operands[1].value)
        if shortcut is not None:
            return shortcut
    if operator in ("==", "!=") and isinstance(operands[1], Constant):
        constant = operands[1].value
        if type(constant) in (bool, int, float, str):
            return _equalled(operator == "==", closure_of(operands[0], places), constant)
    made = [closure_of(each, places) for each in operands]
    if operator in ("&&", "||"):
        return _joined(made, decisive=operator == "||")
    if operator == "?:":
        condition, then, otherwise = made
        return lambda values: (then if _bool(condition(values)) else otherwise)(values)
    if operator in BUDGETED_OPERATORS:
        left, right = made
        spending = BUDGETED_OPERATORS[operator]
        return lambda values: spending(values[0], left(values), right(values))
    function = OPERATORS[operator]
    if len(made) == 1:
        (only,) = made
        return lambda values: function(only(values))
    first, second = made
    return lambda values: function(first(values), second(values))


def _compared(operator: str, operand: Closure, constant: object) -> Closure | None:
    """A faster closure for a comparison with a constant number, the most common kind; None for
    other constants."""
    if type(constant) not in (int, float):
        return None
    function = BUDGETED_OPERATORS[operator]
    own, compare = type(constant), _COMPARISONS[operator](constant)

    def compared(values: list[Any]) -> Any:
        value = operand(values)
        return compare(value) if type(value) is own else function(values[0], value, constant)

    return compared


def _equalled(wanted: bool, operand: Closure, constant: object) -> Closure:
    """A comparison by ``==`` (``wanted`` is true) or ``!=`` with a constant that is no list. Takes
    no steps of the budget, because the constant is short."""
    kinds = (int, float) if type(constant) in (int, float) else (type(constant),)

    def equalled(values: list[Any]) -> bool:
        found = operand(values)
        return (type(found) in kinds and found == constant) is wanted

    return equalled


def _bool(value: object) -> bool:
    if value is True or value is False:
        return value
    raise not_a("true or false", value)


def _joined(parts: Sequence[Closure], *, decisive: bool) -> Closure:
    """``&&`` (``decisive`` is false) and ``||``: one part that decides is enough, even if other
    parts, before or after it, raise errors."""

    def joined(values: list[Any]) -> bool:
        problem: EvaluationError | None = None
        for part in parts:
            try:
                if _bool(part(values)) is decisive:
                    return decisive
            except EvaluationError as error:
                problem = problem or error
        if problem is not None:
            raise problem
        return not decisive

    return joined


def _quantified(node: Quantified, places: Mapping[Leaf | str, int]) -> Closure:
    target = closure_of(node.target, places)
    place, steps = 1 + len(places), 1 + sum(1 for _ in nodes_of(node.body))
    body = closure_of(node.body, {**places, node.variable: place})
    kind = node.kind

    def items_of(values: list[Any]) -> list[Any]:
        found = target(values)
        items = list(found) if isinstance(found, dict) else found
        if not isinstance(items, list):
            raise not_a("a list", items)
        check_length(items)
        return items

    def any_or_all(values: list[Any]) -> bool:
        decisive, problem = kind == "exists", None
        budget: Budget = values[0]
        for item in items_of(values):
            budget.spend(steps)
            try:
                if _bool(body([*values, item])) is decisive:
                    return decisive
            except EvaluationError as error:
                problem = problem or error
        if problem is not None:
            raise problem
        return not decisive

    def exactly_one(values: list[Any]) -> bool:
        items = items_of(values)
        values[0].spend(steps * len(items))
        return sum(_bool(body([*values, item])) for item in items) == 1

    return exactly_one if kind == "exists_one" else any_or_all
