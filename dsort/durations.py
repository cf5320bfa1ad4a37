"""Durations and moments: how users write them, and how dsort prints them."""

from __future__ import annotations

import re
from datetime import datetime, tzinfo
from typing import NamedTuple

__all__ = [
    "Duration",
    "format_duration",
    "format_moment",
    "parse_duration",
    "parse_duration_s",
    "parse_moment",
]

_N = r"([0-9]{1,12}(?:\.[0-9]{1,9})?)"
_SHORT = rf"(?:{_N}\s*w)?(?:{_N}\s*d)?(?:{_N}\s*h)?(?:{_N}\s*m)?(?:{_N}\s*s)?(?:{_N}\s*ms)?"
_ISO = rf"P(?:{_N}W)?(?:{_N}D)?(?:T(?=[0-9])(?:{_N}H)?(?:{_N}M)?(?:{_N}S)?)?"
_UNITS_S = (604_800.0, 86_400.0, 3600.0, 60.0, 1.0, 0.001)
_DAY_S = 86_400.0


class Duration(NamedTuple):
    """Whole days, and seconds besides."""

    days: int
    seconds: float


def parse_duration(text: str) -> Duration:
    """``500ms``, ``45s``, ``1.5h``, ``7d``, ``1d12h``, or ISO 8601's ``P1DT12H``. ``ValueError``
    for any other text."""
    stripped = text.strip()
    match = re.fullmatch(_ISO, stripped, re.IGNORECASE) or re.fullmatch(_SHORT, stripped.lower())
    if match is None or not any(match.groups()):
        raise ValueError(f"{text[:100]!r} is no duration")
    numbers = [float(group or 0) for group in match.groups()]
    days = numbers[0] * 7 + numbers[1]
    rest_s = sum(each * unit for each, unit in zip(numbers[2:], _UNITS_S[2:], strict=False))
    return Duration(int(days), days % 1 * _DAY_S + rest_s)


def parse_duration_s(text: str) -> float:
    """The seconds of a duration, with days of 24 hours. ``ValueError`` if the text is no
    duration."""
    days, seconds = parse_duration(text)
    return days * _DAY_S + seconds


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


def parse_moment(text: str, zone: tzinfo | None = None) -> datetime:
    """The moment that an ISO 8601 text names: ``2026-11-20T02:00:00Z``. A text without an offset is
    in ``zone`` (None: the zone of the machine). ``ValueError`` if the text is no moment."""
    try:
        found = datetime.fromisoformat(text)
        return found if found.tzinfo else found.replace(tzinfo=zone).astimezone(zone)
    except (ValueError, OverflowError):
        raise ValueError(f"{text[:80]!r} is no moment: write 2026-11-20T02:00:00Z") from None


def format_moment(at: datetime, zone: tzinfo | None = None) -> str:
    """A moment for people, in ``zone`` (None: the zone of the machine): ``2026-11-20 02:00:05
    CET``; seconds are left out if they are 0."""
    there = at.astimezone(zone)
    return there.strftime("%Y-%m-%d %H:%M:%S %Z" if there.second else "%Y-%m-%d %H:%M %Z")
