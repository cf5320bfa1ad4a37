"""Globs over object names: ``*`` and ``?`` stay within one part of a name, ``**`` does not."""

from __future__ import annotations

import re

__all__ = ["glob_prefix", "glob_regex"]

_TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)
_SET_PART = re.compile(r"(.)-(.)|(.)", re.DOTALL)


def glob_regex(glob: str) -> re.Pattern[str]:
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
            parts.append(re.escape(token))
    return re.compile("".join(parts), re.DOTALL)


def _one_of(inner: str) -> str:
    """The pattern for one character of a set, never a slash. A range that runs backwards is empty,
    as for shells."""
    negated = inner.startswith("!")
    members = [
        f"{re.escape(low)}-{re.escape(high)}" if low else re.escape(single)
        for low, high, single in _SET_PART.findall(inner[negated:])
        if low <= high
    ]
    if not members:
        return "[^/]" if negated else "(?!)"
    return f"(?!/)[{'^' if negated else ''}{''.join(members)}]"


def glob_prefix(glob: str) -> str:
    """What every matching name begins with: the glob up to its first special character."""
    return re.split(r"[*?\[]", glob, maxsplit=1)[0]
