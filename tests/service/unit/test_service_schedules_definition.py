"""What users write of schedules: every problem is reported at once, placeholders stand for what
they should, and what is odd about a schedule draws a warning."""

from __future__ import annotations

from typing import Any

import pytest

from dsort.errors import SpecError
from dsort.service.schedules.create import parse_definition
from dsort.service.schedules.render import RunValues, pointer_name, render, with_shared_buckets
from tests.support.schedules import at, definition, spec

VALUES = RunValues(date="2026-11-20", run_id="20261120T020000Z", epoch=3)


def wrong(**fields: Any) -> dict[str, tuple[str, str]]:
    """(message, hint) by the path of each problem."""
    with pytest.raises(SpecError) as caught:
        parse_definition({"name": "nightly", "cron": "0 2 * * *", "spec": spec(), **fields})
    return {each.path: (each.message, each.hint) for each in caught.value.problems}


def rendered(**fields: Any) -> dict[str, Any]:
    return render(spec(**fields), VALUES)


def test_every_problem_is_reported_at_once() -> None:
    problems = wrong(
        name="no/name",
        cron="0 25 * * *",
        timezone="Mars/Olympus",
        overlap="both",
        retain=0,
        latest="../up",
        labels=["two words"],
        start_at="tomorrow",
        catchup="all",
        spec=spec(output_format="{{dat}}-%d", algorithm={"kind": "shufle"}),
    )
    assert set(problems) == {
        "name",
        "cron",
        "timezone",
        "overlap",
        "retain",
        "latest",
        "labels[0]",
        "start_at",
        "catchup",
        "spec.output_format",
    }
    assert problems["catchup"] == ("unknown field", 'did you mean "catch_up"?')
    assert problems["cron"][0] == '"25" is no hour (0-23)'
    assert problems["spec.output_format"] == (
        "unknown placeholder {{dat}}",
        "did you mean {{date}}?",
    )


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


def test_a_seed_that_is_always_the_same_draws_a_warning() -> None:
    same = spec(algorithm={"kind": "shuffle", "seed": 42})
    assert "every run has the seed 42" in warnings(spec=same)
    assert warnings(spec=spec()) == ""
    assert warnings(spec=spec(algorithm={"kind": "shuffle"})) == ""


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
    with pytest.raises(SpecError, match="retain: cannot be combined with keep_shards"):
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
