"""Definitions of schedules: every problem is reported at once, placeholders stand for values of the
run, and an odd definition draws a warning. Due times: cron expressions, intervals, and the two days
a year on which the clock on the wall jumps."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from dsort.errors import SpecError
from dsort.service.schedules.create import parse_definition
from dsort.service.schedules.definition import ScheduleRow
from dsort.service.schedules.due import (
    Interval,
    cron_in_numbers,
    date_of,
    due_times,
    parse_interval,
    run_id_of,
)
from dsort.service.schedules.fire import LATE_S_MAX, turn_of
from dsort.service.schedules.render import RunValues, pointer_name, render, with_shared_buckets
from tests.support.refusals import raises
from tests.support.schedules import at, definition, spec

VALUES = RunValues(date="2026-11-20", run_id="20261120T020000Z", epoch=3)


def wrong(**fields: Any) -> dict[str, tuple[str, str]]:
    """(message, hint) by the path of each problem."""
    with pytest.raises(SpecError) as caught:
        parse_definition({"name": "nightly", "cron": "0 2 * * *", "spec": spec(), **fields})
    return {each.path: (each.message, each.hint) for each in caught.value.problems}


def rendered(**fields: Any) -> dict[str, Any]:
    return render(spec(**fields), VALUES)


def test_a_wrong_definition_has_its_problems_by_their_paths() -> None:
    shared = "name of the bucket itself"
    table: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({"overlap": "queue", "catch_up": "all"}, {"overlap": "replace", "catch_up": "last"}),
        ({"latest": ".ssh"}, {"latest": "hidden"}),
        ({"latest": "a/.b/"}, {"latest": "hidden"}),
        (
            {"spec": {"output_format": "x-%d", "algorithm": {"kind": "shufle"}}},
            dict.fromkeys(("spec.input_bck", "spec.algorithm.kind", "spec.output_shard_size"), ""),
        ),
        ({"spec": [1]}, {"spec": "must be an object, not a list"}),
        ({"every": "1d"}, {"every": "only one of them"}),
        ({"cron": None}, {"cron": "is required, or every"}),
        (
            {"start_at": "2027-01-01T00:00:00", "end_at": "2026-12-31T22:00:00Z"},
            {"end_at": "lies before start_at"},
        ),
        ({"spec": spec(dry_run=True)}, {"spec.dry_run": ""}),
        ({"spec": spec(output_format="{{date}-%d")}, {"spec.output_format": "two braces"}),
        *(
            ({"spec": spec(output_bck=bucket)}, {"spec.output_bck": shared})
            for bucket in ("s3://{{date}}/x", "{{date}}", "file:///{{date}}", "s3://out-{{date}}")
        ),
        (
            {"spec": spec(input_bck={"name": "{{date}}", "provider": "aws"})},
            {"spec.input_bck.name": ""},
        ),
        (
            {
                "spec": spec(
                    output_shard_size="{{epoch}}MB",
                    output_bck={"name": "o", "provider": "aws", "endpoint_url": "http://{{date}}"},
                    description="{{name}} {{date}}",
                )
            },
            {
                "spec.output_shard_size": "",
                "spec.output_bck.endpoint_url": "",
                "spec.description": "unknown placeholder",
            },
        ),
    ]
    for fields, problems in table:
        found = wrong(**fields)
        assert set(found) == set(problems), fields
        for path, words in problems.items():
            assert words in " ".join(found[path]), (fields, path)
    for value in ("planet", {}, None, 5):
        with pytest.raises(SpecError):
            parse_definition(value)


def test_a_moment_without_an_offset_is_one_of_the_time_zone() -> None:
    made = definition(timezone="Asia/Tokyo", start_at="2027-01-01T09:00:00", end_at="2027-01-02")
    assert (made.start_s, made.end_s) == (at("2027-01-01 00:00"), at("2027-01-01 15:00"))


# --- placeholders --------------------------------------------------------------------------------


def test_placeholders_stand_in_buckets_names_seed_and_description() -> None:
    made = rendered(
        input_bck={"name": "in", "provider": "aws", "prefix": "raw/{{date}}"},
        output_bck="s3://out/{{ date }}",
        input_format={"template": "day-{{date}}-{00..09}"},
        output_format="e{{epoch}}/s-{0..{{epoch}}}",
        algorithm={"kind": "shuffle", "seed": "{{run_id}}-{{epoch}}"},
        description="night of {{date}}",
    )
    assert made["input_bck"]["prefix"] == "raw/2026-11-20"
    assert made["output_bck"] == "s3://out/2026-11-20"
    assert made["input_format"] == {"template": "day-2026-11-20-{00..09}"}
    assert made["output_format"] == "e3/s-{0..3}"
    assert made["algorithm"]["seed"] == "20261120T020000Z-3"
    assert made["description"] == "night of 2026-11-20"


def test_templates_of_a_key_map_have_placeholders_and_its_keys_have_none() -> None:
    made = rendered(ekm={"{{date}}/cats-%d": ["^a{{2}}", "{{date}}"]}, output_format=None)
    assert made["ekm"] == {"2026-11-20/cats-%d": ["^a{{2}}", "{{date}}"]}


def test_a_shuffle_without_a_seed_has_the_run_id_for_one() -> None:
    assert rendered(algorithm={"kind": "shuffle"})["algorithm"]["seed"] == "20261120T020000Z"
    assert "seed" not in rendered(algorithm={"kind": "none"})["algorithm"]
    md5 = {"kind": "md5"}
    shuffled = rendered(algorithm={"keys": [md5, {"kind": "shuffle"}]})["algorithm"]
    assert shuffled["seed"] == "20261120T020000Z"
    assert "seed" not in rendered(algorithm={"keys": [md5]})["algorithm"]


# --- warnings ------------------------------------------------------------------------------------


def warnings(**fields: Any) -> str:
    given = {"name": "nightly", "cron": "0 2 * * *", **fields}
    return "\n".join(parse_definition(given).warnings)


def test_names_that_runs_share_draw_a_warning() -> None:
    daily = spec(output_format="{{date}}/s-%d")
    assert warnings(spec=daily) == ""
    assert "would write the same names" in warnings(spec=daily, cron="0 2,14 * * *")
    assert "would write the same names" in warnings(spec=spec(output_format="s-%d"))
    assert warnings(spec=spec(output_format="s-%d", overwrite=True)) == ""
    assert warnings(spec=spec(output_format="s-%d", output_bck="out/{{date}}")) == ""


def test_results_that_keep_the_names_of_their_inputs_are_not_removed() -> None:
    spec = {"input_bck": "in", "output_bck": "out/{{run_id}}", "keep_shards": True}
    assert parse_definition({"name": "x", "every": "1d", "spec": spec}).warnings == ()
    with raises(SpecError, "keep_shards", paths=["retain"]):
        parse_definition({"name": "x", "every": "1d", "retain": 2, "spec": spec})


# --- where the pointer is ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "bucket", "name"),
    [
        ({"output_format": "nightly/{{date}}/s-%06d"}, "out", "nightly/latest.json"),
        ({"output_format": "nightly/x-{{date}}/s-%06d"}, "out", "nightly/latest.json"),
        ({"output_format": "a/b/s-%06d"}, "out", "a/b/latest.json"),
        ({"output_format": "s-{{run_id}}-@99"}, "out", "latest.json"),
        ({"output_bck": "s3://data/n/{{date}}"}, "s3://data/n", "latest.json"),
        ({"output_bck": "s3://data/{{date}}/x"}, "s3://data", "latest.json"),
        (
            {"output_bck": {"name": "data", "provider": "aws", "prefix": "n/{{date}}"}},
            {"name": "data", "provider": "aws", "prefix": "n"},
            "latest.json",
        ),
        (
            {"output_bck": {"name": "data/{{date}}", "provider": "aws", "prefix": "n"}},
            {"name": "data", "provider": "aws"},
            "latest.json",
        ),
        ({"output_bck": None, "output_format": "x/{{date}}-%d"}, None, "x/latest.json"),
        ({"output_format": None, "ekm": {"a/%d": ["a"]}}, "out", "latest.json"),
    ],
)
def test_the_pointer_is_under_what_all_runs_share(
    fields: dict[str, Any], bucket: object, name: str
) -> None:
    made = definition(spec=spec(**fields))
    assert with_shared_buckets(made.spec)["output_bck"] == bucket
    assert pointer_name(made) == name


def test_the_pointers_prefix_can_be_given_and_it_can_be_left_out() -> None:
    made = definition(latest="fresh/ones/", spec=spec(output_bck="s3://data/{{date}}"))
    assert pointer_name(made) == "fresh/ones/latest.json"
    assert pointer_name(definition(latest=False)) is None


def test_each_of_several_inputs_may_have_placeholders() -> None:
    inputs = [
        {"name": "new", "input_bck": "in/{{date}}", "input_format": {"prefix": "{{date}}/"}},
        {"name": "old", "input_bck": {"name": "s3://old", "prefix": "{{date}}"}},
    ]
    several = {name: each for name, each in spec(inputs=inputs).items() if name != "input_bck"}
    made = render(several, VALUES)
    assert made["inputs"][0]["input_bck"] == "in/2026-11-20"
    assert made["inputs"][0]["input_format"] == {"prefix": "2026-11-20/"}
    assert made["inputs"][1]["input_bck"] == {"name": "s3://old", "prefix": "2026-11-20"}
    shared = with_shared_buckets(several)["inputs"]
    assert [each["input_bck"] for each in shared] == ["in", {"name": "s3://old"}]
    named = [{**inputs[0], "name": "{{date}}"}]
    assert "spec.inputs[0].name" in wrong(spec={**several, "inputs": named})


def test_each_of_several_outputs_may_have_placeholders() -> None:
    outputs = [
        {"name": "train", "fraction": 0.9},
        {"name": "val", "fraction": 0.1, "output_format": "{{date}}/val-%d"},
    ]
    several = spec(output_format="{{date}}/{split}-%d", outputs=outputs)
    made = render(several, VALUES)
    assert made["output_format"] == "2026-11-20/{split}-%d"
    assert made["outputs"][1]["output_format"] == "2026-11-20/val-%d"
    named = [{"name": "{{date}}", "fraction": 1.0}]
    assert "spec.outputs[0].name" in wrong(spec={**several, "outputs": named})


def test_outputs_with_names_of_their_own_share_no_directory() -> None:
    alike = {"output_format": "a/{split}-%d", "outputs": [{"name": "x", "fraction": 1.0}]}
    assert pointer_name(definition(spec=spec(**alike))) == "a/latest.json"
    alike["outputs"] = [{"name": "x", "fraction": 1.0, "output_format": "b/%d"}]
    assert pointer_name(definition(spec=spec(**alike))) == "latest.json"


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
    ("text", "named"),
    [
        ("0 2 * *", "4 fields"),
        ("0 0 2 * * *", "6 fields"),
        ("60 * * * *", '"60"'),
        ("0 24 * * *", '"24"'),
        ("0 0 0 * *", "1-31"),
        ("0 0 * 13 *", "jan-dec"),
        ("0 0 * * 8", '"8"'),
        ("0 0 * * mun", '"mun"'),
        ("*/0 * * * *", "0"),
        ("30-10 * * * *", "30-10"),
        ("0 0 30,31 2 *", ""),
        ("1,,2 * * * *", '""'),
        ("² * * * *", '"²"'),
        ("@fortnightly", "1 fields"),
    ],
)
def test_a_wrong_cron_expression_is_explained(text: str, named: str) -> None:
    with raises(ValueError, named):
        cron_in_numbers(text)


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


def test_the_date_is_that_of_the_time_zone_and_the_run_id_is_utc() -> None:
    made = definition(timezone="Pacific/Auckland")
    due_s = at("2026-11-20 11:30")
    assert date_of(made, due_s) == "2026-11-21"
    assert run_id_of(due_s) == "20261120T113000Z"


# --- what was missed -----------------------------------------------------------------------------


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
