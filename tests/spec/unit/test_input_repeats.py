"""An input template that names a shard twice is reported, with both places, before anything is
done."""

from __future__ import annotations

import json

import pytest

from tests.support.commands import CommandLine
from tests.support.engine import spec_of
from tests.support.internals import NAMES_LOOKED_AT_MAX, find_repeats, parse_input_template


def problems_of(text: str) -> list[str]:
    return [str(repeat) for repeat in find_repeats(parse_input_template(text), ".tar")]


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("{00..02}::{01..03}", ['names "01.tar" twice: in "{00..02}" and in "{01..03}"']),
        ("a-{0..1}::a-{1..2}.tar", ['names "a-1.tar" twice: in "a-{0..1}" and in "a-{1..2}.tar"']),
        ("{0..11}{0..11}", ['names "110.tar" twice: "{0..11}{0..11}" makes it twice']),
        ("{a,b,a}", ['names "a.tar" twice: "{a,b,a}" makes it twice']),
        (
            "a-{0..2}::x.tar::a-{1..3}::x.tar",
            [
                'names "a-1.tar" twice: in "a-{0..2}" and in "a-{1..3}"',
                'names "x.tar" twice: "x.tar" makes it twice',
            ],
        ),
        ("a-{0..2}::b-{0..2}::{a,b}-{3..5}::a.tar", []),
    ],
)
def test_repeats_are_reported_with_both_places(text: str, problems: list[str]) -> None:
    assert problems_of(text) == problems


@pytest.mark.parametrize(
    "text",
    [
        "{0..9999999}",
        "{0..9999}-{0..999}",
        "@999@999",
        "{0..9999}{000..999}",
        "train-{000000..199999}::val-{000000..199999}",
        "{train,val}-{0..199999}",
        "{a..z}{a..z}{a..z}{000..199}",
        "s-{0..299999..2}::s-{1..299999..2}",
        "::".join(f"p{part}-{{0000..9999}}" for part in range(60)),
    ],
)
def test_many_names_are_judged_by_their_shape(text: str) -> None:
    assert parse_input_template(text).count > NAMES_LOOKED_AT_MAX
    assert problems_of(text) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("s-{0..99999}::s-{50000..150000}", 'in "s-{0..99999}" and in "s-{50000..150000}"'),
        ("{0..9999}{0..999}", '"{0..9999}{0..999}"'),
        ("{a,ab}{b,c}{0..99999}{0..11}", '"{a,ab}{b,c}{0..99999}{0..11}"'),
        ("{a,a}{0..99999}", '"{a,a}{0..99999}"'),
    ],
)
def test_what_may_repeat_among_many_is_refused(text: str, words: str) -> None:
    (problem,) = problems_of(text)
    assert problem.startswith("may name a shard twice: ")
    assert words in problem


def test_a_spec_tells_it_beside_all_else_that_is_wrong(cli: CommandLine) -> None:
    spec = spec_of(
        input_format={"template": "{00..02}::{01..03}"}, algorithm={"kind": "none", "natural": True}
    )
    ended = cli("start", "-f", json.dumps(spec), "--json")
    assert ended.code == 2
    problems = json.loads(ended.out)["error"]["problems"]
    assert [each["path"] for each in problems] == ["input_format.template", "algorithm.natural"]
    assert problems[0]["message"] == 'names "01.tar" twice: in "{00..02}" and in "{01..03}"'
