"""Reads JSON from outside and checks it by types; writes JSON for people; and converts values that
JSON cannot express.

Long lists of small values have one row per line. All other content is indented by two spaces."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Annotated, Any, Final, Protocol, TypeVar

from msgspec import Meta, Struct, ValidationError, convert

Checked = TypeVar("Checked")

INTEGER_MAX = (1 << 63) - 1
Integer = Annotated[int, Meta(ge=-INTEGER_MAX, le=INTEGER_MAX)]
"""A number that fits in a column."""
Count = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
"""The number of some things."""


def checked(content: Any, kind: type[Checked]) -> Checked:
    """``content``, in types of JSON, as a ``kind``. ``ValueError`` names the place of the first
    value that has another type. Numbers that are the keys of an object are texts in JSON."""
    try:
        return convert(content, kind, str_keys=True)
    except ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        place = place.removesuffix("`").removeprefix(".")
        raise ValueError(f"{place}: {problem}" if place else problem) from None


INDENT = 2
ROWS_AT_ONCE = 1000


class Rows(Struct, frozen=True):
    """A list in the content for :func:`json_bytes`; ``rows`` is iterated once."""

    rows: Iterable[object]


class Sink(Protocol):
    """An object to which JSON is written."""

    def write(self, data: bytes, /) -> object: ...


class _Collected:
    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes, /) -> None:
        self.data += data


def json_bytes(content: Mapping[str, object]) -> bytes:
    """``content`` in UTF-8, with a newline at its end; values of mappings may be :class:`Rows`.

    Bytes of names that are not UTF-8 become \\udcXX, an escape that JSON has, too. A row takes 3
    µs, a tenth of the time of ``json.dumps(indent=2)``, and the rows are never all in memory as
    objects.
    """
    out = _Collected()
    write_json(out, content)
    return bytes(out.data)


def write_json(out: Sink, content: Mapping[str, object]) -> None:
    """Write the bytes of :func:`json_bytes` to an open file, piece by piece."""
    _write_mapping(out, content, "\n")
    out.write(b"\n")


def _write_mapping(out: Sink, content: Mapping[str, object], line: str) -> None:
    """``line``: a newline and the indent of ``content``."""
    inner = line + " " * INDENT
    for number, (name, value) in enumerate(content.items()):
        _add(out, f"{',' if number else '{'}{inner}{json.dumps(name, ensure_ascii=False)}: ")
        if isinstance(value, Rows):
            _write_rows(out, value, inner)
        elif isinstance(value, Mapping) and value:
            _write_mapping(out, value, inner)
        else:
            text = json.dumps(value, indent=INDENT, ensure_ascii=False)
            _add(out, text.replace("\n", inner))
    _add(out, f"{line}}}" if content else "{}")


def _write_rows(out: Sink, rows: Rows, line: str) -> None:
    encode = json.JSONEncoder(ensure_ascii=False).encode  # runs in C, as it does not indent
    inner = line + " " * INDENT
    rest = map(encode, rows.rows)
    opening = "["
    while lines := list(islice(rest, ROWS_AT_ONCE)):
        _add(out, opening + inner + f",{inner}".join(lines))
        opening = ","
    _add(out, "[]" if opening == "[" else f"{line}]")


def _add(out: Sink, text: str) -> None:
    out.write(text.encode("utf-8", "backslashreplace"))


_DEPTH_MAX: Final = 100
_TORN_SHOWN_MAX: Final = 200
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def is_encodable(text: str) -> bool:
    """Whether ``text`` can be written as UTF-8."""
    return text.isascii() or _SURROGATE.search(text) is None


def encodable(text: str) -> str:
    """``text`` in a form that UTF-8 can write: ``\\xe9`` for a byte that was not UTF-8 (which
    Python stores as U+DCE9), ``\\ud83d`` for half of a surrogate pair."""
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
