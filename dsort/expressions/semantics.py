"""The operators and functions of expressions, with the semantics of CEL.

Numbers are 64-bit integers and floats. In addition to CEL, both may be mixed in one operation,
because some programs write 1 for 1.0 in JSON. A value of the wrong type, or out of range, raises
:class:`EvaluationError`: dsort never guesses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from dsort.naming.names import shortened

# --------------------------------------------------------------------------------------------------
# Regular expressions of RE2, whose time is linear in the text for any pattern.


_BYTES_MAX: Final = 1 << 20  # of memory: large counts such as {1000} take most


class PatternError(ValueError):
    """A text is no valid pattern; the message is the reason."""


@lru_cache(maxsize=64)
def compiled(pattern: str) -> Callable[[str], bool]:
    """A function that returns whether ``pattern`` is found somewhere in a text. ``PatternError`` if
    the pattern is invalid."""
    import re2  # 20 ms, and only expressions with a pattern need it

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _BYTES_MAX
    try:
        search = re2.compile(pattern.encode(), options).search
    except re2.error as error:
        reason = error.args[0]
        shown = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise PatternError(shown) from None
    return lambda text: search(text.encode("utf-8", "surrogatepass")) is not None


LIST_MAX: Final = 10_000
"""The maximum number of items in a list that is searched or iterated."""
TEXT_MAX: Final = 1 << 20
"""The maximum number of characters in a text that ``+`` makes."""
NO_INTEGER: Final = "no integer of 64 bits"
STEPS_MAX: Final = 1_000_000
"""The maximum number of steps of an expression for one record, about 0.1 µs each. A step is one
part of the body of a quantifier for one item, one item that is compared, or 32 characters of a long
text."""
LONG_TEXT_CHARS: Final = 1024
_CHARS_EACH_STEP: Final = 32
_NESTED_MAX: Final = 32

_NUMBERS: Final = (int, float)
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_DECIMAL: Final = re.compile(
    r"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,4})?"
)


class EvaluationError(ValueError):
    """An expression cannot be computed for a record; the text is the reason."""


class SpentError(Exception):
    """An expression takes more than ``STEPS_MAX`` steps for a record."""

    def __init__(self) -> None:
        super().__init__(f"it takes more than {STEPS_MAX:,} steps for one record")


class Budget:
    """The number of steps that are ``left`` for an expression and one record."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = STEPS_MAX

    def spend(self, steps: int) -> None:
        """Take ``steps`` from the budget. ``SpentError`` if fewer are left."""
        self.left -= steps
        if self.left < 0:
            raise SpentError

    def spend_on(self, text: str) -> None:
        """Take the steps for reading all of ``text``. Short texts take no steps."""
        if len(text) > LONG_TEXT_CHARS:
            self.spend(len(text) // _CHARS_EACH_STEP)


def kind_of(value: object) -> str:
    """The type of a value in words, for messages: "a number", "a text", ..."""
    if value is None:
        return "null"
    names = {bool: "true or false", int: "a number", float: "a number", str: "a text"}
    return names.get(type(value)) or ("a list" if isinstance(value, list) else "an object")


def not_a(wanted: str, value: object) -> EvaluationError:
    """The error that ``value`` is not ``wanted``."""
    value = value[:LONG_TEXT_CHARS] if isinstance(value, str) else value
    shown = f" ({shortened(repr(value))})" if type(value) in (bool, int, float, str) else ""
    return EvaluationError(f"{kind_of(value)}{shown} is not {wanted}")


def equal(budget: Budget, a: object, b: object, depth: int = 0) -> bool:
    """``a == b``. Values of different kinds are never equal; lists and objects are compared by
    their parts."""
    first, second = type(a), type(b)
    if first in _NUMBERS and second in _NUMBERS:
        return a == b
    if first is not second:
        return False
    if isinstance(a, str):
        budget.spend_on(a)
    if not isinstance(a, (list, dict)):
        return a == b
    if depth > _NESTED_MAX:
        raise EvaluationError(f"it compares values nested more than {_NESTED_MAX} deep")
    assert isinstance(b, (list, dict))
    if len(a) != len(b):
        return False
    budget.spend(len(a))
    if isinstance(a, list) and isinstance(b, list):
        return all(equal(budget, x, y, depth + 1) for x, y in zip(a, b, strict=True))
    assert isinstance(a, dict)
    assert isinstance(b, dict)
    return a.keys() == b.keys() and all(equal(budget, a[name], b[name], depth + 1) for name in a)


def _order(sign: str, compare: Callable[[Any, Any], bool]) -> Callable[[Budget, Any, Any], bool]:
    def compared(budget: Budget, a: object, b: object) -> bool:
        first, second = type(a), type(b)
        if isinstance(a, str) and isinstance(b, str):
            budget.spend_on(a if len(a) < len(b) else b)
        if (first in _NUMBERS and second in _NUMBERS) or (first is second and first in (str, bool)):
            return compare(a, b)
        raise EvaluationError(f"{kind_of(a)} {sign} {kind_of(b)} cannot be compared")

    return compared


def contains(budget: Budget, item: object, container: object) -> bool:
    """``item in container``: whether a list has the item, or an object has the name."""
    if isinstance(container, dict):
        return type(item) is str and item in container
    if not isinstance(container, list):
        raise not_a("a list", container)
    check_length(container)
    for at, each in enumerate(container):
        if equal(budget, item, each):
            budget.spend(at)
            return True
    budget.spend(len(container))
    return False


def check_length(items: list[Any]) -> None:
    """``EvaluationError`` for a list that is too long to be searched or iterated."""
    if len(items) > LIST_MAX:
        raise EvaluationError(f"a list has {len(items):,} items, more than {LIST_MAX:,}")


def _integer(number: int) -> int:
    if -(1 << 63) <= number < 1 << 63:
        return number
    raise EvaluationError("a number does not fit in 64 bits")


def _numbers(a: object, b: object, sign: str) -> bool:
    """Whether both are integers. ``EvaluationError`` unless both are numbers."""
    first, second = type(a), type(b)
    if first not in _NUMBERS or second not in _NUMBERS:
        raise EvaluationError(f"{kind_of(a)} {sign} {kind_of(b)} has no meaning")
    return first is int and second is int


def _sum(budget: Budget, a: Any, b: Any) -> Any:
    if type(a) is type(b) and isinstance(a, (str, list)):
        if len(a) + len(b) > (TEXT_MAX if isinstance(a, str) else LIST_MAX):
            raise EvaluationError("a sum of texts or lists is too long")
        budget.spend((len(a) + len(b)) // _CHARS_EACH_STEP)
        return a + b
    return _integer(a + b) if _numbers(a, b, "+") else float(a) + float(b)


def _difference(a: Any, b: Any) -> Any:
    return _integer(a - b) if _numbers(a, b, "-") else float(a) - float(b)


def _product(a: Any, b: Any) -> Any:
    return _integer(a * b) if _numbers(a, b, "*") else float(a) * float(b)


def _quotient(a: Any, b: Any) -> Any:
    if not _numbers(a, b, "/"):
        if b:
            return float(a) / float(b)
        sign = math.copysign(1.0, a) * math.copysign(1.0, b)
        return math.nan if not a or math.isnan(a) else math.copysign(math.inf, sign)
    if not b:
        raise EvaluationError("it divides by zero")
    number = abs(a) // abs(b)  # towards zero
    return _integer(number if (a < 0) == (b < 0) else -number)


def _remainder(a: Any, b: Any) -> Any:
    if type(a) is not int or type(b) is not int:
        raise EvaluationError(f"{kind_of(a)} % {kind_of(b)} has no meaning: % is for integers")
    if not b:
        raise EvaluationError("it divides by zero")
    number = abs(a) % abs(b)
    return -number if a < 0 else number


def _negative(a: Any) -> Any:
    if type(a) is int:
        return _integer(-a)
    if type(a) is not float:
        raise not_a("a number", a)
    return -a


def _not(a: object) -> bool:
    if type(a) is not bool:
        raise not_a("true or false", a)
    return not a


def _item(container: Any, index: Any) -> Any:
    if isinstance(container, dict):
        if type(index) is not str:
            raise not_a("the name of a field", index)
        if index not in container:
            raise EvaluationError(f"there is no field {shortened(index)}")
        return container[index]
    if not isinstance(container, list):
        raise not_a("a list", container)
    if type(index) is not int:
        raise not_a("the number of an item", index)
    if not 0 <= index < len(container):
        raise EvaluationError(f"there is no item {index}: the list has {len(container):,}")
    return container[index]


BUDGETED_OPERATORS: Final[dict[str, Callable[[Budget, Any, Any], Any]]] = {
    "==": equal,
    "!=": lambda budget, a, b: not equal(budget, a, b),
    "in": contains,
    "+": _sum,
    "<": _order("<", lambda a, b: a < b),
    "<=": _order("<=", lambda a, b: a <= b),
    ">": _order(">", lambda a, b: a > b),
    ">=": _order(">=", lambda a, b: a >= b),
}
"""Operators whose operands may be long, and which therefore take steps of the budget."""
OPERATORS: Final[dict[str, Callable[..., Any]]] = {
    "-": _difference,
    "*": _product,
    "/": _quotient,
    "%": _remainder,
    "negative": _negative,
    "!": _not,
    "[]": _item,
}


def _text(value: Any) -> str:
    if type(value) is not str:
        raise not_a("a text", value)
    return value


def _length(value: Any) -> int:
    if type(value) is str or isinstance(value, (list, dict)):
        return len(value)
    raise not_a("a text or a list", value)


def _to_int(value: Any) -> int:
    if type(value) in (int, bool):
        return _integer(int(value))
    if type(value) is float and -(2.0**63) < value < 2.0**63:
        return int(value)
    if type(value) is str and _INTEGER.fullmatch(value):
        return _integer(int(value))
    raise not_a("a value that int(...) can convert", value)


def _to_double(value: Any) -> float:
    if type(value) in _NUMBERS:
        return float(value)
    if type(value) is str and _DECIMAL.fullmatch(value):
        return float(value)
    raise not_a("a number", value)


def _to_string(value: Any) -> str:
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) in _NUMBERS:
        return str(value)
    return _text(value)


_LOWER: Final = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_UPPER: Final = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}

FUNCTIONS: Final[dict[str, tuple[int, Callable[..., Any]]]] = {
    "size": (1, _length),
    "contains": (2, lambda text, part: _text(part) in _text(text)),
    "startsWith": (2, lambda text, part: _text(text).startswith(_text(part))),
    "endsWith": (2, lambda text, part: _text(text).endswith(_text(part))),
    "lowerAscii": (1, lambda text: _text(text).translate(_LOWER)),
    "upperAscii": (1, lambda text: _text(text).translate(_UPPER)),
    "int": (1, _to_int),
    "double": (1, _to_double),
    "string": (1, _to_string),
}
"""For each function: its number of arguments, including the value that a method is called on, and
its implementation."""
