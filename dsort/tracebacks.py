"""Removes tracebacks from texts: users need what happened, not where in the code."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["one_sentence", "without_tracebacks"]

_HEADER: Final = re.compile(r"Traceback \(most recent call (last|first)\):\s*$")
_FRAME: Final = re.compile(r"\s+File \"[^\n]*\", line \d+")
_CHAIN: Final = re.compile(
    r"\s*(During handling of the above exception, another exception occurred:"
    r"|The above exception was the direct cause of the following exception:)\s*$"
)


def without_tracebacks(text: str) -> str:
    """``text`` with only the last line of each traceback, which says what was raised."""
    kept: list[str] = []
    inside = False  # a traceback, whose indented lines are frames
    for line in text.splitlines(keepends=True):
        if _HEADER.search(line) or _FRAME.match(line):
            inside = True
        elif _CHAIN.match(line):
            inside = True
            while kept and not kept[-1].strip():
                kept.pop()
        elif inside and (not line.strip() or line[:1].isspace()):
            continue
        else:
            inside = False
            kept.append(line)
    return "".join(kept)


def one_sentence(text: str) -> str:
    """The message of an error without the tracebacks in it, in one line if there were any."""
    short = without_tracebacks(text)
    return text if short == text else " ".join(short.split())
