"""When a schedule is due. Pure functions of a definition and moments (seconds since 1970).

CronSim finds the times of cron expressions in their time zone. Intervals that are not of whole days
are elapsed time, whatever the local clock shows."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import count, islice, takewhile

from cronsim import CronSim
from msgspec import Struct

from dsort.service.schedules.definition import ScheduleDefinition
from dsort.service.schedules.rules import Interval, cron_in_numbers, parse_interval

__all__ = ["Missed", "date_of", "due_times", "missed", "next_due", "run_id_of"]

COUNTED_MAX = 1000
"""Up to this number, missed due times are counted one by one."""


class Missed(Struct, frozen=True):
    """The newest due time of a period (None without any), and the number of earlier ones.
    ``at_least``: that number is a lower bound."""

    newest_s: float | None
    earlier: int
    at_least: bool


def next_due(definition: ScheduleDefinition, *, anchor_s: float, after_s: float) -> float | None:
    """The first due time after ``after_s``; None if there is none. ``anchor_s``: when the schedule
    was made; intervals are counted from then, unless the schedule has a ``start_at``."""
    return next(due_times(definition, anchor_s=anchor_s, after_s=after_s), None)


def due_times(
    definition: ScheduleDefinition, *, anchor_s: float, after_s: float
) -> Iterator[float]:
    """The due times after ``after_s``, in order; whole seconds.

    Cron expressions and intervals of whole days go by the local clock. A local time that does not
    exist (the clock is put forward) is due at the first moment after the gap, once, however many
    times of the schedule lie in the gap. A local time that occurs twice (the clock is put back) is
    due once, the first time.
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
    # Too many to list: search backwards, over a longer span each time, until there is one.
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
    """The id of the run that is due then, in UTC: ``20261120T020000Z``. Sorts by time."""
    return datetime.fromtimestamp(due_s, UTC).strftime("%Y%m%dT%H%M%SZ")


def _times(definition: ScheduleDefinition, anchor_s: int, after_s: int) -> Iterator[float]:
    """The due times after ``after_s``, in order; the first ones may be before it, where the local
    clock shows a time twice."""
    zone = definition.zone
    if definition.cron is not None:
        # In numbers, so that CronSim treats all expressions alike where the clock is changed.
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
    """The moment when the local clock shows ``wall`` for the first time, or, if it never does, the
    first one after the gap. Gaps end at whole minutes."""
    found = wall.replace(tzinfo=zone)
    while found.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != wall:
        wall = wall.replace(second=0) + timedelta(minutes=1)
        found = wall.replace(tzinfo=zone)
    return found
