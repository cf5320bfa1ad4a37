"""Laws of overlapping templates: the answer is that of writing all names out, and it is as quick
for ten million names, and for names without end, as for ten."""

from __future__ import annotations

import time
from itertools import islice

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.internals import (
    final_templates,
    first_conflict,
    parse_template,
    templates_overlap,
    with_extension,
)
from tests.support.sampling import examples

SECONDS_MAX = 20.0
NAMES_OF_ENDLESS = 2_500  # more than any number that a bounded template here can say

literals = st.text("a01/-", max_size=3)


@st.composite
def braces(draw: st.DrawFn) -> str:
    start = draw(st.sampled_from([0, 1, 7, 9, 10, 90, 99]))
    end = start + draw(st.integers(0, 30))
    step = draw(st.integers(1, 12))
    width = draw(st.integers(0, 3))
    return f"{{{str(start).zfill(width)}..{str(end).zfill(width)}..{step}}}"


@st.composite
def bounded(draw: st.DrawFn) -> str:
    parts = [draw(literals)]
    for _ in range(draw(st.integers(1, 2))):
        parts += [draw(braces()), draw(literals)]
    return "".join(parts)


at_style = st.builds("{}@{}-{}".format, literals, st.sampled_from(["9", "12", "009"]), literals)
endless = st.builds("{}%{}d{}".format, literals, st.sampled_from(["", "01", "02", "03"]), literals)


def names(template: str) -> set[str]:
    return set(islice(parse_template(template), NAMES_OF_ENDLESS))


@settings(deadline=None, max_examples=examples(150))
@given(bounded() | at_style, bounded() | at_style)
@example("x{0..1}1", "x{0..1}{0..1}")
@example("x1{0..9..3}", "x{10..19..9}")
@example("{00..30..7}{7..9}", "{0..309..11}")
def test_bounded_templates_overlap_if_they_have_a_name_in_common(one: str, other: str) -> None:
    assert templates_overlap(one, other) is bool(names(one) & names(other))
    assert templates_overlap(other, one) is templates_overlap(one, other)


def is_made_by(name: str, template: str) -> bool:
    """Whether an endless template makes ``name``, by trying the number that it would have."""
    parsed = parse_template(template)
    gap = parsed.ranges[0].gap
    digits = name.removeprefix(parsed.prefix)
    digits = digits.removesuffix(gap) if gap else digits
    return digits.isascii() and digits.isdecimal() and parsed.name(int(digits)) == name


@settings(deadline=None, max_examples=examples(150))
@given(endless, bounded() | at_style)
@example("a%d0", "a{1..9}{0..10..10}")
def test_an_endless_template_overlaps_with_what_it_makes(one: str, other: str) -> None:
    assert templates_overlap(one, other) is any(is_made_by(name, one) for name in names(other))


@settings(deadline=None, max_examples=examples(60))
@given(endless, endless)
def test_endless_templates_that_meet_overlap(one: str, other: str) -> None:
    if any(is_made_by(name, other) for name in names(one)):
        assert templates_overlap(one, other)
        assert templates_overlap(other, one)


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("%d1", "1%d", True),
        ("a%02d", "a0%d", True),
        ("a%d", "a0%02d", False),  # no number but 0 begins with a 0
        ("a%d", "a0%d", False),
        ("a%01d", "a%d", True),
        ("a%03d", "a00%01d", True),
        ("a%d-", "a%d", False),
        ("a%d-1", "a1%d", False),
        ("%d/1", "1/%d", True),
        ("9%d0", "%d", True),
    ],
)
def test_endless_templates(one: str, other: str, overlap: bool) -> None:
    assert templates_overlap(one, other) is overlap
    assert templates_overlap(other, one) is overlap


@settings(deadline=None, max_examples=examples(80))
@given(bounded() | at_style | st.sampled_from(["a.tar.lz{0..9}", "a.tar.lz%d", "{0..5}.tar"]))
def test_final_templates_make_the_names_that_outputs_get(text: str) -> None:
    wanted = {with_extension(name, ".tar") for name in names(text)}
    made = set().union(*map(names, final_templates(text, ".tar")))
    assert wanted <= made
    assert len(made) - len(wanted) <= 1  # x.tar.lz4.tar, which is not made


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(st.tuples(st.sampled_from(["file:///d", "file:///d/a", "s3://d"]), bounded())),
    st.lists(st.tuples(st.sampled_from(["file:///d", "file:///d/a", "s3://d"]), bounded())),
)
def test_claims_conflict_if_they_can_mean_one_object(
    ours: list[tuple[str, str]], theirs: list[tuple[str, str]]
) -> None:
    def objects(claims: list[tuple[str, str]]) -> set[str]:
        return {f"{uri}/{name}" for uri, template in claims for name in names(template)}

    found = first_conflict(ours, theirs)
    assert (found is not None) is bool(objects(ours) & objects(theirs))
    if found is not None:
        assert objects([found[0]]) & objects([found[1]])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("x-%06d.tar", "x-{000000..9999999}.tar", True),
        ("x-%06d.tar", "x-{0..99999}.tar", False),
        ("x-%d.tar", "x-%07d.tar", True),
        ("x-%0255d.tar", "x-%d1.tar", True),
        ("x-%d.tar", "y-%d.tar", False),
        ("x-{0..9223372036854775806..2}", "x-{1..9223372036854775807..2}", False),
        ("x-{0..10000000..997}", "x-1{1..1000000..991}", True),
        (
            "x{0..9999999999..99991}{0..7..7}",
            "x1{3..9999999998..100019}{1..6..5}",
            True,
        ),  # given up
        ("{0..10}" * 15 + "a", "{0..10..3}" * 15 + "b", False),
        ("x" * 4000 + "{1..2}", "x" * 4000 + "{3..4}", False),
    ],
)
def test_the_answer_is_quick_whatever_the_counts(one: str, other: str, overlap: bool) -> None:
    begin = time.monotonic()
    assert templates_overlap(one, other) is overlap
    assert time.monotonic() - begin < SECONDS_MAX


def test_comparing_thousands_of_claims_has_an_end() -> None:
    ours = [("s3://b", f"{{1..2}}-{number}-%d.tar") for number in range(2_000)]
    theirs = [("s3://b", f"{{3..4}}-{number}-%d.tar") for number in range(2_000)]
    begin = time.monotonic()
    first_conflict(ours, theirs)
    assert first_conflict([("s3://b", f"{n}-%d") for n in range(2_000)], theirs) is not None
    assert time.monotonic() - begin < 2 * SECONDS_MAX
