"""Durations: how users write them, and how dsort prints them."""

from __future__ import annotations

import re

__all__ = ["format_duration", "parse_duration_s"]

_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h|d)")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration_s(text: str) -> float:
    """The seconds of ``500ms``, ``45s``, ``1.5h``, ``7d``. ``ValueError`` for any other text."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"{text[:100]!r} is no duration")
    return float(match[1]) * _UNITS_S[match[2]]


def format_duration(elapsed_s: float) -> str:
    """Seconds for people: ``0.42 s``, ``12.3 s``, ``4 min 05 s``, ``2 h 10 min``."""
    if elapsed_s < 9.995:
        return f"{elapsed_s:.2f} s"
    if elapsed_s < 59.95:
        return f"{elapsed_s:.1f} s"
    whole = round(elapsed_s)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
