"""Input templates: ``::`` joins, bash's alternatives and letters, the extension, and the limits."""

from __future__ import annotations

import tracemalloc
from itertools import islice

import pytest

from tests.support.internals import NAMES_MAX, expand_inputs, parse_input_template


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("s-{0..1}", ["s-0.tar", "s-1.tar"]),
        ("s-@1", ["s-0.tar", "s-1.tar"]),
        ("s-{0..1}.tar", ["s-0.tar", "s-1.tar"]),
        ("s-{0..1}.tgz", ["s-0.tgz", "s-1.tgz"]),
        ("b-{1..2}::a-{1..2}", ["b-1.tar", "b-2.tar", "a-1.tar", "a-2.tar"]),
        ("one.tar::s-@1::dir/two.tar", ["one.tar", "s-0.tar", "s-1.tar", "dir/two.tar"]),
        ("{b,a}", ["b.tar", "a.tar"]),
        ("s{,-extra}", ["s.tar", "s-extra.tar"]),
        ("{a..e..2}", ["a.tar", "c.tar", "e.tar"]),
        ("{c..a}", ["c.tar", "b.tar", "a.tar"]),
        ("{x,y}-{9..10}", ["x-9.tar", "x-10.tar", "y-9.tar", "y-10.tar"]),
        ("{0..1}{a..b}", ["0a.tar", "0b.tar", "1a.tar", "1b.tar"]),
        ("{1,2,10}", ["1.tar", "2.tar", "10.tar"]),
        (r"a\{x,y}", ["a\\x.tar", "a\\y.tar"]),  # no escapes
        ("s-00", ["s-00.tar"]),  # a name without a range is that shard
        ("s-00.tar", ["s-00.tar"]),
        ("dir/one::s-@1", ["dir/one.tar", "s-0.tar", "s-1.tar"]),
    ],
)
def test_the_names_that_go_in_and_their_order(text: str, names: list[str]) -> None:
    assert list(expand_inputs(text, ".tar")) == names
    template = parse_input_template(text)
    assert template.count == len(names)


def test_number_ranges_have_the_same_width_beside_alternatives_as_alone() -> None:
    alone = list(expand_inputs("a-{00..100}", ".tar"))
    beside = list(expand_inputs("{a,b}-{00..100}", ".tar"))
    assert beside[:101] == alone
    assert (alone[0], alone[-1]) == ("a-00.tar", "a-100.tar")


def test_the_first_names_tell_the_shape_of_each_part() -> None:
    template = parse_input_template("a-{5..9}::{x,y}-{1..2}::z.tar")
    assert template.first_names == ("a-5", "x-1", "z.tar")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty range template"),
        ("a-{0..1}::", "template 'a-{0..1}::' has an empty part"),
        ("::a-{0..1}", "has an empty part"),
        ("s-%06d", "template 's-%06d' has no end: an input template must be bounded"),
        ("train/", '\'train/\' names no shard: write {"prefix": "train/"}'),
        ("train-*.tar", 'looks like a glob: write {"glob": "train-*.tar"}'),
        ("s-{001..009-x", "'{' without a '}' after it"),
        ("{train,val-{0..9}", "braces are nested"),
        ("{a,{b,c}}", "braces are nested or without partner"),
        ("{a,b}}", "braces are nested or without partner"),
        ("{1..2,5}", "{1..2,5} mixes alternatives with a range"),
        ("{a,b}-{3..1}", "'start' cannot be greater than 'end'"),
        ("{a,b}-{}", "{} is not a range of numbers"),
        ("{1..x}", "{1..x} is not a range of numbers"),
        ("{٠..٩}", "is not a range of numbers"),
    ],
)
def test_broken_input_templates(text: str, reason: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_input_template(text)
    assert reason in str(error.value)


@pytest.mark.parametrize(
    "text", ["{0..10000000}", "{a,b}{0..4999999}::c.tar", "@9999-@999-@9", "{a..z}@{0..999999999}"]
)
def test_at_most_ten_million_names(text: str) -> None:
    assert NAMES_MAX == 10_000_000
    with pytest.raises(ValueError, match=r"too many values .* \(more than 10000000 max\)"):
        parse_input_template(text)


def test_exactly_ten_million_names_are_fine() -> None:
    assert parse_input_template("{0..4999999}::{a,b}{0..2499999}").count == NAMES_MAX


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize(
    "text", ["s-{0..9999999}", "{a,b}-{0..4999999}", "{0..3161}-{0..3161}", "{0..4999999}-{a,b}"]
)
def test_names_are_made_one_at_a_time(text: str) -> None:
    tracemalloc.start()
    try:
        count = sum(1 for _ in islice(expand_inputs(text, ".tar"), 20_000))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 20_000
    assert peak_bytes < 1 << 20


def test_shapes_show_all_names_but_for_their_digits() -> None:
    template = parse_input_template("{a,b}-{00..99}-{x..z}::c-{5..7}.tar::d.tar")
    shapes = [*template.shapes()]
    assert shapes == [
        *(f"{first}-00-{last}" for first in "ab" for last in "xyz"),
        "c-5.tar",
        "d.tar",
    ]
    assert template.shape_count == len(shapes)
    without_digits = str.maketrans("", "", "0123456789")
    assert {name.translate(without_digits) for name in template} == {
        shape.translate(without_digits) for shape in shapes
    }
