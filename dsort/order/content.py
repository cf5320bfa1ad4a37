"""Content keys: the value of one member of a record, as the algorithm ``content`` compares it.

White space around a key is ignored (a ``.cls`` file usually ends in a newline), except around
strings where it is asked for. Integers have any length up to ``DIGITS_MAX``; floats may be anything
Python and JSON call a float except NaN, which has no place in an order.
"""

from __future__ import annotations

import json
import math
import re
from typing import Final

from dsort.naming.names import shortened
from dsort.order.rule import SortRule

__all__ = ["DIGITS_MAX", "ContentValueError", "content_key", "content_value"]

DIGITS_MAX: Final = 4096
"""An integer has at most so many digits, zeros in front not counted: reading one takes time that
grows with the square of its length."""

_SHORT_MAX: Final = 18  # characters; Python reads so many digits at once
_INTEGER = re.compile(r"([+-]?)([0-9]+)")
_DECIMAL = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]{1,9}))?")


class ContentValueError(ValueError):
    """A content that is no key of the type asked for; the text says why."""


def content_value(
    content: bytes, kind: str, json_field: str | None, *, strip: bool = True
) -> int | float | bytes:
    """The key in ``content``: an int, a float or bytes, as ``kind`` says. ``strip``: strings are
    taken without the white space around them.

    ``ContentValueError`` if it is not one; ``KeyError`` if the JSON has no such field.
    """
    if json_field is not None:
        try:
            return _typed(_json_value(content, json_field), kind, strip=strip)
        except ContentValueError as error:
            raise ContentValueError(f"field {shortened(json_field)}: {error}") from None
    if kind == "string":
        return content.strip() if strip else content
    text = content.strip()
    try:
        shown = text.decode("ascii")
        if "_" in shown:  # Python's own digit grouping is no number in a file
            raise ValueError(shown)
        number = _integer(shown) if kind == "int" else _checked(float(shown))
    except ContentValueError:
        raise
    except ValueError:
        raise ContentValueError(f"{_shown(text)} is not {_article(kind)}") from None
    return number


def content_key(content: bytes, rule: SortRule) -> int | float | bytes:
    """The key in ``content`` as ``rule`` reads it; errors as :func:`content_value`."""
    return content_value(content, rule.content_type, rule.json_field, strip=rule.content_strip)


class _Number(str):
    """A number as the JSON writes it: most of them nobody asks for, and some are very long."""

    __slots__ = ()


_DECODER = json.JSONDecoder(parse_int=_Number, parse_float=_Number)


def _json_value(content: bytes, field: str) -> object:
    try:
        text = content.decode(json.detect_encoding(content), "surrogatepass")
        value: object = _DECODER.decode(text)
    except (ValueError, RecursionError):
        raise ContentValueError("the member is not JSON") from None
    for part in field.split("."):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            raise KeyError(field)
    return value


def _typed(value: object, kind: str, *, strip: bool) -> int | float | bytes:
    if isinstance(value, _Number):
        if kind == "string":
            raise ContentValueError(f"the number {shortened(value)} is not a string")
        if kind == "int":
            return _integer_of_decimal(value)
        number = float(value)
        if math.isinf(number) and value.lstrip("-").isdecimal():
            raise ContentValueError("the number is too large for a float")
        return number
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        return content_value(text, kind, None, strip=strip)
    if isinstance(value, float) and kind == "float":  # NaN and Infinity, as Python writes them
        return _checked(value)
    parts = "an object" if isinstance(value, dict) else "a list"
    shown = parts if isinstance(value, (dict, list)) else json.dumps(value)
    raise ContentValueError(f"{shown} is not {_article(kind)}")


def _integer(text: str) -> int:
    """The integer ``text``, white space removed; ``ValueError`` if it is none."""
    if len(text) <= _SHORT_MAX:
        return int(text)
    match = _INTEGER.fullmatch(text)
    if match is None:
        raise ValueError(text)
    sign, digits = match[1], match[2].lstrip("0")
    _check_digits(len(digits))
    return int(f"{sign}{digits or '0'}")


def _integer_of_decimal(text: str) -> int:
    """The integer that the JSON number ``text`` is, exactly: ``1.5e1`` is 15."""
    match = _DECIMAL.fullmatch(text)
    if match is not None:
        sign, whole, fraction, exponent = match.groups(default="")
        digits = (whole + fraction).lstrip("0")
        shift = int(exponent or 0) - len(fraction)
        if shift < 0:
            kept, cut = digits[:shift], digits[shift:]
            digits, shift = kept, 0 if not cut.strip("0") else -1
        if not digits:
            shift = min(shift, 0)
        if shift >= 0:
            _check_digits(len(digits) + shift)
            return int(f"{sign}{digits or '0'}{'0' * shift}")
    raise ContentValueError(f"{shortened(text)} is not an int")


def _check_digits(count: int) -> None:
    if count > DIGITS_MAX:
        raise ContentValueError(f"the number has more than {DIGITS_MAX:,} digits")


def _checked(value: float) -> float:
    if math.isnan(value):
        raise ContentValueError("NaN has no place in an order")
    return value


def _article(kind: str) -> str:
    return {"int": "an int", "float": "a float"}.get(kind, "a string")


def _shown(text: bytes) -> str:
    return repr(text[:40].decode("utf-8", "backslashreplace")) + ("…" if len(text) > 40 else "")
