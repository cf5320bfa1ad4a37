"""Finds one field of a JSON document, reading no more of the document than necessary.

A value is returned exactly as the document writes it: numbers stay text, of any length. If a name
occurs twice in an object, the last one counts, as in other readers of JSON.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import numpy as np
from msgspec import Struct

from dsort.data.columns import Bools, Int64s, UInt8s


class JsonSyntaxError(ValueError):
    """A document that cannot be decoded. The text of the error is a predicate, such as "not
    JSON"."""


class JsonSizeError(JsonSyntaxError):
    """A document whose values would take more memory than ``_MEMORY_BYTES_MAX``."""


class JsonNumber(str):
    """A number as the JSON writes it; it is not converted, because most numbers are never used, and
    some are very long."""

    __slots__ = ()


_MEMORY_BYTES_MAX: Final = 256 << 20
_NEST_BYTES, _VALUE_BYTES = 200, 100
"""The memory of a list or object (a document has one for each opening bracket), and of another
value (at most one for each comma). In the document, a value may take only 3 bytes."""
_DECODER: Final = json.JSONDecoder(parse_int=JsonNumber, parse_float=JsonNumber)
_TEXT: Final = ("utf-8", "surrogateescape")
_SURROGATES: Final = ("utf-8", "surrogatepass")
_PLAIN_NAME: Final = re.compile(rb"[ !#-.0-\[\]-~]+")
"""A name that JSON can write in one way only, apart from escapes of the form ``\\u00xx``."""
_VALUE: Final = re.compile(
    rb'[ \t\r\n]*:[ \t\r\n]*("[^"\\\x00-\x1f]*"'
    rb"|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)[ \t\r\n]*[,}]"
)
_QUOTE, _BACKSLASH, _OPEN, _CLOSE = b'"\\{}'


class JsonPointer(Struct, frozen=True):
    """The place of a value in a document: names of fields and places in lists, from the top.
    ``text``: as the user wrote it."""

    text: str
    parts: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> JsonPointer:
        """Parse ``/meta/id`` as in RFC 6901, or the bare name of a field at the top. "" is the
        whole document. A ``~`` that is not part of ``~0`` or ``~1`` stays a ``~``."""
        if not text.startswith("/"):
            return cls(text, (text,) if text else ())
        parts = text[1:].split("/")
        return cls(text, tuple(part.replace("~1", "/").replace("~0", "~") for part in parts))

    def value(self, document: bytes) -> Any:
        """The value at this place: None, a bool, text, a ``JsonNumber``, a list or a dict. (Numbers
        inside a list or dict, which cannot be a key, may be Python numbers.)

        ``KeyError`` if there is no value; ``JsonSyntaxError`` if the document is not JSON, or has
        too many values for memory. Bytes that are not UTF-8 become surrogate escapes.
        """
        import orjson

        if len(document) * _NEST_BYTES > _MEMORY_BYTES_MAX:
            nests = document.count(b"[") + document.count(b"{")
            if nests * _NEST_BYTES + document.count(b",") * _VALUE_BYTES > _MEMORY_BYTES_MAX:
                raise JsonSizeError("JSON of too many values to read")
        try:
            found = self.follow(orjson.loads(document))
        except orjson.JSONDecodeError:  # also for NaN, lone surrogates, and bytes that are no UTF-8
            return self.follow(decoded(document.decode(*_TEXT)))
        if isinstance(found, bool) or not isinstance(found, int | float):
            return found
        if isinstance(found, int) and found:
            return JsonNumber(found)  # each integer has one text in JSON, except 0 and -0
        return self.follow(decoded(document.decode(*_TEXT)))

    def follow(self, value: Any) -> Any:
        """The value at this place in a decoded document. ``KeyError`` if there is no such value."""
        for part in self.parts:
            if isinstance(value, dict) and part in value:
                value = value[part]
            elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
                value = value[int(part)]
            else:
                raise KeyError(self.text)
        return value

    def plain_tokens(self, block: bytes, starts: Int64s, ends: Int64s) -> list[bytes | None]:
        """For each document ``block[starts[i]:ends[i]]``, the text of the value at this place: a
        number or a quoted string. None for a document for which ``value`` has to be called.
        Documents do not overlap.

        Only fields that need no decoding are found: a field at the top whose name occurs once, and
        whose value is a number or a string without escapes. The rest of a document is not read, so
        the caller has to know that it is JSON. A document takes about 1 µs, and 1 ns a byte.
        """
        found: list[bytes | None] = [None] * len(starts)
        name = self.parts[0].encode(*_TEXT)
        if len(self.parts) > 1 or not _PLAIN_NAME.fullmatch(name):
            return found
        array = np.frombuffer(block, np.uint8)
        needle = b'"' + name + b'"'
        at = _occurrences(array, needle)
        of = np.searchsorted(starts, at, "right") - 1
        sure = _named_once(array, starts, ends, at, of)
        for row, place in zip(of[sure].tolist(), at[sure].tolist(), strict=True):
            start, end = int(starts[row]), int(ends[row])
            if not _is_at_top(block, start, place, end):
                continue
            match = _VALUE.match(block, place + len(needle), end)
            if match is not None:
                found[row] = match[1]
        return found


