"""Globs over object names: ``*`` and ``?`` stay within one part of a name, ``**`` does not."""

from __future__ import annotations

import re

from dsort.naming.linear_regex import LinearRegex

__all__ = ["glob_prefix", "glob_regex"]

_TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)
_SET_PART = re.compile(r"(.)-(.)|(.)", re.DOTALL)
_LAST = chr(0x10FFFF)


def glob_regex(glob: str) -> LinearRegex:
    """A pattern whose ``fullmatch`` says whether a name matches ``glob``.

    ``**/`` stands for any number of parts, none included; ``[...]`` for one character of a set,
    ``[!...]`` for one that is not in it.
    """
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
    """The pattern for one character of a set, never a slash. A range that runs backwards is empty,
    as for shells."""
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
    """The character as it is: by its number where it may mean something in a pattern."""
    return character if character.isalnum() else rf"\x{{{ord(character):x}}}"


def glob_prefix(glob: str) -> str:
    """What every matching name begins with: the glob up to its first special character."""
    return re.split(r"[*?\[]", glob, maxsplit=1)[0]
