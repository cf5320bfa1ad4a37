"""Content keys: the value of one member of a record, as the algorithm ``content`` compares it.

Surrounding white space is ignored (a ``.cls`` file usually ends in a newline). Integers are signed
64-bit, as the peer's; floats may be anything Python and JSON call a float except NaN, which has no
place in an order.
"""

from __future__ import annotations

import json
import math

__all__ = ["ContentValueError", "content_value"]

INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1


class ContentValueError(ValueError):
    """A content that is no key of the type asked for; the text says why."""


def content_value(content: bytes, kind: str, json_field: str | None) -> int | float | bytes:
    """The key in ``content``: an int, a float or bytes, as ``kind`` says.

    ``ContentValueError`` if it is not one; ``KeyError`` if the JSON has no such field.
    """
    if json_field is not None:
        return _typed(_json_value(content, json_field), kind)
    text = content.strip()
    if kind == "string":
        return text
    try:
        shown = text.decode("ascii")
        if "_" in shown:  # Python's own digit grouping is no number in a file
            raise ValueError(shown)
        number = int(shown) if kind == "int" else float(shown)
    except (ValueError, UnicodeDecodeError):
        raise ContentValueError(f"{_shown(text)} is not {_article(kind)}") from None
    return _checked(number)


def _json_value(content: bytes, field: str) -> object:
    try:
        value: object = json.loads(content)
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


def _typed(value: object, kind: str) -> int | float | bytes:
    if kind == "string":
        if isinstance(value, str):
            return value.strip().encode("utf-8", "surrogatepass")
        return json.dumps(value, sort_keys=True, ensure_ascii=False).encode(
            "utf-8", "surrogatepass"
        )
    if isinstance(value, str):
        return content_value(value.encode("utf-8", "surrogatepass"), kind, None)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ContentValueError(f"{json.dumps(value)[:60]} is not {_article(kind)}")
    if kind == "int":
        if isinstance(value, float) and not value.is_integer():
            raise ContentValueError(f"{value} is not an int")
        return _checked(int(value))
    try:
        return _checked(float(value))
    except OverflowError:
        raise ContentValueError("the number is too large for a float") from None


def _checked(value: int | float) -> int | float:
    if isinstance(value, int):
        if not INT_MIN <= value <= INT_MAX:
            raise ContentValueError(f"{str(value)[:40]} does not fit in 64 bits")
    elif math.isnan(value):
        raise ContentValueError("NaN has no place in an order")
    return value


def _article(kind: str) -> str:
    return "an int" if kind == "int" else "a float"


def _shown(text: bytes) -> str:
    return repr(text[:40].decode("utf-8", "backslashreplace")) + ("…" if len(text) > 40 else "")
