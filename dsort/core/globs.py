"""Globs over object names: ``*`` and ``?`` stay within one part of a name, ``**`` does not."""

from __future__ import annotations

import re

__all__ = ["glob_prefix", "glob_regex"]

_TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)


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
            inner = token[1:-1]
            negated = inner.startswith("!")
            body = inner[negated:].replace("\\", "\\\\").replace("[", "\\[").replace("^", "\\^")
            parts.append(f"[{'^/' if negated else ''}{body}]")
        else:
            parts.append(re.escape(token))
    return re.compile("".join(parts), re.DOTALL)


def glob_prefix(glob: str) -> str:
    """What every matching name begins with: the glob up to its first special character."""
    return re.split(r"[*?\[]", glob, maxsplit=1)[0]
