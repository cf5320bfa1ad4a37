"""Templates give the names that AIStore's give: styles, widths, steps, limits; and clear errors."""

from __future__ import annotations

import re
from itertools import islice

import pytest

from tests.support.internals import COUNT_MAX, ShardTemplate, parse_template


@pytest.mark.parametrize(
    ("text", "style", "names"),
    [
        ("s-{00..02}", "bash", ["s-00", "s-01", "s-02"]),
        ("{8..11}x", "bash", ["8x", "9x", "10x", "11x"]),
        ("{0010..0013..2}", "bash", ["0010", "0012"]),
        ("{1..02}}", "bash", ["1}", "2}"]),  # a closing brace at the end is literal
        ("{5..5}", "bash", ["5"]),
        ("a{0..1}b{3..5..2}c", "bash", ["a0b3c", "a0b5c", "a1b3c", "a1b5c"]),
        ("a%d@{0..1}", "bash", ["a%d@0", "a%d@1"]),  # bash first: the rest is literal
        ("s-@3", "at", ["s-0", "s-1", "s-2", "s-3"]),
        ("s-@01.tar", "at", ["s-00.tar", "s-01.tar"]),
        ("@1-%d-@01", "at", ["0-%d-00", "0-%d-01", "1-%d-00", "1-%d-01"]),
    ],
)
def test_the_names_of_bounded_templates(text: str, style: str, names: list[str]) -> None:
    template = parse_template(text)
    assert (template.style, template.count) == (style, len(names))
    assert list(template) == names
    assert [template.name(index) for index in range(len(names))] == names
    assert template.text == text


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("{00..18}", "00", "18"),
        ("{0..100}", "0", "100"),  # as wide as the shorter bound
        ("{00..100}", "00", "100"),
        ("{1..02}", "1", "2"),
        ("{0001..2}", "1", "2"),
        ("@099", "000", "099"),
        (
            "prefix-@00001-gap-@100-suffix",
            "prefix-00000-gap-000-suffix",
            "prefix-00001-gap-100-suffix",
        ),
    ],
)
def test_widths(text: str, first: str, last: str) -> None:
    template = parse_template(text)
    assert template.count is not None
    assert (template.name(0), template.name(template.count - 1)) == (first, last)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("s-%06d", ["s-000000", "s-000001"]),
        ("shuffled-shard-%d", ["shuffled-shard-0", "shuffled-shard-1"]),
        ("%00d.tar", ["0.tar", "1.tar"]),
    ],
)
def test_fmt_templates_have_no_end(text: str, names: list[str]) -> None:
    template = parse_template(text)
    assert (template.style, template.count) == ("fmt", None)
    assert list(islice(template, 2)) == names
    assert "1000000000000" in template.name(10**12)


def test_a_name_is_made_without_the_ones_before_it() -> None:
    template = parse_template("a-{000000000..999999999}-{0..9}")
    assert template.count == 10**10
    assert template.name(10**10 - 1) == "a-999999999-9"


