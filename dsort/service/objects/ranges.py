"""The header ``Range``: which bytes of an object a request asks for (RFC 9110, section 14)."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["UnsatisfiableRangeError", "parse_range"]

_RANGE: Final = re.compile(r"bytes=\s*(?:([0-9]{1,18})-([0-9]{1,18})?|-([0-9]{1,18}))\s*")


class UnsatisfiableRangeError(ValueError):
    """The object has none of the requested bytes."""


def parse_range(header: str | None, size_bytes: int) -> tuple[int, int] | None:
    """(first byte, byte after the last) of an object of ``size_bytes``; None: the whole object is
    sent, because the header is missing, requests several ranges or cannot be read.
    ``UnsatisfiableRangeError``."""
    match = _RANGE.fullmatch(header.lower()) if header is not None else None
    if match is None:
        return None
    if match[3] is not None:
        count = min(int(match[3]), size_bytes)
        if not count:
            raise UnsatisfiableRangeError
        return size_bytes - count, size_bytes
    start = int(match[1])
    stop = size_bytes if match[2] is None else min(int(match[2]) + 1, size_bytes)
    if match[2] is not None and int(match[2]) < start:
        return None
    if start >= size_bytes:
        raise UnsatisfiableRangeError
    return start, stop
