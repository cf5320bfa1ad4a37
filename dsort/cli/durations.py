"""Spans of time as options take them."""

from __future__ import annotations

import re

from dsort.errors import SpecError, SpecProblem

__all__ = ["span_s"]

SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([smhd])")
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def span_s(text: str, option: str, noun: str = "span of time") -> float:
    """The seconds that ``text``, as in ``30m``, is; ``SpecError`` that names ``option``."""
    match = SPAN.fullmatch(text.strip().lower())
    if match is None:
        problem = SpecProblem(option, f"{text!r} is no {noun}", "e.g. 30m, 12h, 7d, or 0s")
        raise SpecError([problem])
    return float(match[1]) * UNITS_S[match[2]]
