"""The due times of a schedule: pure functions of a definition and moments (seconds since 1970). And
the parsers of cron expressions, as in ``crontab(5)``, and of intervals.

CronSim finds the times of cron expressions in their time zone. Intervals that are not of whole days
are elapsed time, whatever the local clock shows.
"""

from __future__ import annotations

import math
import re
from calendar import monthrange
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import count, islice, takewhile
from typing import TYPE_CHECKING, Final

from cronsim import CronSim
from msgspec import Struct

from dsort.durations import parse_duration

if TYPE_CHECKING:
    from dsort.service.schedules.definition import ScheduleDefinition

COUNTED_MAX = 1000
"""Up to this number, missed due times are counted one by one."""


class Missed(Struct, frozen=True):
    """The newest due time of a period (None if the period has no due time), and the number of
    earlier due times. ``at_least``: the number is a lower bound."""

    newest_s: float | None
    earlier: int
    at_least: bool


def next_due(definition: ScheduleDefinition, *, anchor_s: float, after_s: float) -> float | None:
    """The first due time after ``after_s``; None if there is none. ``anchor_s``: when the schedule
    was made. Intervals count from ``start_at`` if it is set, else from ``anchor_s``."""
    return next(due_times(definition, anchor_s=anchor_s, after_s=after_s), None)


def due_times(
    definition: ScheduleDefinition, *, anchor_s: float, after_s: float
) -> Iterator[float]:
    """The due times after ``after_s``, in order; whole seconds.

    Cron expressions and intervals of whole days go by the local clock. Where the clock is put
    forward, some local times do not exist. All due times in such a gap become one: the first moment
    after the gap. A local time that occurs twice (the clock is put back) is due once, the first
    time.
    """
    start_s, end_s = definition.start_s, definition.end_s
    anchor_s = math.floor(anchor_s) if start_s is None else math.ceil(start_s)
    if start_s is not None:
        after_s = max(after_s, anchor_s - 1)
    for due_s in _times(definition, anchor_s, math.floor(after_s)):
        if end_s is not None and due_s > end_s:
            return
        if due_s > after_s:
            after_s = due_s
            yield due_s


def missed(
    definition: ScheduleDefinition, *, anchor_s: float, after_s: float, now_s: float
) -> Missed:
    """The due times after ``after_s`` and up to ``now_s``."""

    def until_now(from_s: float) -> Iterator[float]:
        found = due_times(definition, anchor_s=anchor_s, after_s=from_s)
        return takewhile(lambda due_s: due_s <= now_s, found)

    oldest = list(islice(until_now(after_s), COUNTED_MAX + 1))
    if len(oldest) <= COUNTED_MAX:
        newest_s = oldest[-1] if oldest else None
        return Missed(newest_s, max(len(oldest) - 1, 0), at_least=False)
    # Too many due times to list: search backwards, over longer and longer spans, until a span has a
    # due time.
    span_s = 3600.0
    while True:
        found = deque(until_now(max(after_s, now_s - span_s)), maxlen=1)
        if found:
            return Missed(found[0], COUNTED_MAX, at_least=True)
        span_s *= 4


def date_of(definition: ScheduleDefinition, due_s: float) -> str:
    """The date of a due time in the schedule's time zone: ``2026-11-20``."""
    return datetime.fromtimestamp(due_s, definition.zone).date().isoformat()


def run_id_of(due_s: float) -> str:
    """The id of the run that is due at ``due_s``, in UTC: ``20261120T020000Z``. Ids sort by
    time."""
    return datetime.fromtimestamp(due_s, UTC).strftime("%Y%m%dT%H%M%SZ")


def _times(definition: ScheduleDefinition, anchor_s: int, after_s: int) -> Iterator[float]:
    """The due times after ``after_s``, in order; where the local clock shows a time twice, the
    first results may be before ``after_s``."""
    zone = definition.zone
    if definition.cron is not None:
        # CronSim gets numbers only, so that it treats all expressions alike when the clock is
        # changed.
        found = CronSim(cron_in_numbers(definition.cron), datetime.fromtimestamp(after_s, zone))
        return (due.timestamp() for due in found)
    interval = parse_interval(definition.every or "")
    if not interval.is_calendar:
        return _interval_times(interval, anchor_s, after_s, UTC)
    return _interval_times(interval, anchor_s, after_s, zone)


def _interval_times(
    interval: Interval, anchor_s: int, after_s: int, zone: tzinfo
) -> Iterator[float]:
    step = timedelta(seconds=interval.total_s)
    anchor, after = (
        datetime.fromtimestamp(each, zone).replace(tzinfo=None) for each in (anchor_s, after_s)
    )
    for number in count(max((after - anchor) // step + 1, 0)):
        try:
            yield _existing(anchor + number * step, zone).timestamp()
        except OverflowError:  # after the year 9999
            return


def _existing(wall: datetime, zone: tzinfo) -> datetime:
    """The first moment at which the local clock shows ``wall``. If the clock never shows ``wall``,
    the first moment after the gap. Gaps end at whole minutes."""
    found = wall.replace(tzinfo=zone)
    while found.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != wall:
        wall = wall.replace(second=0) + timedelta(minutes=1)
        found = wall.replace(tzinfo=zone)
    return found


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
    """The cron expression ``text`` with numbers only, for CronSim. A ``*`` at the beginning of a
    field of days stays, because it makes cron join the two fields of days by "and". ``ValueError``
    names the field that is wrong, and the mistake."""
    # CronSim reports a mistake only as "Bad minute", and accepts syntax that crontab(5) lacks: a
    # sixth field, L, #.
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
    first_day_fits = any(days[0] <= monthrange(_LEAP_YEAR, month)[1] for month in months)
    if (any_day or any_weekday) and not first_day_fits:
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
    """The interval in ``text``; ``ValueError`` for any other text, or if the interval is too short
    or too long."""
    days, seconds = parse_duration(text)
    if seconds % 1:
        raise ValueError(f'"{text[:100]}" is no number of whole seconds')
    interval = Interval(days, int(seconds))
    if interval.total_s < SECONDS_MIN:
        raise ValueError(f'"{text[:100]}" is too short: at least {SECONDS_MIN} seconds')
    if interval.total_s > DAYS_MAX * _DAY_S:
        raise ValueError(f'"{text[:100]}" is too long: at most ten years')
    return interval
