"""Patterns that users write: regular expressions, globs over object names, wildcards of policies.

Regular expressions and globs are matched by RE2, in time linear in the text. Python's engine tries
all ways to split a text between two ``.*``, so a glob with a few stars could take years.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any, NewType

_TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)
_SET_PART = re.compile(r"(.)-(.)|(.)", re.DOTALL)
_LAST = chr(0x10FFFF)


def _compiled(pattern: str, *, never_capture: bool) -> Any:
    import re2  # 20 ms, and few jobs need it

    options = re2.Options()
    options.log_errors = False
    options.never_capture = never_capture
    options.dot_nl = True
    try:
        return re2.compile(pattern.encode("utf-8", "surrogatepass"), options)
    except re2.error as error:
        raise ValueError(f"is no regular expression, or is too large: {error}") from None


class LinearRegex:
    """A pattern (RE2 syntax; a dot matches line breaks, too) that is matched with whole names.

    Names may contain lone surrogates for bytes that are not UTF-8: one character each.
    ``ValueError`` if the pattern is invalid or too large.
    """

    __slots__ = ("_fullmatch", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._fullmatch = _compiled(pattern, never_capture=True).fullmatch

    def fullmatch(self, name: str) -> bool:
        """Whether the pattern matches the whole of ``name``."""
        return self._fullmatch(name.encode("utf-8", "surrogatepass")) is not None


class KeyPattern:
    """A pattern (RE2 syntax) whose first group is the key in a name.

    ``ValueError`` if the pattern is invalid or has no group."""

    __slots__ = ("_fullmatch",)

    def __init__(self, pattern: str) -> None:
        compiled = _compiled(pattern, never_capture=False)
        if not compiled.groups:
            raise ValueError("has no group (...) for the part of a name that is the key")
        self._fullmatch = compiled.fullmatch

    def key_of(self, name: bytes) -> bytes | None:
        """The key in ``name``; None if the pattern does not match the whole of it."""
        found = self._fullmatch(name)
        return found[1] if found is not None else None


def glob_regex(glob: str) -> LinearRegex:
    """A pattern for ``fullmatch``, which matches the same names as ``glob``.

    ``*`` and ``?`` stay within one part of a name, ``**`` does not, and ``**/`` stands for any
    number of parts, even none. ``[...]`` is a character of a set, ``[!...]`` a character outside of
    it, but never a slash.
    """
    # Not fnmatch: its * and its sets match slashes. Not glob.translate: it separates parts of
    # names, but exists only from Python 3.13 on, and its patterns are no RE2 syntax.
    parts = []
    for token in _TOKEN.findall(glob):
        if token == "**/":
            parts.append("(?:.*/)?")
        elif token == "**":
            parts.append(".*")
        elif token == "*":
            parts.append("[^/]*")
        elif token == "?":
            parts.append("[^/]")
        elif len(token) > 1:
            parts.append(_one_of(token[1:-1]))
        else:
            parts.append(_code(token))
    return LinearRegex("".join(parts))


def _one_of(inner: str) -> str:
    """The pattern for one character of a set, never a slash. A range in descending order is empty,
    as in shells."""
    negated = inner.startswith("!")
    members = [
        (low, high) if low else (single, single)
        for low, high, single in _SET_PART.findall(inner[negated:])
        if low <= high
    ]
    if negated:
        return f"[^/{''.join(_range(*each) for each in members)}]"
    beside = [part for low, high in members for part in _without_slash(low, high)]
    return f"[{''.join(_range(*each) for each in beside)}]" if beside else rf"[^\x{{0}}-{_LAST}]"


def _without_slash(low: str, high: str) -> list[tuple[str, str]]:
    if not low <= "/" <= high:
        return [(low, high)]
    parts = [(low, chr(ord("/") - 1)), (chr(ord("/") + 1), high)]
    return [(first, last) for first, last in parts if first <= last]


def _range(low: str, high: str) -> str:
    return f"{_code(low)}-{_code(high)}"


def _code(character: str) -> str:
    """A pattern for this one character; if the character may be special in patterns, by its
    number."""
    return character if character.isalnum() else rf"\x{{{ord(character):x}}}"


def glob_prefix(glob: str) -> str:
    """The beginning of every matching name: the glob up to its first special character."""
    return re.split(r"[*?\[]", glob, maxsplit=1)[0]


def has_wildcard(pattern: str) -> bool:
    """Whether ``pattern`` may match more than itself: whether it has a ``*`` or a ``?``."""
    return "*" in pattern or "?" in pattern


def wildcard_match(pattern: str, text: str) -> bool:
    """Whether ``pattern`` matches the whole of ``text``.

    ``*`` stands for any run of characters (``/`` and ``.`` too), ``?`` for one; nothing else is
    special. The time is at most proportional to the product of both lengths, because fnmatch never
    tries a second text for a ``*`` that has matched.
    """
    return fnmatchcase(text, pattern.replace("[", "[[]"))


FileLocation = NewType("FileLocation", str)
"""The type of each field whose text is opened as a file: a path, a URL, or an object in a store.
Every function that opens such a text takes this type, so mypy refuses a field of another type. A
service collects the locations of a spec by this type (``spec.located``), and checks whether the
token allows each."""
