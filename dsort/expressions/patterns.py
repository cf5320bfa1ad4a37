"""Regular expressions of RE2, whose time is linear in the text for any pattern."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

__all__ = ["PatternError", "compiled"]

_BYTES_MAX: Final = 1 << 20  # of memory: large counts such as {1000} take most


class PatternError(ValueError):
    """A text is no valid pattern; the message is the reason."""


@lru_cache(maxsize=64)
def compiled(pattern: str) -> Callable[[str], bool]:
    """A function that returns whether ``pattern`` is found somewhere in a text. ``PatternError`` if
    the pattern is invalid."""
    import re2  # 20 ms, and only expressions with a pattern need it

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _BYTES_MAX
    try:
        search = re2.compile(pattern.encode(), options).search
    except re2.error as error:
        reason = error.args[0]
        shown = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise PatternError(shown) from None
    return lambda text: search(text.encode("utf-8", "surrogatepass")) is not None
