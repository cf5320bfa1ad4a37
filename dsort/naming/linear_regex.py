"""Regular expressions that users have a say in, matched in time linear in the text (RE2).

Python's own engine tries all ways to split a text between ``.*`` and ``.*``: a glob with a few
stars in it would keep it busy for years.
"""

from __future__ import annotations

__all__ = ["LinearRegex"]


class LinearRegex:
    """A pattern (RE2 syntax; a dot matches line breaks, too) to match whole names with.

    Names may have lone surrogates in them, for bytes that are not UTF-8: one character each.
    ``ValueError`` if the pattern is none, or too large.
    """

    __slots__ = ("_fullmatch", "pattern")

    def __init__(self, pattern: str) -> None:
        import re2  # 20 ms, and few jobs need it

        options = re2.Options()
        options.log_errors = False
        options.never_capture = True
        options.dot_nl = True
        self.pattern = pattern
        try:
            compiled = re2.compile(pattern.encode("utf-8", "surrogatepass"), options)
        except re2.error as error:
            raise ValueError(f"no regular expression, or too large a one: {error}") from None
        self._fullmatch = compiled.fullmatch

    def fullmatch(self, name: str) -> bool:
        """Whether the pattern matches the whole of ``name``."""
        return self._fullmatch(name.encode("utf-8", "surrogatepass")) is not None