@pytest.mark.parametrize("index", [-1, 3])
def test_there_is_no_name_outside_the_range(index: int) -> None:
    with pytest.raises(IndexError, match="has 3 names, none at index"):
        parse_template("{0..2}").name(index)
    with pytest.raises(IndexError):
        parse_template("%d").name(-1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{3..1}", "'start' cannot be greater than 'end'"),
        ("{0..-1}", "'start' cannot be greater than 'end'"),
        ("{-1..3}", "'start' is negative"),
        ("{1..3..0}", "'step' is non-positive"),
        ("{1..3..-1}", "'step' is non-positive"),
        ("a-{001..009-b", "'{' without a '}' after it"),
        ("a-001..009}-b", "'}' without a '{' before it"),
        ("}a{1..2}", "'}' before the first '{'"),
        ("a{1..2}b}c{1..2}", "'}' without a '{' before it"),
        ("{{1..2}}", "braces are nested, or a '}' is missing"),
        ("{1..2{3..4}}", "braces are nested, or a '}' is missing"),
        ("{a..z}", "{a..z} is not a range of numbers"),
        ("{x,y}", "{x,y} is not a range of numbers"),
        ("{1}", "{1} is not a range of numbers"),
        ("{}", "{} is not a range of numbers"),
        ("{1..}", "{1..} is not a range of numbers"),
        ("{..2}", "{..2} is not a range of numbers"),
        ("{1..2..3..4}", "{1..2..3..4} is not a range of numbers"),
        ("{+1..2}", "{+1..2} is not a range of numbers"),
        ("{1..٣}", "{1..٣} is not a range of numbers"),
        ("{1..9223372036854775808}", "9223372036854775808 is too large a number"),
        (f"{{0..{'9' * 5000}}}", "... is too large a number"),
    ],
)
def test_broken_bash_templates(text: str, reason: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_template(text)
    message = str(error.value)
    assert message.startswith("invalid 'bash' template ")
    assert reason in message
    assert message.endswith("(expecting e.g. 'prefix-{0001..0010..1}-suffix')")
    assert len(message) < 500


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a@b", "'@' without a number after it"),
        ("@1-@", "'@' without a number after it"),
        ("user@host-%d", "'@' without a number after it"),
        ("@9223372036854775808", "is too large a number"),
        ("@" + "0" * 300, "is too large a number"),
    ],
)
def test_broken_at_templates(text: str, reason: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_template(text)
    assert str(error.value).startswith("invalid 'at' template ")
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("%6d", "only %d and %0Nd are numbers"),
        ("%0d", "only %d and %0Nd are numbers"),
        ("%s", "only %d and %0Nd are numbers"),
        ("100%", "only %d and %0Nd are numbers"),
        ("%d-%d", "more than one '%'"),
        ("%%d", "more than one '%'"),
        ("%0300d", "numbers of 300 digits are too wide for a name"),
    ],
)
def test_broken_fmt_templates(text: str, reason: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_template(text)
    assert str(error.value).startswith("invalid 'fmt' template ")
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty range template"),
        ("shard", "no range in template 'shard'"),
        (f"{{0..{COUNT_MAX}}}", "the range is too large to expand"),
        (f"@{COUNT_MAX}", "the range is too large to expand"),
        ("{0..9999999999}{0..9999999999}", "combined ranges are too large to expand"),
    ],
)
def test_what_is_no_range_or_too_large_a_one(text: str, reason: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_template(text)
    assert reason in str(error.value)


def test_templates_are_values() -> None:
    template = parse_template("s-{0..2}")
    assert template == parse_template("s-{0..2}") != parse_template("s-{0..3}")
    assert isinstance(hash(template), int)
    with pytest.raises(AttributeError):
        template.text = "other"  # type: ignore[misc]
    assert isinstance(template, ShardTemplate)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("s-{m}", "unknown field {m}, known are {n}, {n:05d}, {total:05d} and {split}"),
        ("s-{n:5d}", "{n:5d} is no number, as {n:05d} is"),
        ("s-{n:05x}", "{n:05x} is no number"),
        ("s-{n:0300d}", "numbers of 300 digits are too wide for a name"),
        ("s-{n}-{n}", "{n} is there more than once"),
        ("s-{n}-{total}-{total}", "{total} is there more than once"),
        ("s-of-{total}", "{n} is missing"),
        ("s-{n}-{0..3}", "{0..3} counts, too: {n} and {total} go without it"),
        ("s-%05d-{n}", "%05d counts, too"),
        ("s-%d-of-{total}", "%d counts, too"),
        ("s-{n}}", "a brace that belongs to no field"),
        ("{split}-{n}", "{split} is known only in output_format"),
        ("s.tar.lz{n}", ".tar.lz4"),
    ],
)
def test_broken_field_templates(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)) as error:
        parse_template(text)
    assert str(error.value).startswith("invalid 'field' template ")


def test_fields_count_without_end_and_say_how_many_there_are() -> None:
    template = parse_template("d/s-{n:03d}-of-{total:05d}.tar")
    assert (template.style, template.count, template.has_total) == ("field", None, True)
    assert template.name(7, 12) == "d/s-007-of-00012.tar"
    assert template.name(7) == "d/s-007-of-00008.tar"
    with pytest.raises(ValueError, match="not known yet"):
        iter(template)
    assert [name for name, _ in zip(parse_template("s{n}"), range(2), strict=False)] == ["s0", "s1"]
