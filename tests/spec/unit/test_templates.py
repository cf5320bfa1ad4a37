"""Templates make names by their number, without those before them and in no memory. (Which names,
and what is no template: ``tests/spec/laws``, ``tests/golden/specs.jsonl``.)"""

from __future__ import annotations

import tracemalloc
from itertools import islice

import pytest

from tests.support.internals import expand_inputs, parse_input_template, parse_template
from tests.support.refusals import raises


def test_a_name_is_made_without_the_ones_before_it() -> None:
    template = parse_template("a-{000000000..999999999}-{0..9}")
    assert template.count == 10**10
    assert template.name(10**10 - 1) == "a-999999999-9"


@pytest.mark.parametrize("index", [-1, 3])
def test_there_is_no_name_outside_the_range(index: int) -> None:
    with raises(IndexError, "3 names"):
        parse_template("{0..2}").name(index)
    with pytest.raises(IndexError):
        parse_template("%d").name(-1)


def test_fields_count_without_end_and_say_how_many_there_are() -> None:
    template = parse_template("d/s-{n:03d}-of-{total:05d}.tar")
    assert (template.style, template.count, template.has_total) == ("field", None, True)
    assert template.name(7, 12) == "d/s-007-of-00012.tar"
    assert template.name(7) == "d/s-007-of-00008.tar"
    with raises(ValueError, "{total:05d}"):
        iter(template)
    assert [name for name, _ in zip(parse_template("s{n}"), range(2), strict=False)] == ["s0", "s1"]


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
