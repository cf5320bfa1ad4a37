"""Wildcards of policies: ``*`` stands for any run of characters (``/`` and ``.`` too), ``?`` for
one; nothing else is special."""

from __future__ import annotations

__all__ = ["has_wildcard", "wildcard_match"]


def has_wildcard(pattern: str) -> bool:
    """Whether ``pattern`` may match more than itself."""
    return "*" in pattern or "?" in pattern


def wildcard_match(pattern: str, text: str) -> bool:
    """Whether ``pattern`` matches the whole of ``text``.

    In time proportional to the product of their lengths at worst: only the last ``*`` is ever tried
    again, since what an earlier one takes more the last one can take as well.
    """
    at = position = retry_text = 0
    retry_pattern = -1
    while position < len(text):
        if at < len(pattern) and pattern[at] == "*":
            retry_pattern, retry_text = at, position
            at += 1
        elif at < len(pattern) and pattern[at] in ("?", text[position]):
            at += 1
            position += 1
        elif retry_pattern >= 0:
            retry_text += 1
            at, position = retry_pattern + 1, retry_text
        else:
            return False
    return not pattern[at:].strip("*")
