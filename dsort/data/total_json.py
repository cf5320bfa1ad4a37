"""Texts and JSON that can always be written, whatever the names of files or the input of users.

A Python text may hold lone surrogates: bytes of a name that are not UTF-8, or half of a pair that
a JSON text wrote as an escape. No encoding accepts them, and most readers of JSON refuse them. NaN
and Infinity are no JSON either.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

_DEPTH_MAX: Final = 100
_TORN_SHOWN_MAX: Final = 200
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def is_encodable(text: str) -> bool:
    """Whether ``text`` can be written as UTF-8."""
    return text.isascii() or _SURROGATE.search(text) is None


def encodable(text: str) -> str:
    """``text`` in a form that UTF-8 can write: ``\\xe9`` for a byte that was not UTF-8 (which
    Python stores as U+DCE9), ``\\ud83d`` for half of a pair."""
    return text if is_encodable(text) else _SURROGATE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def to_json(value: object) -> str:
    """The JSON of any value, without spaces: UTF-8 can write it, and every reader accepts it.

    Texts are converted by :func:`encodable`, NaN and Infinity become null, and a value of a type
    that JSON does not have becomes its ``str``.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        text = ""
    if text and is_encodable(text):
        return text
    return json.dumps(_cleaned(value, 0), ensure_ascii=False, separators=(",", ":"))


def from_json(text: str | bytes) -> Any:
    """The value of a JSON text; if it is invalid, an object with the error and the text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "backslashreplace")
        return {"unreadable": f"no JSON: {error}", "text": text[:_TORN_SHOWN_MAX]}


def _cleaned(value: object, depth: int) -> object:
    if depth > _DEPTH_MAX:
        return "..."
    if isinstance(value, str):
        return encodable(str(value))
    if isinstance(value, Mapping):
        return {encodable(str(key)): _cleaned(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_cleaned(each, depth + 1) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    return encodable(str(value))