def field_as_member(document: bytes, name: str) -> bytes | None:
    """The field ``name`` at the top of a document, as the content of a member; None if the document
    has no such field, or if the field is null. Errors: see ``JsonPointer.value``."""
    try:
        return value_as_member(JsonPointer(name, (name,)).value(document))
    except KeyError:
        return None


def value_as_member(value: Any) -> bytes | None:
    """A value of a JSON document as the content of a member: the bytes of a text or a number, None
    for null, and JSON for other values. ``JsonSyntaxError`` for a value that is nested too
    deeply."""
    if isinstance(value, str):
        return text_bytes(value)
    try:
        return None if value is None else json.dumps(value, ensure_ascii=False).encode(*_SURROGATES)
    except RecursionError:
        raise JsonSyntaxError("nested too deeply") from None


def text_bytes(text: str) -> bytes:
    """A string of a JSON document as bytes. Bytes that were not UTF-8 are restored, and lone
    surrogates keep their place in the order of characters."""
    try:
        return text.encode(*_TEXT)
    except UnicodeEncodeError:
        return text.encode(*_SURROGATES)


def is_json(document: bytes) -> bool:
    """Whether a whole document is JSON. A document with too many values for the memory is not
    decoded; only its end has to match its beginning."""
    try:
        _WHOLE.value(document)
    except JsonSizeError:
        text = document.strip()
        return text[:1] + text[-1:] in (b"{}", b"[]")
    except JsonSyntaxError:
        return False
    return True


_WHOLE: Final = JsonPointer("", ())


def decoded(text: str) -> Any:
    """Decode a whole document. ``JsonSyntaxError`` if it is not JSON."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        raise JsonSyntaxError("not JSON") from None


def _occurrences(array: UInt8s, needle: bytes) -> Int64s:
    """The places of ``needle`` in ``array``, ascending. About 0.6 ns a byte."""
    count = len(array) - len(needle) + 1
    if count <= 0:
        return np.zeros(0, np.int64)
    hits: Bools = array[1 : count + 1] == needle[1]  # not the quote, which occurs very often
    for index in (2, 3, 0):
        if index < len(needle):
            hits &= array[index : count + index] == needle[index]
    found: Int64s = np.flatnonzero(hits)
    for index in range(4, len(needle)):
        found = found[array[found + index] == needle[index]]
    return found


def _named_once(array: UInt8s, starts: Int64s, ends: Int64s, at: Int64s, of: Int64s) -> Bools:
    """Whether each occurrence of a name is the only one in its document, and the document is an
    object. ``at``: the places of the occurrences; ``of``: the numbers of their documents.

    A quote behind a backslash is inside a string. A name may also be written with escapes
    ``\\u00xx``. Few writers do that to letters, so the result is False for such documents."""
    escaped = _occurrences(array, b"\\u00")
    escaped = escaped[escaped + 4 < len(array)]
    high = array[escaped + 4]
    escaped = escaped[(high >= ord("2")) & (high <= ord("7"))]
    is_object = np.zeros(len(starts), np.bool_)
    some = np.flatnonzero(ends - starts > 1)
    is_object[some] = (array[starts[some]] == _OPEN) & (array[ends[some] - 1] == _CLOSE)
    is_object[np.searchsorted(starts, escaped, "right") - 1] = False
    inside = (of >= 0) & (at < ends[of]) & (at > starts[of])
    counts = np.bincount(of[of >= 0], minlength=len(starts))
    sure: Bools = inside & (counts[of] == 1) & is_object[of]
    sure[sure] = array[at[sure] - 1] != _BACKSLASH
    return sure


def _is_at_top(block: bytes, start: int, place: int, end: int) -> bool:
    """Whether the name at ``place`` certainly belongs to the object from ``start`` to ``end``, and
    not to an object inside it. The name belongs to it if no bracket opens between the start of the
    object and the name, or if only the object's own bracket closes behind the name. Brackets may
    also be in strings: then the result is False, which is safe."""
    if block.find(b"{", start + 1, place) < 0 and block.find(b"[", start + 1, place) < 0:
        return True
    return block.find(b"}", place, end) == end - 1 and block.find(b"]", place, end) < 0
