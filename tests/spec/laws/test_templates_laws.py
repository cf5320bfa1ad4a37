"""Laws of templates: a name by its number is the name in its place, and no two are alike."""

from __future__ import annotations

from itertools import islice, product

from hypothesis import given
from hypothesis import strategies as st

from tests.support.internals import expand_inputs, parse_input_template, parse_template

literals = st.text("abz/-_.é", max_size=5)


@st.composite
def numbers(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A brace range and the numbers that it stands for, by the definition."""
    start = draw(st.integers(0, 1200))
    end = start + draw(st.integers(0, 12))
    start_text = str(start).zfill(draw(st.integers(0, 6)))
    end_text = str(end).zfill(draw(st.integers(0, 6)))
    step = draw(st.integers(1, 4))
    width = min(len(start_text), len(end_text))
    suffix = f"..{step}" if step > 1 or draw(st.booleans()) else ""
    written = f"{{{start_text}..{end_text}{suffix}}}"
    return written, [str(n).zfill(width) for n in range(start, end + 1, step)]


@st.composite
def words(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A group of alternatives, and what it stands for."""
    choices = draw(st.lists(st.text("abz-_", max_size=3), min_size=2, max_size=4, unique=True))
    return "{" + ",".join(choices) + "}", choices


@given(literals, st.lists(st.tuples(numbers(), literals), min_size=1, max_size=3))
def test_bash_templates_are_the_product_of_their_ranges(
    prefix: str, ranges: list[tuple[tuple[str, list[str]], str]]
) -> None:
    text = prefix + "".join(written + gap for (written, _), gap in ranges)
    pools = [[number + gap for number in choices] for (_, choices), gap in ranges]
    names = [prefix + "".join(parts) for parts in product(*pools)]
    template = parse_template(text)
    assert list(template) == names
    assert template.count == len(names)
    assert [template.name(index) for index in range(len(names))] == names
    assert list(parse_input_template(text)) == names


@given(literals, st.integers(0, 300), st.integers(1, 5), literals)
def test_at_templates_count_from_zero(prefix: str, end: int, width: int, suffix: str) -> None:
    digits = str(end).zfill(width)
    template = parse_template(f"{prefix}@{digits}{suffix}")
    assert list(template) == [
        f"{prefix}{number:0{len(digits)}d}{suffix}" for number in range(end + 1)
    ]


@given(literals, st.integers(1, 12), literals, st.integers(0, 10**9))
def test_fmt_templates_print_as_c_does(prefix: str, width: int, suffix: str, index: int) -> None:
    text = f"{prefix}%0{width}d{suffix}"
    template = parse_template(text)
    assert template.name(index) == text % index
    assert list(islice(template, 3)) == [text % number for number in range(3)]


@given(st.lists(st.one_of(words(), numbers()), min_size=1, max_size=3), literals)
def test_alternatives_and_ranges_combine_with_the_last_one_fastest(
    groups: list[tuple[str, list[str]]], prefix: str
) -> None:
    text = prefix + "".join(written for written, _ in groups) + ".tar"
    names = [
        prefix + "".join(parts) + ".tar" for parts in product(*(choices for _, choices in groups))
    ]
    template = parse_input_template(text)
    assert list(template) == names
    assert template.count == len(names)
    assert template.first_names == (names[0],)


@given(st.lists(numbers(), min_size=1, max_size=3))
def test_joined_templates_give_the_names_of_each_in_turn(
    parts: list[tuple[str, list[str]]],
) -> None:
    text = "::".join(f"part{index}-{written}" for index, (written, _) in enumerate(parts))
    assert list(expand_inputs(text, ".tar")) == [
        f"part{index}-{number}.tar"
        for index, (_, choices) in enumerate(parts)
        for number in choices
    ]


@given(st.text("ab01.,{}@%d:*/", max_size=24))
def test_any_text_is_a_template_with_a_first_name_or_a_clear_error(text: str) -> None:
    for parse in (parse_template, parse_input_template):
        try:
            template = parse(text)
        except ValueError as error:
            reason = str(error)
        else:
            reason = next(iter(template), None) or "an empty first name"
        assert reason
