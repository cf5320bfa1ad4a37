"""Intervals as people write them: ``6h``, ``1d``, ``1d12h``, or ISO 8601's ``P1D``, ``PT6H``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["Interval", "parse_interval"]

SECONDS_MIN: Final = 60
DAYS_MAX: Final = 3660
_DAY_S: Final = 86_400
_SHORT = re.compile(
    r"(?:([0-9]{1,9})w)?(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?"
)
_ISO = re.compile(
    r"P(?:([0-9]{1,9})W)?(?:([0-9]{1,9})D)?"
    r"(?:T(?=[0-9])(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9})S)?)?"
)


@dataclass(frozen=True, slots=True)
class Interval:
    """``days`` and ``seconds`` between two due times. Whole days are days of the calendar, at the
    same time by the clock on the wall, however long they are; everything else is time that
    passes."""

    days: int
    seconds: int

    @property
    def is_calendar(self) -> bool:
        """Whether it is made of days only."""
        return self.seconds == 0

    @property
    def total_s(self) -> int:
        """Its length, with days of 24 hours."""
        return self.days * _DAY_S + self.seconds


def parse_interval(text: str) -> Interval:
    """The interval that ``text`` writes; ``ValueError`` if it is none, or too short or too long."""
    stripped = text.strip()
    match = _ISO.fullmatch(stripped.upper()) or _SHORT.fullmatch(stripped.lower())
    if match is None or not any(match.groups()):
        raise ValueError(f'"{text[:100]}" is no interval')
    weeks, days, hours, minutes, seconds = (int(group or 0) for group in match.groups())
    interval = Interval(7 * weeks + days, 3600 * hours + 60 * minutes + seconds)
    if interval.total_s < SECONDS_MIN:
        raise ValueError(f'"{text[:100]}" is too short: at least {SECONDS_MIN} seconds')
    if interval.total_s > DAYS_MAX * _DAY_S:
        raise ValueError(f'"{text[:100]}" is too long: at most ten years')
    return interval
