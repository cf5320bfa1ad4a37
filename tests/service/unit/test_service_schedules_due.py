"""When schedules are due: cron expressions as cron reads them, intervals, and the two days a year
on which the clock on the wall jumps."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from dsort.service.schedules.definition import ScheduleRow
from dsort.service.schedules.due import (
    Interval,
    Missed,
    cron_in_numbers,
    date_of,
    due_times,
    missed,
    parse_interval,
    run_id_of,
)
from dsort.service.schedules.fire import LATE_S_MAX, turn_of
from tests.support.schedules import at, definition

BERLIN = ZoneInfo("Europe/Berlin")
FORWARD = "2027-03-28"  # 02:00 CET is 03:00 CEST
BACK = "2027-10-31"  # 03:00 CEST is 02:00 CET


def local(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()


def times(after: str, count: int, **fields: str) -> list[str]:
    """The next due times in Berlin, with their offsets."""
    made = definition(timezone="Europe/Berlin", **fields)
    anchor_s = local("2027-01-01 00:00")
    found = islice(due_times(made, anchor_s=anchor_s, after_s=local(after)), count)
    return [datetime.fromtimestamp(due, BERLIN).strftime("%m-%d %H:%M %z") for due in found]


# --- expressions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("0 0 * * 0", ["sun"]),
        ("0 0 * * 7", ["sun"]),
        ("0 0 * * sun", ["sun"]),
        ("0 0 * * 1", ["mon"]),
        ("0 0 * * mon-fri", ["mon", "tue", "wed", "thu", "fri"]),
        ("0 0 * * 5-7", ["fri", "sat", "sun"]),
        ("0 0 * * sat-sun", ["sat", "sun"]),
        ("0 0 * * sun-sun", ["sun"]),
        ("0 0 * * */2", ["sun", "tue", "thu", "sat"]),
        ("0 0 * * */3,5-0", ["sun", "wed", "fri", "sat"]),
        ("0 0 * * */3,fri-sun", ["sun", "wed", "fri", "sat"]),
        ("0 0 * * *,sat-sun", ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]),
        ("@weekly", ["sun"]),
    ],
)
def test_weekdays_are_numbered_as_cron_does(text: str, days: list[str]) -> None:
    made = definition(cron=text)
    found = islice(due_times(made, anchor_s=0, after_s=at("2027-05-02 12:00")), len(days))
    names = [datetime.fromtimestamp(due, ZoneInfo("UTC")).strftime("%a").lower() for due in found]
    assert sorted(names) == sorted(days)


def test_a_day_of_the_month_or_of_the_week_is_enough_where_both_are_given() -> None:
    assert times("2027-08-01 00:00", 6, cron="0 2 13 * fri") == [
        "08-06 02:00 +0200",
        "08-13 02:00 +0200",
        "08-20 02:00 +0200",
        "08-27 02:00 +0200",
        "09-03 02:00 +0200",
        "09-10 02:00 +0200",
    ]
    assert times("2027-08-01 00:00", 2, cron="0 2 */1 * fri") == [  # a * says nothing
        "08-06 02:00 +0200",
        "08-13 02:00 +0200",
    ]
    assert times("2027-08-01 00:00", 2, cron="0 2 13 * */3,fri-sun") == [  # a * in front: "and"
        "08-13 02:00 +0200",
        "10-13 02:00 +0200",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 2 * *", "has 4 fields, not five"),
        ("0 0 2 * * *", "has 6 fields"),
        ("60 * * * *", '"60" is no minute (0-59)'),
        ("0 24 * * *", '"24" is no hour'),
        ("0 0 0 * *", '"0" is no day of the month (1-31)'),
        ("0 0 * 13 *", '"13" is no month (1-12 or jan-dec)'),
        ("0 0 * * 8", '"8" is no day of the week'),
        ("0 0 * * mun", '"mun" is no day of the week'),
        ("*/0 * * * *", "its step is 0"),
        ("30-10 * * * *", "it ends before it begins"),
        ("0 0 30,31 2 *", "never due"),
        ("1,,2 * * * *", '"" is no minute'),
        ("² * * * *", '"²" is no minute'),
        ("@fortnightly", "has 1 fields"),
    ],
)
def test_a_wrong_cron_expression_is_explained(text: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        cron_in_numbers(text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("6h", Interval(0, 21600)),
        ("1d", Interval(1, 0)),
        ("P1D", Interval(1, 0)),
        ("2w", Interval(14, 0)),
        ("PT90M", Interval(0, 5400)),
        ("1d12h", Interval(1, 43200)),
        ("P1DT12H", Interval(1, 43200)),
        ("24h", Interval(0, 86400)),
        ("1.5h", Interval(0, 5400)),
    ],
)
def test_intervals_are_read_in_both_ways_of_writing_them(text: str, interval: Interval) -> None:
    assert parse_interval(text) == interval


@pytest.mark.parametrize(
    "text", ["", "6", "h", "-6h", "1.5s", "90.5s", "P", "PT", "P1DT", "30s", "9999w"]
)
def test_a_wrong_interval_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_interval(text)


# --- the clock on the wall -----------------------------------------------------------------------


def test_a_time_that_does_not_exist_is_due_once_right_after_the_gap() -> None:
    assert times("2027-03-27 00:00", 3, cron="30 2 * * *") == [
        "03-27 02:30 +0100",
        "03-28 03:00 +0200",
        "03-29 02:30 +0200",
    ]
    # However many lie in the gap, and together with what is due then anyway.
    assert times(f"{FORWARD} 01:30", 3, cron="*/15 * * * *") == [
        "03-28 01:45 +0100",
        "03-28 03:00 +0200",
        "03-28 03:15 +0200",
    ]


def test_a_time_that_occurs_twice_is_due_once_the_first_time() -> None:
    assert times("2027-10-30 12:00", 2, cron="30 2 * * *") == [
        "10-31 02:30 +0200",
        "11-01 02:30 +0100",
    ]
    assert times(f"{BACK} 01:30", 4, cron="*/30 * * * *") == [
        "10-31 02:00 +0200",
        "10-31 02:30 +0200",
        "10-31 03:00 +0100",
        "10-31 03:30 +0100",
    ]


def test_whoever_looks_in_the_second_of_two_hours_finds_nothing_twice() -> None:
    made = definition(timezone="Europe/Berlin", cron="30 2 * * *")
    first_s = local(f"{BACK} 02:30")
    assert next(due_times(made, anchor_s=0, after_s=first_s - 1)) == first_s
    for later_s in (first_s, first_s + 1800, first_s + 3600):
        assert next(due_times(made, anchor_s=0, after_s=later_s)) == local("2027-11-01 02:30")


def test_days_keep_the_time_on_the_wall_and_hours_are_time_that_passes() -> None:
    start = "2027-03-27T02:30:00"
    assert times("2027-03-01 00:00", 3, every="1d", start_at=start) == [
        "03-27 02:30 +0100",
        "03-28 03:00 +0200",
        "03-29 02:30 +0200",
    ]
    assert times("2027-03-01 00:00", 3, every="24h", start_at=start) == [
        "03-27 02:30 +0100",
        "03-28 03:30 +0200",
        "03-29 03:30 +0200",
    ]
    assert times("2027-10-30 12:00", 2, every="1d", start_at=start) == [
        "10-31 02:30 +0200",
        "11-01 02:30 +0100",
    ]


def test_intervals_are_counted_from_when_the_schedule_was_made_unless_it_says_otherwise() -> None:
    made = definition(every="6h")
    found = list(islice(due_times(made, anchor_s=1000.25, after_s=1000.25), 2))
    assert found == [1000 + 21600, 1000 + 43200]  # and not at once
    made = definition(every="6h", start_at="2027-01-01T00:00:00+01:00")
    found = list(islice(due_times(made, anchor_s=1000.25, after_s=0), 2))
    assert found == [at("2026-12-31 23:00"), at("2027-01-01 05:00")]


def test_the_date_is_that_of_the_time_zone_and_the_run_id_is_utc() -> None:
    made = definition(timezone="Pacific/Auckland")
    due_s = at("2026-11-20 11:30")
    assert date_of(made, due_s) == "2026-11-21"
    assert run_id_of(due_s) == "20261120T113000Z"


# --- what was missed -----------------------------------------------------------------------------


def test_of_years_of_missed_minutes_the_newest_is_found_without_going_through_all() -> None:
    made = definition(cron="* * * * *")
    found = missed(made, anchor_s=0, after_s=0, now_s=at("2027-11-20 00:00"))
    assert found == Missed(at("2027-11-20 00:00"), 1000, at_least=True)
    few = missed(made, anchor_s=0, after_s=at("2027-11-19 23:50"), now_s=at("2027-11-20 00:00"))
    assert few == Missed(at("2027-11-20 00:00"), 9, at_least=False)


def row(catch_up: str, next_due_at: float) -> ScheduleRow:
    return ScheduleRow(
        schedule_id="a",
        name="nightly",
        owner="ann",
        definition=definition(cron="* * * * *", catch_up=catch_up),
        input_uri="",
        output_uri="",
        paused=False,
        created_at=0,
        changed_at=0,
        next_due_at=next_due_at,
        run_count=0,
    )


def test_making_up_for_the_last_says_what_is_left_out() -> None:
    now_s = at("2027-11-20 00:00")
    turn = turn_of(row("last", at("2026-11-20 00:01")), now_s)
    assert (turn.due_s, turn.next_due_at) == (now_s, now_s + 60)
    assert turn.passed == (
        "at least 1000 due times were missed, from 20261120T000100Z on; catch_up is last"
    )
    assert turn_of(row("last", turn.next_due_at), now_s + 60).passed == ""


def test_on_time_is_within_a_minute() -> None:
    due_s = at("2026-11-20 00:01")
    assert turn_of(row("none", due_s), due_s + LATE_S_MAX - 1).due_s == due_s
    late = turn_of(row("none", due_s), due_s + 5 * LATE_S_MAX + 59)  # the sixth is in time
    assert (late.due_s, late.next_due_at) == (due_s + 300, due_s + 360)
    assert late.passed.startswith("5 due times were missed, from 20261120T000100Z on")
