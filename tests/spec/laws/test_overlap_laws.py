"""Laws of overlapping templates: those that have a name in common, once all are written out, always
overlap; a prefix of its own tells a template apart; and the answer is as quick for ten million
names, and for names without end, as for ten."""

from __future__ import annotations

import time
from functools import cache
from itertools import islice, product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.internals import (
    ShardTemplate,
    final_templates,
    first_conflict,
    names_made,
    parse_template,
    templates_overlap,
    with_extension,
)
from tests.support.sampling import examples

SECONDS_MAX = 20.0
NAMES_OF_ENDLESS = 2_500  # more than any number that a bounded template here can say
TOTAL_MAX = 40

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


with_total = st.builds("{}{{n}}{}{{total:02d}}{}".format, literals, literals, literals)
plain = st.text("a01/-", min_size=1, max_size=6)
anything = bounded() | at_style | endless | with_total | plain


def parsed(text: str) -> ShardTemplate:
    if any(sign in text for sign in "{@%"):
        return parse_template(text)
    return ShardTemplate(text, "fmt", text, ())


def overlap(one: str, other: str) -> bool:
    found = templates_overlap(parsed(one), parsed(other))
    assert templates_overlap(parsed(other), parsed(one)) is found
    return found


@cache
def names(text: str) -> frozenset[str]:
    """All names of a template; of one without end, more than a bounded one has numbers."""
    template = parsed(text)
    if not template.ranges:
        return frozenset([text])
    if template.has_total:
        totals = product(range(TOTAL_MAX), range(1, TOTAL_MAX))
        return frozenset(template.name(number, total) for number, total in totals)
    return frozenset(islice(template, NAMES_OF_ENDLESS))


@settings(deadline=None, max_examples=examples(400))
@given(anything, anything)
@example("x{0..1}1", "x{0..1}{0..1}")
@example("x1{0..9..3}", "x{10..19..9}")
@example("{1..2}1", "{10..11}")
@example("a{1..9}{0..9}", "a{10..99}")
@example("{00..30..7}{7..9}", "{0..309..11}")
@example("a%d0", "a{1..9}{0..10..10}")
@example("9%d0", "%d")
@example("%d/1", "1/%d")
@example("a{1..9}/{0..5}", "a7/%d")
@example("a{n}-{total:02d}", "a%d-07")
def test_templates_with_a_name_in_common_overlap(one: str, other: str) -> None:
    if names(one) & names(other):
        assert overlap(one, other)
    else:
        overlap(one, other)  # which has an end, and is the same from both sides


@settings(deadline=None, max_examples=examples(150))
@given(anything, anything, st.sampled_from(["b", "c/", "a-b"]), st.sampled_from(["d", "x/", "a-c"]))
def test_a_prefix_of_its_own_tells_a_template_apart(
    one: str, other: str, prefix: str, other_prefix: str
) -> None:
    assert not overlap(prefix + one, other_prefix + other)


@settings(deadline=None, max_examples=examples(150))
@given(bounded() | at_style | with_total | plain, st.lists(plain))
@example("x{1..2}{1..12}", ["x112", "x111", "x312"])
def test_the_names_that_a_template_makes_are_known_exactly(text: str, others: list[str]) -> None:
    made = names(text)
    some = set(islice(made, 20))
    asked = {*others, *some, *(f"{name}0" for name in some), *(f"0{name}" for name in some)}
    if parsed(text).has_total:
        asked &= made  # larger numbers are written out for no template
    assert names_made([text], asked) == asked & made


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("x-%d.tar", "y-%d.tar", False),
        ("x-%d.tar", "x-val-%d.tar", False),  # no number begins with a letter
        ("x%d", "x", False),
        ("x-%d.tar", "x-%d.tar.zst", False),
        ("a%d-", "a%d", False),
        ("a%d-1", "a1%d", True),  # not looked into: digits beside digits
        ("%d1", "1%d", True),
        ("a%02d", "a0%d", True),
        ("{00..99}/a-%d", "{00..99}/b-%d", False),
        ("{00..99}/a-%d", "{50..150}/a-%d", True),
        ("x-{000..099}.tar", "x-{100..199}.tar", False),
        ("x-{000..100}.tar", "x-{100..199}.tar", True),
        ("x-{0..9223372036854775806..2}", "x-{1..9223372036854775807..2}", False),
        ("x-%06d.tar", "x-{000000..9999999}.tar", True),
        ("x-{n}-of-{total}", "x-{n}-of-{total}-b", False),
        ("x-{n}-of-{total}", "x-7-of-%d", True),
        ("latest.json", "latest%d.json", False),
        ("latest7.json", "latest%d.json", True),
        ("latest07.json", "latest%d.json", False),
    ],
)
def test_literal_parts_of_templates_tell_them_apart(one: str, other: str, expected: bool) -> None:
    assert overlap(one, other) is expected


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
def test_claims_that_can_mean_one_object_conflict(
    ours: list[tuple[str, str]], theirs: list[tuple[str, str]]
) -> None:
    def objects(claims: list[tuple[str, str]]) -> set[str]:
        return {f"{uri}/{name}" for uri, template in claims for name in names(template)}

    found = first_conflict(ours, theirs)
    if objects(ours) & objects(theirs):
        assert found is not None
    if found is not None:
        assert found[0] in ours
        assert found[1] in theirs


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x-%0255d.tar", "x-%d1.tar"),
        ("x-{0..10000000..997}", "x-1{1..1000000..991}"),
        ("x{0..9999999999..99991}{0..7..7}", "x1{3..9999999998..100019}{1..6..5}"),
        ("{0..10}" * 15 + "a", "{0..10..3}" * 15 + "b"),
        ("{0..99}" * 9, "1" * 15),
        ("x" * 4000 + "{1..2}", "x" * 4000 + "{3..4}"),
    ],
)
def test_the_answer_is_quick_whatever_the_counts(one: str, other: str) -> None:
    begin = time.monotonic()
    overlap(one, other)
    assert time.monotonic() - begin < SECONDS_MAX


def test_comparing_thousands_of_claims_has_an_end() -> None:
    ours = [("s3://b", f"{{1..2}}-{number}-%d.tar") for number in range(2_000)]
    theirs = [("s3://b", f"{{3..4}}-{number}-%d.tar") for number in range(2_000)]
    begin = time.monotonic()
    first_conflict(ours, theirs)
    assert first_conflict([("s3://b", f"{n}-%d") for n in range(2_000)], theirs) is not None
    assert time.monotonic() - begin < 2 * SECONDS_MAX
