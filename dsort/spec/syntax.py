"""Parses JSON to plain values; YAML is in ``yaml_text``, so that only YAML loads PyYAML."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, Final, NoReturn

from dsort.errors import SpecError
from dsort.naming.names import shortened

DIGITS_MAX: Final = 40
DEPTH_MAX: Final = 32
DEPTH_HINT = "a spec has four levels"

_JSON_BEGINS = re.compile(r'\s*(\[|\{\s*("|\}|$))')


def looks_like_json(text: str) -> bool:
    """Whether ``text`` is JSON. Other texts that begin with a brace are YAML:
    ``{input_bck: images}``."""
    return _JSON_BEGINS.match(text) is not None


def parse_json(text: str, source: str) -> Any:
    """The value of the JSON ``text``; ``SpecError`` with line and column if it is invalid.

    Stricter than Python: no NaN and Infinity, and no key twice in an object.
    """

    def refuse_constant(name: str) -> NoReturn:
        raise SpecError(f"{source}: {name} is no JSON value")

    def parse_int(digits: str) -> int:
        return whole_number(digits, source)

    def parse_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            names = Counter(name for name, _ in pairs)
            twice = shortened(names.most_common(1)[0][0])
            raise SpecError(f'{source}: "{twice}" is in one object twice')
        return fields

    try:
        return json.loads(
            text,
            object_pairs_hook=parse_object,
            parse_constant=refuse_constant,
            parse_int=parse_int,
        )
    except json.JSONDecodeError as error:
        reason = error.msg[:1].lower() + error.msg[1:]
        raise syntax_error(source, "JSON", error.lineno, error.colno, reason) from None
    except RecursionError:
        raise SpecError(f"{source}: nested too deeply", hint=DEPTH_HINT) from None


def whole_number(digits: str, source: str) -> int:
    """The number with the digits ``digits``; ``SpecError`` if there are too many of them."""
    if len(digits) > DIGITS_MAX:
        raise SpecError(f"{source}: the number {digits[:DIGITS_MAX]}... is too long")
    return int(digits)


def syntax_error(source: str, language: str, line: int, column: int, reason: str) -> SpecError:
    """The error about the text ``source``, with its place; lines and columns count from 1."""
    return SpecError(f"{source}: not valid {language} at line {line}, column {column}: {reason}")
