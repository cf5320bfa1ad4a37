"""Rules of schedules: cron expressions as in ``crontab(5)``, and intervals.

The fields are parsed here before CronSim, which reports a mistake only as "Bad minute", and accepts
what ``crontab(5)`` does not have (a sixth field, ``L``, ``#``)."""

from __future__ import annotations

import re
from calendar import monthrange
from typing import Final

from msgspec import Struct

from dsort.durations import parse_duration

__all__ = [
    "Interval",
    "cron_in_numbers",
    "parse_interval",
]

_MONTHS: Final = (
    *("jan", "feb", "mar", "apr", "may", "jun"),
    *("jul", "aug", "sep", "oct", "nov", "dec"),
)
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: Final = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of the month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 7, _DAYS),
)
_NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_LEAP_YEAR: Final = 2028
_PART = re.compile(r"(\*|([0-9]+|[a-z]+)(?:-([0-9]+|[a-z]+))?)(?:/([0-9]+))?")
_TEXT_MAX = 500


def cron_in_numbers(text: str) -> str:
    """The cron expression ``text`` in numbers alone, for CronSim; a field of days that begins with
    ``*`` still does, because cron then joins the two fields of days by "and". ``ValueError`` names
    the field that is wrong, and the mistake."""
    if len(text) > _TEXT_MAX:
        raise ValueError("is too long for a cron expression")
    words = _NICKNAMES.get(text.strip().lower(), text).lower().split()
    if len(words) != len(_FIELDS):
        raise ValueError(
            f"has {len(words)} fields, not five: minute, hour, day of the month, month, day of the "
            "week"
        )
    minutes, hours, days, months, weekdays = (
        _numbers(word, *field) for word, field in zip(words, _FIELDS, strict=True)
    )
    any_day, any_weekday = words[2].startswith("*"), words[4].startswith("*")
    if (any_day or any_weekday) and not _some_day(days, months):
        raise ValueError("is never due: none of its months has such a day")
    return " ".join(
        (
            _listed(minutes),
            _listed(hours),
            _days(words[2], days),
            _listed(months),
            _days(words[4], weekdays),
        )
    )


def _days(word: str, numbers: tuple[int, ...]) -> str:
    first, *others = word.split(",")
    if not first.startswith("*"):
        return _listed(numbers)
    return f"{first},{_listed(numbers)}" if others else first


def _listed(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))


def _some_day(days: tuple[int, ...], months: tuple[int, ...]) -> bool:
    return any(days[0] <= monthrange(_LEAP_YEAR, month)[1] for month in months)


def _numbers(
    word: str, field: str, least: int, most: int, names: tuple[str, ...]
) -> tuple[int, ...]:
    allowed: set[int] = set()
    for part in word.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f'"{part}" is no {field}')
        everything, first_text, last_text, step_text = match.groups()
        step = int(step_text) if step_text else 1
        if everything == "*":
            first, last = least, most - (most == 7)
        else:
            first = _number(first_text, field, least, most, names)
            last = first if not step_text else most - (most == 7)
            if last_text:
                last = _number(last_text, field, least, most, names)
                if most == 7 and last == 0 < first:
                    last = 7  # for "sat-sun"
        if step < 1 or first > last:
            why = "its step is 0" if step < 1 else "it ends before it begins"
            raise ValueError(f'"{part}" is no {field}: {why}')
        allowed.update(range(first, last + 1, step))
    return tuple(sorted(allowed))


def _number(text: str, field: str, least: int, most: int, names: tuple[str, ...]) -> int:
    if text in names:
        return names.index(text) + (names[0] == "jan")
    if not text.isdecimal() or len(text) > 2 or not least <= int(text) <= most:
        also = f" or {names[0]}-{names[-1]}" if names else ""
        raise ValueError(f'"{text}" is no {field} ({least}-{most}{also})')
    return int(text)


SECONDS_MIN: Final = 60
DAYS_MAX: Final = 3660
_DAY_S: Final = 86_400


class Interval(Struct, frozen=True):
    """``days`` and ``seconds`` between two due times. Whole days are days of the calendar, at the
    same local time, however long they are; everything else is elapsed time."""

    days: int
    seconds: int

    @property
    def is_calendar(self) -> bool:
        """Whether the interval consists of days only."""
        return self.seconds == 0

    @property
    def total_s(self) -> int:
        """The length of the interval in seconds, with days of 24 hours."""
        return self.days * _DAY_S + self.seconds


def parse_interval(text: str) -> Interval:
    """The interval that ``text`` denotes; ``ValueError`` if it denotes none, or one that is too
    short or too long."""
    days, seconds = parse_duration(text)
    if seconds % 1:
        raise ValueError(f'"{text[:100]}" is no number of whole seconds')
    interval = Interval(days, int(seconds))
    if interval.total_s < SECONDS_MIN:
        raise ValueError(f'"{text[:100]}" is too short: at least {SECONDS_MIN} seconds')
    if interval.total_s > DAYS_MAX * _DAY_S:
        raise ValueError(f'"{text[:100]}" is too long: at most ten years')
    return interval
